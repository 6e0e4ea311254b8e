"""Clipped rounds whose clip follows a quantile of the users' norms, learned privately on the way."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.clipping.clipped_rounds import NOTES, SECRET_COHORTS, ClippedOptions, cohort_of
from strategies.clipping.local_options import UpdateOptions
from strategies.clipping.masked_rounds import MASKED_MEANINGS, MaskedRounds
from strategies.clipping.server_optimiser import ServerOptimiser
from strategies.core.about import About, Fact
from strategies.core.clip_facts import clip_facts
from strategies.core.mean_rounds import as_is, check_covered, sampler_numbers
from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.scheme import Outline, Scheme
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.masking.sums import MaskedSum
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.problems import Box
from userdp.sampling import Sampler
from userdp.state import Stateful

_COUNT_SHARE = 20
"""The paper's noise of the count: a twentieth of the cohort."""


@dataclass
class MovingClip(Stateful):
    """What the server remembers: the clip in force, and what its optimiser does."""

    remembered: ClassVar[tuple[str, ...]] = ("clip",)
    parts: ClassVar[tuple[str, ...]] = ("optimiser",)
    clip: float
    optimiser: ServerOptimiser


@dataclass(frozen=True)
class ClipPath:
    """How the clip moves, on released values.

    Attributes:
        low: smallest clip.
        high: largest clip.
        rate: how fast it moves, in logarithms.
        quantile: share of users that it should leave unclipped.
    """

    low: float
    high: float
    rate: float
    quantile: float

    def after(self, clip: float, unclipped: float) -> float:
        """The next clip, from the released share of unclipped users."""
        moved = math.log(clip) - self.rate * (unclipped - self.quantile)
        return math.exp(min(max(moved, math.log(self.low)), math.log(self.high)))


@dataclass(frozen=True, kw_only=True)
class AdaptiveScheme(Scheme):
    """A `Scheme` whose clip moves: mechanisms for any clip.

    Attributes:
        domain: of models.
        sampler: who takes part in each round.
        computation: what users are asked in the first round.
        gradient: what is followed, from the released mean.
        noise_multiplier: z, of a round.
        sum_multiplier: z_u, of its sum alone.
        count_mechanism: of the share of unclipped users.
        count_noise: deviation of the noise on their number.
        path: of the clip.
        rate: step size of the server.
        masked: rounds whose sums nodes make noisy, louder than what is priced; None where the server does.
    """

    domain: Box
    sampler: Sampler
    computation: Computation
    gradient: Callable[[Vector], Vector]
    noise_multiplier: float
    sum_multiplier: float
    count_mechanism: GaussianMechanism
    count_noise: float
    path: ClipPath
    rate: float
    masked: MaskedRounds | None = None

    def mechanism(self, clip: float) -> GaussianMechanism:
        """Of the mean of one cohort's vectors of norm at most ``clip``."""
        sensitivity = self.sampler.sensitivity_factor * clip / self.sampler.expected_batch
        return GaussianMechanism(sensitivity, self.sum_multiplier)

    def masked_sum(self, clip: float) -> MaskedSum | None:
        """Of vectors of norm at most ``clip`` and users' numbers, so weighted that one deviation fits both."""
        if self.masked is None:
            return None
        weight = self.sampler.sensitivity_factor * clip * self.sum_multiplier / self.count_noise
        return self.masked.sum(math.hypot(clip, weight / 2), weight)

    def ask(self, index: int, memory: MovingClip) -> Request:
        """See `Scheme`."""
        masked = self.masked_sum(memory.clip)
        asked = replace(self.computation, clip_norm=memory.clip, masked=masked, lengths=masked is None)
        if masked is None:
            check_covered(asked, self.mechanism(memory.clip), self.sampler.expected_batch, self.guarantee.relation)
        return Request(self.sampler.cohort(index), asked)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: MovingClip, noise: Noise) -> Step:
        """See `Scheme`."""
        clip = memory.clip
        if gathered.lost:
            return Step(x, x, {"lost": 1.0, "clip_norm": clip})
        mechanism, means = self.mechanism(clip), gathered.values / self.sampler.expected_batch
        released, half = means[:-1], means[-1:]
        deviation = gathered.noise / self.sampler.expected_batch
        if self.masked is None:  # else nodes saw to it
            deviation = mechanism.standard_deviation
            released = mechanism.release(released, noise(0))
            half = self.count_mechanism.release(half, noise(1))
        share = 0.5 + float(half[0])
        facts = {"noise_deviation": deviation, "clip_norm": clip, "unclipped_share": share}
        following = self.domain.project(memory.optimiser.step(x, self.gradient(released), deviation))
        memory.clip = self.path.after(clip, share)
        return Step(following, following, facts | clip_facts(gathered, clip, means[:-1], deviation * math.sqrt(len(x))))


