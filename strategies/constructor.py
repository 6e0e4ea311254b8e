"""The type of a recipe's class where it is called to run."""

from typing import Any, Protocol

from strategies.core.base import UserLevelStrategy
from strategies.core.public_facts import PublicFacts
from userdp.accounting import Privacy
from userdp.problems.base import Problem


class Constructor(Protocol):
    """A recipe's class, called to run: its settings are keywords beside those of `UserLevelStrategy`."""

    def __call__(self, problem: Problem, public: PublicFacts, privacy: Privacy, **settings: Any) -> UserLevelStrategy:
        """Make the strategy that runs the recipe of these settings."""
