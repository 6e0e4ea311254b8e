"""Clipped rounds whose clip follows a quantile of the users' norms, learned privately on the way."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from strategies.clipped_rounds import ClippedOptions, ClippedRounds
from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered
from userdp.computations import Computation
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector

_COUNT_SHARE = 20
"""The paper's noise of the count: a twentieth of the cohort."""


class AdaptiveClippingOptions(ClippedOptions):
    """Settings of `AdaptiveClipping`."""

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
    local_steps: int | None = Field(
        None, ge=1, description="Users send the update of so many local gradient steps; their gradient if not given."
    )
    local_rate: float | None = Field(None, gt=0, description="Step size of each user; default 1 / smoothness, or 0.5.")
    learning_rate: float | None = Field(
        None, gt=0, description="Step size; default 1 / smoothness or 0.5 for gradients, 1 for updates; 0.1 for adam."
    )


class AdaptiveClipping(ClippedRounds):
    """Clipped mean of user vectors with noise; the clip moves geometrically towards a quantile of their norms.

    Round t clips to ``C_t`` and releases, with ``b_i = 1`` for users whose norm is at most ``C_t`` (UNCLIPPED),
    ``share = 1/2 + (sum (b_i - 1/2) + N(0, count_noise^2)) / cohort``; then
    ``C_{t+1} = C_t exp(-clip_rate (share - quantile))``, held in public bounds.

    *Formal guarantees.* *Claim.* That of `dp_fed_sgd`. *Why.* Unit: one whole user; relation: replace-one with n
    public, s = 2 (add-or-remove for poisson, s = 1). Given what was released before, ``C_t`` is a constant. One
    user moves the sum of clipped vectors by at most ``s C_t`` and the sum of ``b_i - 1/2`` by at most ``s / 2``, at
    worst both at once. Noise ``z_u s C_t`` on the first and ``count_noise = z_b s / 2`` on the second make a round
    ONE Gaussian mechanism of multiplier z with ``z^-2 = z_u^-2 + z_b^-2``: divide each by its noise and add the
    squared moves. So ``z_u = (z^-2 - (2 count_noise / s)^-2)^(-1/2)``, with z calibrated by the sampler. The noise
    of a round is calibrated to the clip in force in it. A user who does not answer adds nothing to either sum; the
    divisor is public. Every iterate and every clip is released; the server is trusted.

    *Assumptions.* Those of `dp_fed_sgd`.
    """

    name: ClassVar[str] = "adaptive_clipping"
    summary_line: ClassVar[str] = "clipped mean with noise whose clip follows a private quantile of users' norms"
    family: ClassVar[str] = "clipping"
    cost: ClassVar[str] = "node O(steps N d), one sum of d + 1 numbers up; server O(K d)"
    paper: ClassVar[str] = "Andrew, Thakkar, McMahan, Ramaswamy 2021"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "local_steps": "gradient steps of each user on its own data",
        "local_rate": "step size of each user",
        "clip_low": "smallest clip",
        "clip_high": "largest clip",
        "quantile": "share of users that the clip should leave unclipped",
        "count_noise": "standard deviation of the noise on the number of unclipped users",
        "sum_multiplier": "noise over sensitivity of the sum of what users send",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "clip_norm": Fact("noised", "clip of the round: planned, or moved by released values"),
        "unclipped_share": Fact("noised", "share of unclipped users, with noise"),
    }
    Options: ClassVar[type[StrategyOptions]] = AdaptiveClippingOptions
    options: AdaptiveClippingOptions

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        options = self.options
        self._low, self._high = (
            options.clip_low or options.clip_norm / 1e3,
            options.clip_high or options.clip_norm * 1e3,
        )
        if not self._low <= options.clip_norm <= self._high:
            raise BadInput(
                f"strategy.clip_norm = {options.clip_norm:g} lies outside strategy.clip_low = {self._low:g} to "
                f"strategy.clip_high = {self._high:g}: mend one of them"
            )
        return super()._make_plan()

    def _sum_multiplier(self) -> float:
        factor, cohort = self._sampler.sensitivity_factor, self._sampler.expected_batch
        # Where a twentieth of the cohort is too little, twice the least: the sum then gets 1.15 times its noise.
        self._count_noise = self.options.count_noise or max(cohort / _COUNT_SHARE, factor * self._multiplier)
        self._count_multiplier = 2 * self._count_noise / factor
        if self._count_multiplier <= self._multiplier:
            raise BadInput(
                f"strategy.count_noise = {self._count_noise:g} alone spends the budget: it must exceed "
                f"{factor * self._multiplier / 2:.4g}; leave it out, or raise it"
            )
        return float((self._multiplier**-2 - self._count_multiplier**-2) ** -0.5)

    def _more_numbers(self) -> dict[str, float | int | str]:
        return {
            "clip_low": self._low,
            "clip_high": self._high,
            "quantile": self.options.quantile,
            "count_noise": self._count_noise,
            "sum_multiplier": self._sum_multiplier(),
        }

    # A round -------------------------------------------------------------------------------------------------------

    def _computation(self) -> Computation:
        if self.options.local_steps is None:
            return Computation("user_gradient", reduce="sum", clip_norm=self._clip, statistic="unclipped")
        parameters = {"steps": float(self.options.local_steps), "step_size": self._local_rate}
        return Computation("local_update", "sum", self._clip, parameters=parameters, statistic="unclipped")

    @property
    def _local_rate(self) -> float:
        return self.options.local_rate or self._default_step

    def _default_rate(self) -> float:
        return self._local_rate if self.options.local_steps is None else 1.0

    def _gradient(self, released: Vector) -> Vector:
        return released if self.options.local_steps is None else -released

    def _count_mechanism(self) -> GaussianMechanism:
        """Of the share of unclipped users."""
        sensitivity = self._sampler.sensitivity_factor / 2 / self._sampler.expected_batch
        return GaussianMechanism(sensitivity, self._count_multiplier)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        following, released = super()._step(index, x, Gathered(gathered.values[:-1], gathered.missing, 0))
        centred = gathered.values[-1:] / self._sampler.expected_batch
        share = 0.5 + float(self._count_mechanism().release(centred, self._noise(index, 1))[0])
        self.facts |= {"clip_norm": self._clip, "unclipped_share": share}
        moved = math.log(self._clip) - self.options.clip_rate * (share - self.options.quantile)
        self._clip = math.exp(min(max(moved, math.log(self._low)), math.log(self._high)))
        self._mechanism = self._mechanism_for(self._clip)
        return following, released
