"""Strategies that release a noisy sum of clipped user vectors every round, with one clip for all of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS, clip_facts, with_lengths
from strategies.clipping.local_options import of_round
from strategies.clipping.masked_rounds import LOST_FACT, MASKED_MEANINGS, MaskedRounds, masked_in_round
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.core.plan import Number, Plan, sampler_numbers
from strategies.core.scheme import MeanScheme, Step, mean_mechanism
from strategies.core.ways import Course
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.sampling import (
    AllocatedBatches,
    CyclicBatches,
    DisjointBatches,
    FixedSizeBatches,
    PoissonBatches,
    Sampler,
    check_batch,
)

Sampling = Literal["disjoint", "cyclic", "poisson", "fixed_size", "allocation"]

SECRET_COHORTS = (
    "Poisson, fixed-size and allocated cohorts, which must stay secret, come from the operating system too, once a "
    "round; ledgers refuse seeded ones, and an interrupted run cannot go on with an allocation that is gone"
)
"""What becomes of samplers where noise is secure."""


class ClippedOptions(ServerOptions):
    """Settings of every strategy here."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that what each user sends is clipped to.")
    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None,
        ge=1,
        description="Users a round (the expected number for poisson); all of them if not given. For allocation it "
        "follows from participations.",
    )
    sampling: Sampling = Field(
        "disjoint",
        description="disjoint: a new partition each epoch; cyclic: the same one; poisson: a coin for each user, for "
        "adding or removing a user; fixed_size: a random cohort each round; allocation: every user in as many random "
        "rounds, for adding or removing a user and with less noise than poisson. The last three need secret cohorts.",
    )
    participations: int | None = Field(
        None, ge=1, description="Rounds that each user takes part in, for allocation: 1 if not given."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size of the server.")

    def rate(self, default: float) -> float:
        """The step size of the server, where that of plain gradient descent is ``default``."""
        return self.learning_rate or (0.1 if self.server_optimiser == "adam" else default)


def make_sampler(
    sampling: Sampling, users: int, cohort: int, rounds: int, seed: int, *, secret: bool = False
) -> Sampler:
    """The sampler of a name that draws cohorts of a size, with at least ``rounds`` rounds.

    Cohorts that must stay secret come from the operating system instead of the seed if ``secret``.

    Raises:
        PopulationTooSmall: fewer users than one cohort.
    """
    check_batch(cohort, users)
    if sampling == "poisson":
        return PoissonBatches(users, cohort / users, rounds, None if secret else seed)
    if sampling == "fixed_size":
        return FixedSizeBatches(users, cohort, rounds, None if secret else seed)
    kind = CyclicBatches if sampling == "cyclic" else DisjointBatches
    return kind(users, cohort, -(-rounds // (users // cohort)), seed)


def sampler_of(strategy: UserLevelStrategy, options: ClippedOptions) -> Sampler:
    """The sampler that a strategy's options ask for.

    Raises:
        BadInput: a cohort for allocation, or participations for anything else.
        PopulationTooSmall: fewer users than one cohort.
    """
    users = strategy.public.users
    secret = strategy.privacy.noise == "secure"
    if options.sampling == "allocation":
        if options.cohort is not None:
            raise BadInput(
                f"strategy.cohort = {options.cohort} with sampling = 'allocation': cohorts follow from "
                "strategy.participations and rounds; set that instead"
            )
        return AllocatedBatches(users, options.participations or 1, options.rounds, None if secret else strategy.seed)
    if options.participations is not None:
        raise BadInput(
            f"strategy.participations = {options.participations} with sampling = {options.sampling!r}: it is for "
            "sampling = 'allocation'; set strategy.cohort instead"
        )
    return make_sampler(options.sampling, users, options.cohort or users, options.rounds, strategy.seed, secret=secret)


def cohort_of(sampler: Sampler) -> int:
    """Users a round, on average, as a plan shows it; at least one."""
    return max(1, round(sampler.expected_batch))


def course_of(
    options: ClippedOptions, rate: float, deviation: float, computation: Computation, dimension: int
) -> Course:
    """How the model moves by means of what users compute, with noise of that deviation on each coordinate."""
    local = computation.parameters
    plain = Course(
        steps=options.rounds,
        rate=rate,
        deviation=deviation,
        longest=options.clip_norm,
        local_steps=int(local.get("steps", 1) or local.get("epochs", 1)),
        local_rate=local.get("step_size"),
    )
    return options.followed(plain, dimension)


def as_is(released: Vector) -> Vector:
    """The released mean, followed like a gradient."""
    return released


@dataclass(frozen=True, kw_only=True)
class ClippedScheme(MeanScheme):
    """A `MeanScheme` that the server's optimiser follows.

    Attributes:
        noise_multiplier: noise over sensitivity of a round.
        computation: what users send.
        rate: step size of the server.
        gradient: what the server's optimiser follows, from the released mean; costs no privacy.
        noise: l2 norm that the noise of a round's gradient is expected to have.
        numbers: of the plan, beyond those that all have.
    """

    noise_multiplier: float
    computation: Computation
    rate: float
    gradient: Callable[[Vector], Vector] = as_is
    noise: float
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def sensitivity(self) -> dict[str, Number]:
        """That of one round's mean, by the name of its norm."""
        if isinstance(self.mechanism, LaplaceMechanism):
            return {"l1_sensitivity": self.mechanism.sensitivity}
        return {"l2_sensitivity": self.mechanism.l2_sensitivity}


class ClippedStrategy(UserLevelStrategy):
    """A noisy sum of clipped user vectors every round, divided by the public size of a cohort.

    A strategy here defines `_make_scheme` alone.
    """

    with_secure_noise: ClassVar[str] = SECRET_COHORTS
    meanings: ClassVar[Mapping[str, str]] = MASKED_MEANINGS
    notes: ClassVar[Mapping[str, Fact]] = {**CLIP_FACTS, **LOST_FACT}
    options: ClippedOptions
    scheme: ClippedScheme
    memory: ServerOptimiser

    def _gaussian_scheme(
        self,
        computation: Computation,
        rate: float,
        gradient: Callable[[Vector], Vector] = as_is,
        numbers: Mapping[str, Number] | None = None,
    ) -> ClippedScheme:
        """Gaussian noise for the clip, as the sampler calibrates it; in shares of nodes where the server adds none."""
        sampler, clip = sampler_of(self, self.options), self.options.clip_norm
        if self.privacy.trust == "server":
            mechanism = mean_mechanism(sampler, clip, self.privacy)
            return self._scheme_of(
                sampler, mechanism.noise_multiplier, mechanism, computation, rate, gradient, numbers or {}
            )
        masked = MaskedRounds.of(self, sampler, clip, self.problem.dimension)
        multiplier = masked.multiplier * masked.louder
        louder = GaussianMechanism(sampler.sensitivity_factor * clip / sampler.expected_batch, multiplier)
        computation = replace(computation, masked=masked.sum(clip))
        numbers = {**(numbers or {}), **masked.numbers}
        plain = self._scheme_of(sampler, multiplier, louder, computation, rate, gradient, numbers)
        # Whole numbers are added without rounding.
        return replace(plain, guarantee=masked.guarantee, ledger=masked.ledger, summands=1)

    def _scheme_of(
        self,
        sampler: Sampler,
        multiplier: float,
        mechanism: GaussianMechanism | LaplaceMechanism,
        computation: Computation,
        rate: float,
        gradient: Callable[[Vector], Vector],
        numbers: Mapping[str, Number],
    ) -> ClippedScheme:
        """The scheme of these parts; ``rate`` is the default step of plain descent."""
        options, p = self.options, self.problem.dimension
        rate = options.rate(rate)
        return ClippedScheme(
            guarantee=sampler.guarantee(multiplier, self.privacy.delta, self.adversary, self.wire.clipping),
            ledger=partial(sampler.ledger, multiplier),
            new_memory=partial(ServerOptimiser, options, rate, p),
            sampler=sampler,
            noise_multiplier=multiplier,
            mechanism=mechanism,
            computation=computation,
            rate=rate,
            gradient=gradient,
            noise=mechanism.standard_deviation * math.sqrt(p),
            numbers=numbers,
        )

    def _make_plan(self) -> Plan:
        options, scheme = self.options, self.scheme
        cohort = cohort_of(scheme.sampler)
        numbers: dict[str, Number] = {
            "clip_norm": options.clip_norm,
            "cohort": cohort,
            "sampling": options.sampling,
            "learning_rate": scheme.rate,
            "noise_multiplier": scheme.noise_multiplier,
            "noise_deviation": scheme.mechanism.standard_deviation,
            **scheme.sensitivity,
            **sampler_numbers(scheme.sampler, scheme.guarantee),
        }
        deviation = scheme.noise / math.sqrt(self.problem.dimension)
        return self._planned(
            course_of(options, scheme.rate, deviation, scheme.computation, self.problem.dimension),
            rounds=options.rounds,
            cohort=cohort,
            users_needed=1 if options.sampling == "allocation" else cohort,
            noise=scheme.noise,
            signal=options.clip_norm,
            numbers=numbers | dict(scheme.numbers),
        )

    def _ask(self, index: int) -> Request:
        computation = masked_in_round(self, of_round(self.scheme.computation, self.seed, index), index)
        return Request(self.scheme.sampler.cohort(index), with_lengths(self, computation))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        if gathered.lost:
            return Step(x, x, {"lost": 1.0})
        mean = gathered.values / scheme.sampler.expected_batch
        noisy = scheme.computation.masked is not None  # nodes saw to it
        released = mean if noisy else scheme.mechanism.release(mean, self._noise(index))
        deviation = gathered.noise / scheme.sampler.expected_batch if noisy else scheme.mechanism.standard_deviation
        x = self.problem.domain.project(self.memory.step(x, scheme.gradient(released), deviation))
        facts = {"noise_deviation": deviation}
        return Step(x, x, facts | clip_facts(gathered, self.options.clip_norm, mean, scheme.noise))
