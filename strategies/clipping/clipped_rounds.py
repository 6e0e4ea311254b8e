"""Rounds that release a noisy sum of clipped user vectors, with one clip for all of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from strategies.clipping.masked_rounds import LOST_FACT, MaskedRounds
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.about import Fact
from strategies.core.clip_facts import CLIP_FACTS
from strategies.core.mean_rounds import MeanRounds, as_is, sampler_numbers
from strategies.core.public_facts import Given
from strategies.core.scheme import Number, Outline
from strategies.core.ways import Course
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

NOTES: Mapping[str, Fact] = {**CLIP_FACTS, **LOST_FACT}
"""Facts of these rounds."""


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

    def sampler(self, given: Given) -> Sampler:
        """The sampler that the settings ask for.

        Raises:
            BadInput: a cohort for allocation, or participations for anything else.
            PopulationTooSmall: fewer users than one cohort.
        """
        if self.sampling == "allocation":
            if self.cohort is not None:
                raise BadInput(
                    f"strategy.cohort = {self.cohort} with sampling = 'allocation': cohorts follow from "
                    "strategy.participations and rounds; set that instead"
                )
            return AllocatedBatches(given.users, self.participations or 1, self.rounds, given.secret_seed)
        if self.participations is not None:
            raise BadInput(
                f"strategy.participations = {self.participations} with sampling = {self.sampling!r}: it is for "
                "sampling = 'allocation'; set strategy.cohort instead"
            )
        cohort = self.cohort or given.users
        return make_sampler(self.sampling, given.users, cohort, self.rounds, given.seed, secret=given.secure)

    def course(self, rate: float, deviation: float, computation: Computation, dimension: int) -> Course:
        """How the model moves by what users compute, with noise of that deviation on each coordinate."""
        local = computation.parameters
        plain = Course(
            steps=self.rounds,
            rate=rate,
            deviation=deviation,
            longest=self.clip_norm,
            local_steps=int(local.get("steps", 1) or local.get("epochs", 1)),
            local_rate=local.get("step_size"),
        )
        return self.followed(plain, dimension)

    def users_needed(self, cohort: int) -> int:
        """The fewest users with which the plan would be accepted."""
        return 1 if self.sampling == "allocation" else cohort


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


def cohort_of(sampler: Sampler) -> int:
    """Users a round, on average, as a plan shows it; at least one."""
    return max(1, round(sampler.expected_batch))


def clipped_rounds(
    given: Given,
    options: ClippedOptions,
    computation: Computation,
    rate: float,
    gradient: Callable[[Vector], Vector] = as_is,
    numbers: Mapping[str, Number] | None = None,
) -> MeanRounds:
    """Gaussian noise for the clip, as the sampler calibrates it; in shares of nodes where the server adds none.

    Args:
        given: what the scheme is made from.
        options: the strategy's settings.
        computation: what users send, clipped to ``options.clip_norm``.
        rate: default step of plain descent.
        gradient: what the server's optimiser follows, from the released mean.
        numbers: of the plan, beyond those that all have.
    """
    sampler, clip = options.sampler(given), options.clip_norm
    if given.privacy.trust == "server":
        mechanism = given.mean_mechanism(sampler, clip)
        return rounds_of(given, options, sampler, mechanism, computation, rate, gradient=gradient, numbers=numbers)
    masked = MaskedRounds.of(given, sampler, clip, given.dimension)
    multiplier = masked.multiplier * masked.louder
    louder = GaussianMechanism(sampler.sensitivity_factor * clip / sampler.expected_batch, multiplier)
    computation = replace(computation, masked=masked.sum(clip))
    numbers = {**(numbers or {}), **masked.numbers}
    plain = rounds_of(given, options, sampler, louder, computation, rate, gradient=gradient, numbers=numbers)
    # Nodes add the noise; whole numbers are added without rounding.
    return replace(plain, mechanism=None, guarantee=masked.guarantee, ledger=masked.ledger, summands=1)


def rounds_of(
    given: Given,
    options: ClippedOptions,
    sampler: Sampler,
    mechanism: GaussianMechanism | LaplaceMechanism,
    computation: Computation,
    rate: float,
    *,
    gradient: Callable[[Vector], Vector] = as_is,
    multiplier: float | None = None,
    noise: float | None = None,
    numbers: Mapping[str, Number] | None = None,
) -> MeanRounds:
    """The scheme of these parts.

    Args:
        given: what the scheme is made from.
        options: the strategy's settings.
        sampler: who takes part.
        mechanism: of a round's mean.
        computation: what users send.
        rate: default step of plain descent.
        gradient: what the server's optimiser follows, from the released mean.
        multiplier: what the sampler calibrated; the mechanism's own noise multiplier if not given.
        noise: expected l2 norm of the noise in ``gradient``, if that is not the mechanism's own.
        numbers: of the plan, beyond those that all have.
    """
    p, rate, cohort = given.dimension, options.rate(rate), cohort_of(sampler)
    noise = mechanism.standard_deviation * math.sqrt(p) if noise is None else noise
    if isinstance(mechanism, LaplaceMechanism):
        multiplier = multiplier or 1 / mechanism.epsilon
        sensitivity: dict[str, Number] = {"l1_sensitivity": mechanism.sensitivity}
    else:
        multiplier = multiplier or mechanism.noise_multiplier
        sensitivity = {"l2_sensitivity": mechanism.l2_sensitivity}
    accounted = given.accounted(sampler, multiplier)
    computation = replace(computation, lengths=computation.masked is None)
    return MeanRounds(
        **accounted,
        outline=Outline(
            rounds=options.rounds,
            cohort=cohort,
            users_needed=options.users_needed(cohort),
            path=options.course(rate, noise / math.sqrt(p), computation, p),
            noise=noise,
            signal=options.clip_norm,
            numbers={
                "clip_norm": options.clip_norm,
                "cohort": cohort,
                "sampling": options.sampling,
                "learning_rate": rate,
                "noise_multiplier": multiplier,
                "noise_deviation": mechanism.standard_deviation,
                **sensitivity,
                **sampler_numbers(sampler, accounted["guarantee"]),
                **(numbers or {}),
            },
        ),
        new_memory=partial(ServerOptimiser, options, rate, p),
        domain=given.problem.domain,
        sampler=sampler,
        query=lambda _: computation,
        divisor=sampler.expected_batch,
        mechanism=mechanism,
        rate=rate,
        clip_norm=options.clip_norm,
        gradient=gradient,
        noise=noise,
    )
