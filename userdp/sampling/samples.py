"""Rounds in which every SAMPLE takes part by its own coin, priced for one sample or for a whole user."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Relation
from userdp.accounting.amplified import calibrate_amplified, poisson_epsilon
from userdp.accounting.sampled_gaussian import (
    SampledRounds,
    calibrate_sampled_gaussian,
    group_rate,
    grouped_poisson_epsilon,
    sampled_gaussian_epsilon,
)
from userdp.errors import BadInput
from userdp.sampling.base import Sampler
from userdp.sampling.coins import SampleCoins, round_keys

_ASSUMPTION = (
    "the number of samples is public, and which samples take part in which round stays secret (each node throws its own "
    "users' coins)"
)


@dataclass(frozen=True)
class PoissonSamples(Sampler):
    """Every user is asked in every round, every sample by its own coin.

    *Formal guarantees.* Unit: ``group`` samples that come or go together (1: a sample; the most samples of a user: a
    user); relation: ADD-OR-REMOVE. Noise multipliers are noise over what ONE sample moves. Two prices:

    clipped after averaging (``joint``): whatever the group contributes, it moves the release by at most what one sample
    can (`userdp.averaged_clipping.average_clip`). None of the group is drawn with probability ``(1 - rate)^group``; then
    both data sets release the same law, and otherwise laws at most one sensitivity apart. By joint convexity of the
    divergence over the other coins and over which of the group are drawn, a round is dominated by the Poisson-sampled
    Gaussian of rate ``1 - (1 - rate)^group``: a larger rate, NOT a larger sensitivity.

    clipped before averaging: the group moves the sum by one unit for each of its samples drawn
    (`userdp.accounting.sampled_gaussian.grouped_poisson_epsilon`).

    Attributes:
        users: n.
        rates: chance of each sample, for each phase of the run.
        phase: rounds of a phase.
        seed: of the coins; secret in a deployment.
        group: samples that the promise covers at once.
        joint: whether the group moves a release no further than one sample can.

    Raises:
        BadInput: an argument out of range, or several phases where the group counts sample by sample.
    """

    users: int
    rates: tuple[float, ...]
    phase: int
    seed: int = 0
    group: int = 1
    joint: bool = True

    relation: ClassVar[Relation] = "add_or_remove"
    assumption: ClassVar[str] = _ASSUMPTION

    def __post_init__(self) -> None:
        if min(self.users, self.phase, self.group) < 1:
            raise BadInput(f"users = {self.users}, phase = {self.phase}, group = {self.group}: each must be at least 1")
        if not self.rates or not all(0 < rate <= 1 for rate in self.rates):
            raise BadInput(f"rates = {self.rates}: the chances of a sample to take part must lie in (0, 1]")
        if len(self.rates) > 1 and not self.joint and self.group > 1:
            raise BadInput("several phases are priced for samples that are clipped together only")

    @property
    def accountant(self) -> str:  # type: ignore[override]
        """How epsilons are computed."""
        kind = "privacy loss distribution" if len(self.rates) == 1 else "Renyi privacy"
        form = f"{kind} of the Gaussian mechanism with Poisson-sampled samples, composed over rounds"
        if self.group == 1:
            return form
        if self.joint:
            return f"{form}; a user of {self.group} samples is drawn with probability {self._group_rates[0]:.4g}"
        return f"{form}; group privacy for {self.group} samples"

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Of all phases."""
        return self.phase * len(self.rates)

    @property
    def expected_batch(self) -> float:
        """All users are asked."""
        return float(self.users)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """(n,) everybody; who contributes is decided by `coins`."""
        self._checked(index)
        return np.arange(self.users)

    def coins(self, index: int) -> SampleCoins:
        """What nodes draw the samples of round ``index`` by; at most ``group`` samples of a user, where that counts."""
        rate = self.rates[self._checked(index) // self.phase]
        return SampleCoins(rate, round_keys(self.seed, self.users, index), self.group if self.group > 1 else None)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Amplified by sampling, for adding or removing the group."""
        counted = self._counted(rounds)
        if len(self.rates) == 1:
            if self.joint:
                return poisson_epsilon(noise_multiplier, self._group_rates[0], counted, delta)
            if self.group == 1:
                return poisson_epsilon(noise_multiplier, self.rates[0], counted, delta)
            return grouped_poisson_epsilon(noise_multiplier, self.rates[0], self.group, counted, delta)
        done = [min(self.phase, max(0, counted - start)) for start in range(0, self.rounds, self.phase)]
        steps = [SampledRounds(noise_multiplier, rate, part) for rate, part in zip(self._group_rates, done, strict=True)]
        return sampled_gaussian_epsilon(steps, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """To 1e-4 relative."""
        if len(self.rates) > 1:
            return calibrate_sampled_gaussian([(rate, self.phase) for rate in self._group_rates], epsilon, delta)
        unit = 1 if self.joint else self.group  # noise over what the whole group can move, as plain composition has it
        return unit * calibrate_amplified(
            lambda noise: self.epsilon(unit * noise, delta), epsilon, delta, self.rounds
        )

    @property
    def _group_rates(self) -> tuple[float, ...]:
        return tuple(group_rate(rate, self.group) for rate in self.rates)
