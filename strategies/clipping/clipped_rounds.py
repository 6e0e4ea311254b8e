"""Rounds that release a noisy sum of clipped user vectors, with one clip for all of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from strategies.clipping.masked_rounds import MaskedRounds
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.clip_facts import CLIP_FACTS
from strategies.core.mean_rounds import MeanRounds, as_is, sampler_numbers
from strategies.core.noise_forecast import NoisySteps
from strategies.core.public_facts import Given, mean_mechanism
from strategies.core.scheme import Number, Outline
from userdp.accounting import Guarantee
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
    "round; ledgers refuse seeded ones, and an interrupted run cannot resume with an allocation that is gone"
)
"""The effect of secure noise on samplers."""

NOTES = CLIP_FACTS  # The facts of these rounds, beyond those of all strategies


class ClippedOptions(ServerOptions):
    """Settings of strategies of clipped rounds."""

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
        """Return the step size of the server; ``default`` is that of plain gradient descent."""
        return self.learning_rate or (0.1 if self.server_optimiser == "adam" else default)

    def sampler(self, given: Given) -> Sampler:
        """Make the sampler of these settings.

        Raises `BadInput`: a cohort for allocation, or participations for anything else. Raises `PopulationTooSmall`:
        fewer users than one cohort.
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

    def outline(
        self,
        sampler: Sampler,
        guarantee: Guarantee,
        mechanism: GaussianMechanism | LaplaceMechanism,
        computation: Computation,
        dimension: int,
        *,
        rate: float,
        multiplier: float,
        noise: float,
        deviation: float,
        numbers: Mapping[str, Number],
    ) -> Outline:
        """Return the scheme in numbers; ``numbers`` are those beyond the ones that all such strategies have.

        ``multiplier`` is noise over sensitivity; ``noise`` the expected l2 norm of the noise that is followed, and
        ``deviation`` its standard deviation in each coordinate.
        """
        local, cohort = computation.parameters, max(1, round(sampler.expected_batch))
        steps = NoisySteps(
            steps=self.rounds,
            rate=rate,
            deviation=deviation,
            longest=self.clip_norm,
            local_steps=int(local.get("steps", 1) or local.get("epochs", 1)),
            local_rate=local.get("step_size"),
        )
        if isinstance(mechanism, LaplaceMechanism):
            sensitivity: dict[str, Number] = {"l1_sensitivity": mechanism.sensitivity}
        else:
            sensitivity = {"l2_sensitivity": mechanism.l2_sensitivity}
        return Outline(
            rounds=self.rounds,
            cohort=cohort,
            users_needed=1 if self.sampling == "allocation" else cohort,
            path=self.followed(steps, dimension),
            noise=noise,
            signal=self.clip_norm,
            numbers={
                "clip_norm": self.clip_norm,
                "cohort": cohort,
                "sampling": self.sampling,
                "learning_rate": rate,
                "noise_multiplier": multiplier,
                "noise_deviation": mechanism.standard_deviation,
                **sensitivity,
                **sampler_numbers(sampler, guarantee),
                **numbers,
            },
        )


def make_sampler(
    sampling: Sampling, users: int, cohort: int, rounds: int, seed: int, *, secret: bool = False
) -> Sampler:
    """Make a sampler that draws cohorts of a size, with at least ``rounds`` rounds.

    Cohorts that must stay secret come from the operating system instead of the seed if ``secret``. Raises
    `PopulationTooSmall`: fewer users than one cohort.
    """
    check_batch(cohort, users)
    if sampling == "poisson":
        return PoissonBatches(users, cohort / users, rounds, None if secret else seed)
    if sampling == "fixed_size":
        return FixedSizeBatches(users, cohort, rounds, None if secret else seed)
    kind = CyclicBatches if sampling == "cyclic" else DisjointBatches
    return kind(users, cohort, -(-rounds // (users // cohort)), seed)


def clipped_rounds(
    given: Given,
    options: ClippedOptions,
    computation: Computation,
    rate: float,
    gradient: Callable[[Vector], Vector] = as_is,
    numbers: Mapping[str, Number] | None = None,
) -> MeanRounds:
    """Return rounds with Gaussian noise for the clip, as the sampler calibrates it; or with masked sums.

    Args:
        given: with the budget.
        options: the strategy's settings.
        computation: of the users, clipped to ``options.clip_norm``.
        rate: default step of plain descent.
        gradient: from the released mean to the vector that the server's optimiser follows.
        numbers: of the plan, beyond those that all such strategies have.
    """
    sampler, clip = options.sampler(given), options.clip_norm
    if given.privacy.trust == "server":
        mechanism = given.mean_mechanism(sampler, clip)
        multiplier = mechanism.noise_multiplier
        return rounds_of(
            given, options, sampler, mechanism, multiplier, computation, rate, gradient=gradient, numbers=numbers
        )
    masked = MaskedRounds.of(given, sampler, clip, given.dimension)
    multiplier = masked.multiplier * masked.louder
    louder = mean_mechanism(sampler, clip, multiplier)
    computation = replace(computation, masked=masked.sum(clip))
    numbers = {**(numbers or {}), **masked.numbers}
    plain = rounds_of(
        given, options, sampler, louder, multiplier, computation, rate, gradient=gradient, numbers=numbers
    )
    return replace(plain, mechanism=None, **masked.accounted)  # nodes add the noise


def rounds_of(
    given: Given,
    options: ClippedOptions,
    sampler: Sampler,
    mechanism: GaussianMechanism | LaplaceMechanism,
    multiplier: float,
    computation: Computation,
    rate: float,
    *,
    gradient: Callable[[Vector], Vector] = as_is,
    noise: float | None = None,
    numbers: Mapping[str, Number] | None = None,
) -> MeanRounds:
    """Return the scheme of these parts, as `clipped_rounds` for a mechanism of a round's mean.

    ``multiplier`` is the noise over sensitivity that the sampler accounts, and ``noise`` the expected l2 norm of the
    noise in ``gradient``, if that is not the mechanism's own.
    """
    p, rate = given.dimension, options.rate(rate)
    noise = mechanism.standard_deviation * math.sqrt(p) if noise is None else noise
    accounted = given.accounted(sampler, multiplier)
    computation = replace(computation, lengths=computation.masked is None)
    return MeanRounds(
        **accounted,
        outline=options.outline(
            sampler,
            accounted["guarantee"],
            mechanism,
            computation,
            p,
            rate=rate,
            multiplier=multiplier,
            noise=noise,
            deviation=noise / math.sqrt(p),
            numbers=numbers or {},
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