class AdaptiveClipping(Recipe, ClippedOptions, UpdateOptions, PreparedOptions, restates={"clip_norm", "learning_rate"}):
    """Clipped mean of user vectors with noise; the clip moves geometrically towards a quantile of their norms.

    Round t clips to ``C_t`` and releases, with ``b_i = 1`` for users whose norm is at most ``C_t`` (UNCLIPPED),
    ``share = 1/2 + (sum (b_i - 1/2) + N(0, count_noise^2)) / cohort``; then
    ``C_{t+1} = C_t exp(-clip_rate (share - quantile))``, held in public bounds.

    *Formal guarantees.* *Claim.* That of `dp_fed_sgd`. *Why.* Unit: one whole user; relation: replace-one with n
    public, s = 2 (add-or-remove for poisson and allocation, s = 1). Given what was released before, ``C_t`` is a
    constant. One user moves the sum of clipped vectors by at most ``s C_t`` and the sum of ``b_i - 1/2`` by at most
    ``s / 2``, at worst both at once. Noise ``z_u s C_t`` on the first and ``count_noise = z_b s / 2`` on the second
    make a round ONE Gaussian mechanism of multiplier z with ``z^-2 = z_u^-2 + z_b^-2``: divide each by its noise and
    add the squared moves. So ``z_u = (z^-2 - (2 count_noise / s)^-2)^(-1/2)``, with z calibrated by the sampler. The
    noise of a round is calibrated to the clip in force in it. A user who does not answer adds nothing to either sum;
    the divisor is public. Every iterate and every clip is released; the server is trusted.

    With ``privacy.trust = "sum"`` nodes send one masked row for both sums: the clipped vector, then ``w_t (b_i - 1/2)``
    with ``w_t = z_u s C_t / count_noise``, public before the round. Such a row is at most ``L_t = sqrt(C_t^2 + w_t^2 /
    4)`` long, so one user moves the sum of rows by at most ``s L_t``, and noise ``z s L_t`` on every coordinate makes
    the round a mechanism of multiplier z at the price of `userdp.masking.sums.MaskedSum`. As ``L_t = C_t z_u / z``,
    this is the noise ``z_u s C_t`` of the first sum and, over ``w_t``, the ``count_noise`` of the second. A round in
    which a node fell silent releases nothing, and leaves the clip where it is.

    *Assumptions.* Those of `dp_fed_sgd`.
    """

    about: ClassVar[About] = About(
        name="adaptive_clipping",
        summary_line="clipped mean with noise whose clip follows a private quantile of users' norms",
        family="clipping",
        masked=True,
        cost="node O(steps N d), one sum of d + 1 numbers up; server O(K d)",
        paper="Andrew, Thakkar, McMahan, Ramaswamy 2021",
        with_secure_noise=SECRET_COHORTS,
        example={"rounds": 3},
        meanings={
            "local_steps": "gradient steps of each user on its own data",
            "local_rate": "step size of each user",
            "clip_low": "smallest clip",
            "clip_high": "largest clip",
            "quantile": "share of users that the clip should leave unclipped",
            "count_noise": "standard deviation of the noise on the number of unclipped users",
            "sum_multiplier": "noise over sensitivity of the sum of what users send",
            **MASKED_MEANINGS,
        },
        notes={
            "clip_norm": Fact("noised", "clip of the round: planned, or moved by released values"),
            "unclipped_share": Fact("noised", "share of unclipped users, with noise"),
            **NOTES,
        },
    )

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that what each user sends is clipped to in round one.")
    clip_low: float | None = Field(None, gt=0, description="Smallest clip; a thousandth of clip_norm if not given.")
    clip_high: float | None = Field(None, gt=0, description="Largest clip; a thousand clip_norm if not given.")
    quantile: float = Field(0.5, ge=0, le=1, description="Share of users that the clip should leave unclipped.")
    clip_rate: float = Field(0.2, gt=0, description="How fast the clip moves, in logarithms.")
    count_noise: float | None = Field(
        None,
        gt=0,
        description="Deviation of the noise on the number of unclipped users; a twentieth of the cohort (more, "
        "where the budget asks for it) if not given.",
    )
    learning_rate: float | None = Field(
        None, gt=0, description="Step size; default 1 / smoothness or 0.5 for gradients, 1 for updates; 0.1 for adam."
    )
    found_by_preparation: ClassVar[tuple[str, ...]] = (
        "clip_norm",
        "clip_low",
        "clip_high",
        "local_steps",
        "local_epochs",
        "learning_rate",
    )

    def found(self, found: Found) -> dict[str, float]:
        """The first clip, of gradients, and the step of plain descent."""
        steps = {} if self.server_optimiser == "adam" else found.steps(self.rounds)
        return {"clip_norm": found.clip(self.rounds), **steps}

    def scheme(self, given: Given) -> AdaptiveScheme:
        """See `Recipe`."""
        sampler, privacy, trains = self.sampler(given), given.privacy, self.trains
        if not trains:
            self.check_untrained()
        path, masked = self._path(), None
        if privacy.trust == "sum":
            masked = MaskedRounds.of(given, sampler, self.clip_norm, given.dimension + 1)
        multiplier = sampler.calibrate(privacy.epsilon, privacy.delta) if masked is None else masked.multiplier
        count_noise, count_multiplier = self._count_noise(sampler, multiplier)
        rate = self.rate(1.0 if trains else self.local_rate or given.default_step)
        louder = 1.0 if masked is None else masked.louder
        accounted = given.accounted(sampler, multiplier)
        if masked is not None:  # whole numbers are added without rounding
            accounted = {"guarantee": masked.guarantee, "ledger": masked.ledger, "summands": 1}
        made = AdaptiveScheme(
            **accounted,
            outline=Outline(rounds=self.rounds, cohort=cohort_of(sampler), users_needed=1),
            new_memory=lambda: MovingClip(self.clip_norm, ServerOptimiser(self, rate, given.dimension)),
            domain=given.problem.domain,
            sampler=sampler,
            computation=self._computation(given),
            gradient=np.negative if trains else as_is,
            noise_multiplier=multiplier * louder,
            sum_multiplier=float((multiplier**-2 - count_multiplier**-2) ** -0.5) * louder,
            count_mechanism=GaussianMechanism(
                sampler.sensitivity_factor / 2 / sampler.expected_batch, count_multiplier
            ),
            count_noise=count_noise * louder,
            path=path,
            rate=rate,
            masked=masked,
        )
        for clip in (path.low, path.high):  # the clip may not move to where there is no grid
            made.masked_sum(clip)
        return replace(made, outline=self._outline(made, given.dimension))

    def _path(self) -> ClipPath:
        """How the clip moves.

        Raises:
            BadInput: it would start outside its bounds.
        """
        low, high = self.clip_low or self.clip_norm / 1e3, self.clip_high or self.clip_norm * 1e3
        if not low <= self.clip_norm <= high:
            raise BadInput(
                f"strategy.clip_norm = {self.clip_norm:g} lies outside strategy.clip_low = {low:g} to "
                f"strategy.clip_high = {high:g}: change one of them"
            )
        return ClipPath(low, high, self.clip_rate, self.quantile)

    def _count_noise(self, sampler: Sampler, multiplier: float) -> tuple[float, float]:
        """Deviation of the noise on the number of unclipped users, and that over its sensitivity."""
        factor = sampler.sensitivity_factor
        # Where a twentieth of the cohort is too little, twice the least: the sum then gets 1.15 times its noise.
        noise = self.count_noise or max(sampler.expected_batch / _COUNT_SHARE, factor * multiplier)
        if 2 * noise / factor <= multiplier:
            raise BadInput(
                f"strategy.count_noise = {noise:g} alone spends the budget: it must exceed "
                f"{factor * multiplier / 2:.4g}; leave it out, or raise it"
            )
        return noise, 2 * noise / factor

    def _computation(self, given: Given) -> Computation:
        """What users send: a gradient, or an update, and whether the clip binds."""
        if not self.trains:
            return Computation(
                "user_gradient", reduce="sum", clip_norm=self.clip_norm, statistic="unclipped", lengths=True
            )
        parameters = self.local_training(1, given.default_step).parameters()
        return Computation(
            "local_update", "sum", self.clip_norm, parameters=parameters, statistic="unclipped", lengths=True
        )

    def _outline(self, scheme: AdaptiveScheme, p: int) -> Outline:
        cohort, mechanism = cohort_of(scheme.sampler), scheme.mechanism(self.clip_norm)
        deviation = mechanism.standard_deviation
        return Outline(
            path=self.course(scheme.rate, deviation, scheme.computation, p),
            rounds=self.rounds,
            cohort=cohort,
            users_needed=self.users_needed(cohort),
            noise=deviation * math.sqrt(p),
            signal=self.clip_norm,
            numbers={
                "clip_norm": self.clip_norm,
                "cohort": cohort,
                "sampling": self.sampling,
                "learning_rate": scheme.rate,
                "noise_multiplier": scheme.noise_multiplier,
                "noise_deviation": deviation,
                "l2_sensitivity": mechanism.l2_sensitivity,
                **sampler_numbers(scheme.sampler, scheme.guarantee),
                "clip_low": scheme.path.low,
                "clip_high": scheme.path.high,
                "quantile": self.quantile,
                "count_noise": scheme.count_noise,
                "sum_multiplier": scheme.sum_multiplier,
                **({} if scheme.masked is None else scheme.masked.numbers),
            },
        )
