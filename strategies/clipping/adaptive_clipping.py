"""Clipped rounds whose clip follows a private quantile of the users' norms."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS, clip_facts
from strategies.clipping.clipped_rounds import ClippedOptions, MaskedRounds
from strategies.clipping.cohort_options import SECRET_COHORTS, NoisyMean
from strategies.clipping.local_options import UpdateOptions
from strategies.clipping.server_optimiser import ServerOptimiser
from strategies.core.about import About
from strategies.core.mean_rounds import as_is, negative
from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.results import Noise, Step
from strategies.core.scheme import Number, Outline, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.masking.sums import MaskedSum
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.nodes.statistics import OCTAVES, median_length, outside
from userdp.problems import Box
from userdp.sampling import Sampler
from userdp.state import Stateful

_CERTAIN = 4.0  # Deviations of the noise by which few users are told from many
_OF_THE_CLIP = ("clip_norm", "noise_deviation", "l2_sensitivity")  # A plan's numbers in proportion to the clip

_COUNT_SHARE = 20  # The paper's noise of the count: a twentieth of the cohort


@dataclass
class MovingClip(Stateful):
    """The server's memory: the clip in force, 0 until it is found, and its optimiser."""

    remembered: ClassVar[tuple[str, ...]] = ("clip",)
    parts: ClassVar[tuple[str, ...]] = ("optimiser",)
    clip: float
    optimiser: ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class AdaptiveScheme(Scheme):
    """A `Scheme` whose clip moves: mechanisms for any clip."""

    domain: Box
    sampler: Sampler
    computation: Computation  # of the users, in the first round
    gradient: Callable[[int, Vector], Vector]  # from a round and the released mean to the vector that is followed
    multiplier: float  # z, of all that a round releases
    sum_multiplier: float  # z_u, of a round's sum
    count_mechanism: GaussianMechanism  # of the share of unclipped users
    count_noise: float  # deviation of the noise on their number
    bounds: tuple[float, float]  # of the clip
    options: "AdaptiveClipping"
    masked: MaskedRounds | None = None  # rounds whose sums nodes make noisy; None where the server adds the noise

    def mechanism(self, clip: float) -> GaussianMechanism:
        """Return the mechanism of the mean of one cohort's vectors of norm at most ``clip``."""
        return self.sampler.mean_mechanism(clip, self.sum_multiplier)

    def masked_sum(self, clip: float) -> MaskedSum | None:
        """Return the sum of vectors of norm at most ``clip`` and of numbers, weighted to fit one deviation."""
        if self.masked is None:
            return None
        weight = self.sampler.sensitivity_factor * clip * self.sum_multiplier / self.count_noise
        return self.masked.sum(math.hypot(clip, weight / 2), weight)

    @property
    def found_by(self) -> GaussianMechanism:
        """The mechanism of the shares of users in each octave; two octaves of a user are sqrt(2) apart."""
        reach = math.sqrt(0.5) if self.sampler.relation == "replace_one" and not self.sampler.secret else 1.0
        return self.sampler.mean_mechanism(reach, self.multiplier)

    def _covered(self, asked: Computation, mechanism: GaussianMechanism) -> Computation:
        """Return a computation whose noise the server adds, once the mechanism has enough."""
        check_covered(asked, mechanism, self.sampler.expected_batch, self.price.guarantee.relation)
        return asked

    def _ask_octaves(self) -> Computation:
        masked = None if self.masked is None else self.masked.sum(1.0)
        asked = replace(
            self.computation, name="update_octaves", clip_norm=1.0, statistic=None, masked=masked, lengths=False
        )
        return asked if masked is not None else self._covered(asked, self.found_by)

    def _find(self, x: Vector, gathered: Gathered, memory: MovingClip, noise: Noise) -> Step:
        """Set the clip to the median length; the model stays, and is no part of an average.

        Where nobody answered, noise alone would choose the clip: the next round asks again.
        """
        if gathered.lost or gathered.skipped:
            return Step(x, x, {"lost": 1.0})
        shares, deviation = gathered.values / self.sampler.expected_batch, gathered.noise / self.sampler.expected_batch
        if self.masked is None:
            shares, deviation = self.found_by.release(shares, noise(0)), self.found_by.standard_deviation
        if outside(shares) > _CERTAIN * deviation:
            raise RunFailed(
                f"most updates are {'longer than 2^20' if shares[-1] > shares[0] else 'shorter than 2^-20'}, by noisy "
                "shares of users, so that the search finds no clip: change the clients' learning rate or the model's "
                "units, or give a clip of your own, to DropInAdaptiveClipping or as strategy.clip_norm"
            )
        low, high = self.bounds
        memory.clip = min(max(median_length(shares), low), high)
        return Step(x, x, {"noise_deviation": deviation, "clip_norm": memory.clip})

    def ask(self, index: int, memory: MovingClip) -> Request:
        if not memory.clip:
            return Request(self.sampler.cohort(index), self._ask_octaves())
        masked = self.masked_sum(memory.clip)
        asked = replace(self.computation, clip_norm=memory.clip, masked=masked, lengths=masked is None)
        asked = asked if masked is not None else self._covered(asked, self.mechanism(memory.clip))
        return Request(self.sampler.cohort(index), asked)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: MovingClip, noise: Noise) -> Step:
        clip = memory.clip
        if not clip:
            return self._find(x, gathered, memory, noise)
        if gathered.lost:
            return Step(*memory.optimiser.output(x, x), {"lost": 1.0, "clip_norm": clip})
        mechanism, means = self.mechanism(clip), gathered.values / self.sampler.expected_batch
        released, half = means[:-1], means[-1:]
        deviation = gathered.noise / self.sampler.expected_batch
        if self.masked is None:  # else nodes added the noise
            deviation = mechanism.standard_deviation
            released = mechanism.release(released, noise(0))
            half = self.count_mechanism.release(half, noise(1))
        share = 0.5 + float(half[0])
        facts = {"noise_deviation": deviation, "clip_norm": clip, "unclipped_share": share}
        moved = self.domain.project(memory.optimiser.step(x, self.gradient(index, released), deviation))
        logarithm = math.log(clip) - self.options.clip_rate * (share - self.options.quantile)
        low, high = self.bounds
        memory.clip = math.exp(min(max(logarithm, math.log(low)), math.log(high)))
        facts |= clip_facts(gathered, clip, means[:-1], deviation * math.sqrt(len(x)))
        return Step(*memory.optimiser.output(x, moved), facts)


