"""Where users come from: what the settings of every source have in common."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

from userdp.data.federation import Federation
from userdp.data.load_report import LoadReport
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.settings import Section


@dataclass(frozen=True)
class Datasets:
    """What a run reads.

    Attributes:
        train: the users who take part, 0..n-1; None on the server of a deployment, which has no users' data.
        test: held-out users for metrics; None when the configuration holds out nobody.
        report: what loading a table clipped and left out; None for synthetic data.
    """

    train: Federation | None
    test: Federation | None
    report: LoadReport | None

    @property
    def users(self) -> Federation:
        """The users who take part.

        Raises:
            BadInput: they are not on this machine.
        """
        if self.train is None:
            raise BadInput("the users' data are with the silos: a server cannot compute on them")
        return self.train


class DataSettings(Section):
    """A source of users: what is declared before any data are read, and how they are read."""

    kind: str

    @property
    @abstractmethod
    def declared_users(self) -> int | None:
        """N, the public number of training users; None when it is to be counted."""

    @property
    @abstractmethod
    def declared_samples(self) -> int | None:
        """The public number of samples of all training users."""

    @property
    @abstractmethod
    def sample_limits(self) -> tuple[int, int | None]:
        """(fewest, most) samples of a user."""

    @cached_property
    @abstractmethod
    def sample_shape(self) -> Shape:
        """What is declared about a sample."""

    @abstractmethod
    def load(self, seed: int) -> Datasets:
        """Read or describe the users; the same settings and seed give the same users in the same order everywhere.

        Raises:
            BadInput: a file that cannot be used, or a row without a user.
            PopulationTooSmall: fewer training users than are declared.
        """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee rests on because of how the data were declared."""
        return ()

    @property
    def keeps_some_samples(self) -> bool:
        """Whether of users with many samples only some are kept."""
        return False
