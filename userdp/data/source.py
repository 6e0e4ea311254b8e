"""Sources of users: the settings that all of them share."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from userdp.data.federation import Federation
from userdp.data.load_report import LoadReport
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.settings import Section


@dataclass(frozen=True)
class Datasets:
    """The data of a run.

    Attributes:
        train: the users who take part, 0..n-1; None on the server of a deployment, which has no users' data.
        test: held-out users for metrics; None when the configuration holds out nobody.
        report: the counts of reading a table; None for synthetic data.
    """

    train: Federation | None
    test: Federation | None
    report: LoadReport | None

    @property
    def users(self) -> Federation:
        """The users who take part; raises `BadInput` if they are not on this machine."""
        if self.train is None:
            raise BadInput("the users' data are with the silos: a server cannot compute on them")
        return self.train


class DescribedSection(Section):
    """A section of a configuration file whose keys are described by the docstrings of its fields."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Join the lines of each description."""
        super().__pydantic_init_subclass__(**options)
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())


class DataSettings(DescribedSection):
    """A source of users: the declarations about them, and how to read them."""

    kind: str

    @property
    @abstractmethod
    def declared_users(self) -> int | None:
        """N, the public number of training users; None to count them in the data."""

    @property
    def declared_held_out(self) -> int | None:
        """The public number of held-out users; None if it is not declared."""
        return None

    def numbers(self, seed: int) -> NDArray[np.int64] | None:
        """Return the (N,) number of each of all users in a run: training users come first; None if none is moved."""
        return None

    @property
    @abstractmethod
    def declared_samples(self) -> int | None:
        """The public number of samples of all training users."""

    @property
    @abstractmethod
    def sample_limits(self) -> tuple[int, int | None]:
        """The (fewest, most) samples of a user."""

    @cached_property
    @abstractmethod
    def sample_shape(self) -> Shape:
        """The declarations about a sample."""

    @abstractmethod
    def load(self, seed: int) -> Datasets:
        """Read or describe the users; the same settings and seed give the same users in the same order everywhere.

        Raises `BadInput` for a file that cannot be used, or a row without a user, and `PopulationTooSmall` for fewer
        training users than are declared.
        """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions that these declarations add to a guarantee."""
        return ()

    @property
    def keeps_some_samples(self) -> bool:
        """True if only some samples of a user with many are used."""
        return False
