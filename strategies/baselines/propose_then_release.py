"""Rounds that make a proposal of the sum of what users send, release it privately, and follow what was released."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from strategies import Gathered, Given, Law, Noise, Request, Scheme, Step
from strategies.baselines.peeling import Peeling
from userdp.arrays import Indices, Vector
from userdp.audit import choice_probabilities
from userdp.mechanisms import ExponentialMechanism
from userdp.nodes import Computation
from userdp.noise import Scores
from userdp.sampling import Sampler
from userdp.state import Stateful


class Cohorts(Protocol):
    """The users of each round."""

    def cohort(self, index: int) -> Indices:
        """Return the users of round ``index``."""


@dataclass(frozen=True, kw_only=True)
class ProposeThenRelease(Scheme):
    """A `Scheme` of rounds with one private release each, from which the next model follows."""

    cohorts: Cohorts  # who takes part in each round
    query: Callable[[Any], Computation]  # what users are asked, from the memory
    # from the model and the sum of what users sent to a vector to peel, or scores to choose by, and their bound
    propose: Callable[[Vector, Vector], Scores]
    mechanism: Peeling | ExponentialMechanism  # of the release
    # from the round, the model and what was released to the next model and the round's facts: costs no privacy
    follow: Callable[[int, Vector, Any], tuple[Vector, Mapping[str, float]]]

    def __post_init__(self) -> None:
        if isinstance(self.cohorts, Sampler):  # others draw cohorts within cohorts
            object.__setattr__(self, "sampler", self.cohorts)

    @property
    def law(self) -> Law | None:
        """The law of a choice, for audits; None where a vector is released."""
        mechanism = self.mechanism
        if isinstance(mechanism, Peeling):
            return None
        return lambda values: choice_probabilities(mechanism, self.propose(np.zeros(0), values[-1]).values)

    def ask(self, index: int, memory: Stateful | None) -> Request:
        return Request(self.cohorts.cohort(index), self.query(memory))

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Stateful | None, noise: Noise) -> Step:
        """See `Scheme`; every model is released."""
        proposal, mechanism = self.propose(x, gathered.values), self.mechanism
        release = mechanism.release if isinstance(mechanism, Peeling) else mechanism.choose
        model, facts = self.follow(index, x, release(proposal, noise(0)))
        return Step(model, model, facts)


def bounded_sum(
    given: Given, kinds: tuple[str, str], largest: float, parameters: Mapping[str, float], records: int | None = None
) -> Computation:
    """The sum of users' averages, or of all their samples, whose coordinates nodes hold to ``largest`` each.

    ``kinds`` names the one computation and the other. The clip, above what a user's row can be, lets the server refuse
    sums that cannot be; rows of samples have one where ``records``, the number of them all, is given.
    """
    longest = largest * given.dimension**0.5 * (1 + 1e-9)
    if given.privacy.unit == "user":
        return Computation(kinds[0], "sum", longest, parameters=parameters)
    return Computation(kinds[1], "sum", None if records is None else longest * records, parameters=parameters)