class AdaptiveClipping(Recipe, ClippedOptions, UpdateOptions, PreparedOptions, restates={"clip_norm", "learning_rate"}):
    """Clipped mean of user vectors with noise; the clip moves geometrically towards a quantile of their norms.

    Round t clips to ``C_t`` and releases, with ``b_i = 1`` for users whose norm is at most ``C_t`` (UNCLIPPED),
    ``share = 1/2 + (sum (b_i - 1/2) + N(0, count_noise^2)) / cohort``; then
    ``C_{t+1} = C_t exp(-clip_rate (share - quantile))``, held in public bounds.

    *Formal guarantees.* *Claim.* That of `dp_fed_sgd`. *Why.* Unit: one whole user; relation: replace-one with n
    public, s = 2 (add-or-remove for poisson and allocation unless set, s = 1). Given what was released before, ``C_t``
    is a constant. One user moves the sum of clipped vectors by at most ``s C_t`` and the sum of ``b_i - 1/2`` by at
    most ``s / 2``, at worst both at once. Noise ``z_u s C_t`` on the first and ``count_noise = z_b s / 2`` on the
    second make a round ONE Gaussian mechanism of multiplier z with ``z^-2 = z_u^-2 + z_b^-2``: divide each by its noise
    and add the squared moves. Both together are one row, over its noise no longer than ``1 / (s z)``, as secret cohorts
    ask. So ``z_u = (z^-2 -
    (2 count_noise / s)^-2)^(-1/2)``, with z calibrated by the sampler. The noise of a round is calibrated to the clip
    in force in it. A user who does not answer adds nothing to either sum; the divisor is public. Every iterate and
    every clip is released; the server is trusted.

    With ``privacy.trust = "sum"`` nodes send one masked row for both sums: the clipped vector, then ``w_t (b_i - 1/2)``
    with ``w_t = z_u s C_t / count_noise``, public before the round. Such a row is at most ``L_t = sqrt(C_t^2 + w_t^2 /
    4)`` long, so one user moves the sum of rows by at most ``s L_t``, and noise ``z s L_t`` on every coordinate makes
    the round a mechanism of multiplier z at the price of `userdp.masking.sums.MaskedSum`. As ``L_t = C_t z_u / z``,
    this is the noise ``z_u s C_t`` of the first sum and, over ``w_t``, the ``count_noise`` of the second. A round in
    which too many nodes fell silent releases nothing, and leaves the clip where it is.

    With ``find_clip`` the first round, or the first that no silent node loses, moves no model: a user who trains sends
    a one in the octave of its update's length, from 2^-20 to 2^20. Such rows are 1 long and at most sqrt(2) apart, so
    one user moves their sum by sqrt(2), or by 1 if it is added or removed, and noise z times that makes the round a
    Gaussian mechanism of the same multiplier. (Where cohorts are secret, noise is that for a move of s, and a row no
    longer than ``1 / (s z)`` over it; a masked sum has that noise, too.) The first clip, a median of the noisy shares,
    is post-processing, and so is the end of a run whose shares say that most updates are outside these octaves.

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
            "clip_low": "smallest clip",
            "clip_high": "largest clip",
            "quantile": "share of users that the clip should leave unclipped",
            "count_noise": "standard deviation of the noise on the number of unclipped users",
            "sum_multiplier": "noise over sensitivity of the sum of what users send",
        },
        notes=CLIP_FACTS,
    )

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that what each user sends is clipped to in round one.")
    clip_low: float | None = Field(None, gt=0, description="Smallest clip; a thousandth of clip_norm if not given.")
    clip_high: float | None = Field(None, gt=0, description="Largest clip; a thousand clip_norm if not given.")
    find_clip: bool = False
    """The first round finds the clip, from 1e-6 to 1e6, for the price of a round; needs local steps or epochs."""
    quantile: float = Field(0.5, ge=0, le=1, description="Share of users that the clip should leave unclipped.")
    clip_rate: float = Field(0.2, gt=0, description="How fast the clip moves, in logarithms.")
    count_noise: float | None = Field(None, gt=0)
    """Deviation of the noise on the number of unclipped users; a twentieth of the cohort (more, where the budget asks
    for it) if not given."""
    learning_rate: float | None = Field(None, gt=0)
    """Step size; default 1 / smoothness or 0.5 for gradients, 1 for updates; 0.1 for adam."""
    found_by_preparation = ("clip_norm", "clip_low", "clip_high", "local_steps", "local_epochs", "learning_rate")

    def found(self, found: Found) -> dict[str, float]:
        """See `PreparedOptions`; the clip is that of gradients."""
        if self.find_clip:
            return {}
        steps = {} if self.server_optimiser == "adam" else found.steps(self.rounds)
        return {"clip_norm": found.clip(self.rounds), **steps}

    def scheme(self, given: Given) -> AdaptiveScheme:
        sampler, privacy, p = self.sampler(given), given.privacy, given.dimension
        if not self.trains:
            self.check_untrained()
        factor = 1e6 if self.find_clip else 1e3
        low, high = self.clip_low or self.clip_norm / factor, self.clip_high or self.clip_norm * factor
        if self.find_clip:
            self._check_finding(low, high)
        elif not low <= self.clip_norm <= high:
            raise BadInput(
                f"strategy.clip_norm = {self.clip_norm:g} lies outside strategy.clip_low = {low:g} to "
                f"strategy.clip_high = {high:g}: change one of them"
            )
        masked = (
            MaskedRounds.of(given, sampler, self.clip_norm, max(p + 1, OCTAVES)) if privacy.trust == "sum" else None
        )
        multiplier = sampler.calibrate(privacy.epsilon, privacy.delta) if masked is None else masked.multiplier
        louder = 1.0 if masked is None else masked.louder
        count_noise, count_multiplier = self._count_noise(sampler, multiplier)
        sum_multiplier = float((multiplier**-2 - count_multiplier**-2) ** -0.5) * louder
        rate = self.rate(1.0 if self.trains else self.local_rate or given.default_step)
        price = given.price(sampler, multiplier) if masked is None else masked.price
        training = self.local_training(1, given.default_step).parameters() if self.trains else {}
        name = "local_update" if self.trains else "user_gradient"
        asked = Computation(name, "sum", self.clip_norm, parameters=training, statistic="unclipped", lengths=True)
        numbers: dict[str, Number] = {
            "clip_low": low,
            "clip_high": high,
            "quantile": self.quantile,
            "count_noise": count_noise * louder,
            "sum_multiplier": sum_multiplier,
            **({} if masked is None else masked.numbers),
        }
        mechanism = sampler.mean_mechanism(self.clip_norm, sum_multiplier)
        mean = NoisyMean(sampler, mechanism, multiplier * louder, price, numbers)
        made = AdaptiveScheme(
            price=price,
            outline=self._outlined(self.outline_of(given, mean, asked, rate, noise=mean.noise(p))),
            domain=given.problem.domain,
            sampler=sampler,
            new_memory=lambda: MovingClip(0.0 if self.find_clip else self.clip_norm, ServerOptimiser(self, rate, p)),
            computation=asked,
            gradient=negative if self.trains else as_is,
            multiplier=multiplier,
            sum_multiplier=sum_multiplier,
            count_mechanism=sampler.mean_mechanism(0.5, count_multiplier),
            count_noise=count_noise * louder,
            bounds=(low, high),
            options=self,
            masked=masked,
        )
        for clip in (low, high):  # the clip may not move to where there is no grid
            made.masked_sum(clip)
        return made

    def _check_finding(self, low: float, high: float) -> None:
        """Refuse (`BadInput`) a search of users who do not train, beside a clip, without a round, or of no range."""
        if low > high:
            raise BadInput(f"strategy.clip_low = {low:g} is above strategy.clip_high = {high:g}: change one of them")
        if not self.trains:
            raise BadInput(
                "strategy.find_clip = true finds the clip of updates, and users here send gradients: give "
                "strategy.local_steps or strategy.local_epochs, or leave it out"
            )
        if self.clip_norm != 1.0:
            raise BadInput(
                f"strategy.clip_norm = {self.clip_norm:g} is given, and strategy.find_clip = true finds one: leave one "
                "of them out"
            )
        if self.rounds < 2:
            raise BadInput(
                "strategy.rounds = 1 with strategy.find_clip = true: the first round finds the clip and moves no "
                "model; give at least 2"
            )

    def _outlined(self, outline: Outline) -> Outline:
        """Return the outline as far as it holds for any clip, if that is to be found: noise and signal are in clips."""
        if not self.find_clip:
            return outline
        numbers = {name: value for name, value in outline.numbers.items() if name not in _OF_THE_CLIP}
        return replace(outline, numbers=numbers, path=None)

    def _count_noise(self, sampler: Sampler, multiplier: float) -> tuple[float, float]:
        """Return (deviation of the noise on the number of unclipped users, that over its sensitivity)."""
        factor = sampler.sensitivity_factor
        # If a twentieth of the cohort is too little, twice the least: the sum then gets 1.15 times its noise.
        noise = self.count_noise or max(sampler.expected_batch / _COUNT_SHARE, factor * multiplier)
        if 2 * noise / factor <= multiplier:
            raise BadInput(
                f"strategy.count_noise = {noise:g} alone spends the budget: it must exceed "
                f"{factor * multiplier / 2:.4g}; leave it out, or raise it"
            )
        return noise, 2 * noise / factor
