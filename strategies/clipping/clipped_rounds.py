"""Rounds that release a noisy sum of clipped user vectors, with one clip for all of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from strategies.clipping.masked_rounds import MaskedRounds
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.mean_rounds import MeanRounds, as_is, sampler_numbers
from strategies.core.noise_forecast import NoisySteps
from strategies.core.public_facts import Given, mean_mechanism
from strategies.core.scheme import Number, Outline
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
        users, cohort, rounds = given.users, self.cohort or given.users, self.rounds
        check_batch(cohort, users)
        if self.sampling == "poisson":
            return PoissonBatches(users, cohort / users, rounds, given.secret_seed)
        if self.sampling == "fixed_size":
            return FixedSizeBatches(users, cohort, rounds, given.secret_seed)
        kind = CyclicBatches if self.sampling == "cyclic" else DisjointBatches
        return kind(users, cohort, -(-rounds // (users // cohort)), given.seed)

    def parts(
        self,
        given: Given,
        sampler: Sampler,
        mechanism: GaussianMechanism | LaplaceMechanism,
        multiplier: float,
        computation: Computation,
        rate: float,
        *,
        noise: float,
        numbers: Mapping[str, Number],
        accounted: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the fields of a scheme that do not depend on how rounds release and follow their means.

        ``multiplier`` is noise over sensitivity, ``noise`` the expected l2 norm of the noise that is followed, and
        ``numbers`` are those of the plan beyond the ones that all such strategies have.
        """
        local, cohort = computation.parameters, max(1, round(sampler.expected_batch))
        steps = NoisySteps(
            steps=self.rounds,
            rate=rate,
            deviation=noise / math.sqrt(given.dimension),
            longest=self.clip_norm,
            local_steps=int(local.get("steps", 1) or local.get("epochs", 1)),
            local_rate=local.get("step_size"),
        )
        if isinstance(mechanism, LaplaceMechanism):
            sensitivity: dict[str, Number] = {"l1_sensitivity": mechanism.sensitivity}
        else:
            sensitivity = {"l2_sensitivity": mechanism.l2_sensitivity}
        outline = Outline(
            rounds=self.rounds,
            cohort=cohort,
            users_needed=1 if self.sampling == "allocation" else cohort,
            path=self.followed(steps, given.dimension),
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
                **sampler_numbers(sampler, accounted["guarantee"]),
                **numbers,
            },
        )
        return {**accounted, "outline": outline, "domain": given.problem.domain, "sampler": sampler}


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
    sampler, clip, numbers = options.sampler(given), options.clip_norm, numbers or {}
    if given.privacy.trust == "server":
        mechanism = given.mean_mechanism(sampler, clip)
        parts = (sampler, mechanism, mechanism.noise_multiplier, computation, rate)
        return rounds_of(given, options, *parts, gradient=gradient, numbers=numbers)
    masked = MaskedRounds.of(given, sampler, clip, given.dimension)
    multiplier, computation = masked.multiplier * masked.louder, replace(computation, masked=masked.sum(clip))
    parts = (sampler, mean_mechanism(sampler, clip, multiplier), multiplier, computation, rate)
    numbers = {**numbers, **masked.numbers}
    plain = rounds_of(given, options, *parts, gradient=gradient, numbers=numbers, accounted=masked.accounted)
    return replace(plain, mechanism=None)  # nodes add the noise


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
    numbers: Mapping[str, Number],
    accounted: Mapping[str, Any] | None = None,
) -> MeanRounds:
    """Return the scheme of these parts, as `clipped_rounds` for a mechanism of a round's mean.

    ``multiplier`` is the noise over sensitivity that the sampler accounts, and ``noise`` the expected l2 norm of the
    noise in ``gradient``, if that is not the mechanism's own.
    """
    p, rate = given.dimension, options.rate(rate)
    noise = mechanism.standard_deviation * math.sqrt(p) if noise is None else noise
    accounted = accounted or given.accounted(sampler, multiplier)
    computation, parts = replace(computation, lengths=computation.masked is None), (sampler, mechanism, multiplier)
    return MeanRounds(
        **options.parts(given, *parts, computation, rate, noise=noise, numbers=numbers, accounted=accounted),
        new_memory=partial(ServerOptimiser, options, rate, p),
        query=lambda _: computation,
        divisor=sampler.expected_batch,
        mechanism=mechanism,
        rate=rate,
        clip_norm=options.clip_norm,
        gradient=gradient,
        noise=noise,
    )
