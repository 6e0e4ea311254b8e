"""What a run does to users' data, fixed before any are seen: who takes part, how loud the noise is, what that costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, Self, runtime_checkable

import numpy as np

from userdp.accounting import AnyLedger, Guarantee, Privacy
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.problems.base import Problem
from userdp.sampling import Sampler
from userdp.state import Stateful


def no_memory() -> None:
    """What a server remembers that needs nothing but the model."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The private part of a strategy as one value; families add their samplers, mechanisms, clips and steps.

    All that follows from data reads it and nothing changes it: clip, weights, sampler, noise and accounting cannot
    disagree. `Plan` is what people see of it.

    Attributes:
        guarantee: what all rounds together promise.
        ledger: makes the ledger that the rounds are charged to; not asked where nothing is promised.
        new_memory: makes what the server remembers between rounds, as it is before the first; nothing by default. Its
            class declares what a checkpoint holds.
        check_start: refuses initial models (`BadInput`), beyond those outside the problem's domain.
        summands: vectors that one release adds up at most, which says how sums are rounded; n where it is not given.
        spread: largest norm of such a vector over the sensitivity of the sum (see `userdp.noise.rounding_slack`).
        rounding: how much more a release's sensitivity can grow by rounding, relatively, where it is no such sum.
    """

    guarantee: Guarantee
    ledger: Callable[[Privacy], AnyLedger]
    new_memory: Callable[[], Stateful | None] = no_memory
    check_start: Callable[[Vector], None] | None = None
    summands: int | None = None
    spread: float = 1.0
    rounding: float = 0.0

    def checked_start(self, problem: Problem, x: Vector) -> Vector:
        """(p,) the initial model.

        Raises:
            BadInput: it lies outside the domain, or the scheme refuses it.
        """
        if x.shape != (problem.dimension,) or not np.array_equal(problem.domain.project(x), x):
            raise BadInput(
                f"initial_arrays must hold {problem.dimension} finite numbers within the problem's domain, on "
                "which its certificate was computed"
            )
        if self.check_start is not None:
            self.check_start(x)
        return x


@runtime_checkable
class DiscreteScheme(Protocol):
    """A `Scheme` of rounds that begin with one of finitely many outcomes, which is released: audits look for it."""

    def law(self, values: Sequence[Rows]) -> Vector:
        """(K,) probabilities of the outcomes of a round, from what it and those before it gather: rows or their sum."""


def mean_mechanism(sampler: Sampler, clip_norm: float, privacy: Privacy) -> GaussianMechanism:
    """Of the mean of a cohort's vectors of l2 norm at most ``clip_norm``, with the noise that the sampler calibrates.

    Raises:
        BadInput: the sampler cannot keep to the budget.
    """
    multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
    return GaussianMechanism(sampler.sensitivity_factor * clip_norm / sampler.expected_batch, multiplier)


@dataclass(frozen=True, kw_only=True)
class MeanScheme(Scheme):
    """A `Scheme` of noisy means of clipped user vectors, over the public size of a cohort.

    Attributes:
        sampler: who takes part in each round.
        mechanism: of a round's mean.
    """

    sampler: Sampler
    mechanism: GaussianMechanism | LaplaceMechanism

    @classmethod
    def of(
        cls, sampler: Sampler, clip_norm: float, privacy: Privacy, adversary: str, assumptions: tuple[str, ...]
    ) -> Self:
        """With the Gaussian noise that the sampler calibrates for vectors of l2 norm at most ``clip_norm``.

        Raises:
            BadInput: the sampler cannot keep to the budget.
        """
        mechanism = mean_mechanism(sampler, clip_norm, privacy)
        multiplier = mechanism.noise_multiplier
        return cls(
            guarantee=sampler.guarantee(multiplier, privacy.delta, adversary, assumptions),
            ledger=partial(sampler.ledger, multiplier),
            sampler=sampler,
            mechanism=mechanism,
        )


@dataclass(frozen=True)
class Step:
    """What a round came to.

    Attributes:
        following: (p,) where the next round asks for gradients; private itself only if it is released.
        released: (p,) the newly released model; None if the round releases nothing.
        facts: numbers to keep of the round; exact ones have names that end in ``_private``.
        constant: (p,) the best that is known of the models that predict the same of everybody, released like all that
            it follows from, in the loss's own parameters; None if the round says nothing of it.
    """

    following: Vector
    released: Vector | None
    facts: Mapping[str, float] = field(default_factory=dict)
    constant: Vector | None = None


def no_ledger(privacy: Privacy) -> AnyLedger:
    """The ledger of a scheme that promises nothing: there is none to ask for.

    Raises:
        BadInput: always.
    """
    raise BadInput("no privacy guarantee: there is no budget to charge rounds to")
