"""Sources of users: the settings that all of them share, and the counts of reading a table."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from userdp.data.federation import Federation
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.settings import Section


@dataclass(frozen=True)
class LoadReport:
    """Counts of a load. They are exact functions of the data, covered by no guarantee: for the data holder alone.

    Attributes:
        rows: rows of the file.
        users: users of the federation.
        samples: samples of the federation.
        clipped: column -> cells of the federation outside the declared range.
        unknown_levels: categorical column, or channel of sequences -> cells of the federation that hold no declared
            level, or characters outside the alphabet.
        unusable: column of numbers, codes or the target -> cells of the federation that no loss can use; their samples
            have weight zero.
        imputed: column with a declared value for missing cells -> cells of the federation that got it.
        steps: channel of sequences -> steps of the federation, without padding.
        small_users: users left out for holding fewer than ``min_samples``.
        surplus_users: eligible users beyond the public number of users.
        surplus_samples: samples of the federation's users left out by ``max_samples``.
        doubts: a sentence for every column with many cells that are not as declared, and ``doubtful_ids``.
        doubtful_ids: a sentence about ids that may be two spellings of one person, or no person's; or ''.
        nothing_usable: a sentence for every column that teaches nothing: it has no usable cell, so that every sample
            has weight zero, or its declaration makes all cells one number.
        target_ends: the least and the greatest target, of numbers without a declared range; no file holds them.
    """

    rows: int
    users: int
    samples: int
    clipped: Mapping[str, int] = field(default_factory=dict)
    unknown_levels: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, int] = field(default_factory=dict)
    imputed: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    small_users: int = 0
    surplus_users: int = 0
    surplus_samples: int = 0
    doubts: Sequence[str] = ()
    doubtful_ids: str = ""
    nothing_usable: Sequence[str] = ()
    target_ends: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without those of the optional features that are empty."""
        optional = ("imputed", "steps", "doubts", "nothing_usable")
        found = {name: value for name, value in asdict(self).items() if value or name not in optional}
        del found["target_ends"], found["doubtful_ids"]
        return found


@dataclass(frozen=True)
class Datasets:
    """The data of a run."""

    train: Federation | None
    """The users who take part, 0..n-1; None on the server of a deployment, which has no users' data."""
    test: Federation | None
    """Held-out users for metrics; None when the configuration holds out nobody."""
    report: LoadReport | None
    """The counts of reading a table; None for synthetic data."""

    @property
    def users(self) -> Federation:
        """The users who take part; raises `BadInput` if they are not on this machine."""
        if self.train is None:
            raise BadInput("the users' data are with the silos: a server cannot compute on them")
        return self.train


class DataSettings(Section):
    """A source of users: the declarations about them, and how to read them."""

    published: ClassVar[bool] = False  # everybody can count the users
    simulated: ClassVar[bool] = False  # there are no people behind the users
    kind: str

    @property
    def called(self) -> str:
        """The name of the data, for their account; by default the name of the kind."""
        return self.kind.rpartition(":")[2]

    @property
    def declarations(self) -> Mapping[str, Any]:
        """The declared columns of a table, see `userdp.data.read_table`; empty if samples come from no table."""
        return {}

    @property
    def holds_out(self) -> str | None:
        """The declaration that holds users out, for sentences; None if no user is held out."""
        return f"data.kind = {self.kind!r}" if self.declared_held_out else None

    @property
    def held_out_by_data(self) -> bool:
        """True if people's data decide who is held out."""
        return False

    def everybody(self) -> Self:
        """Return the settings with which all users train; `BadInput` if there are none."""
        if self.holds_out:
            raise BadInput(f"{self.holds_out}: this source always holds users out; set privacy.evaluate = false")
        return self

    def labels(self, seed: int) -> NDArray[np.object_]:
        """Return a label for each training user, by which its holder knows it; by default a number."""
        return np.array([f"{self.called}-{user}" for user in range(self.load(seed).users.users)], dtype=object)

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
    def load(self, seed: int, hidden: Callable[[], bool] = lambda: False) -> Datasets:
        """Read or describe the users; the same settings and seed give the same users in the same order everywhere.

        ``hidden`` says whether the number of users is protected, as where one may be added or removed; it is asked if
        that matters. There may then be fewer users than places are declared, and no message shows their number.

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
