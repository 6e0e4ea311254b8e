"""Rounds with an own coin for every SAMPLE, priced for one sample or for a whole user."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Relation, Unit
from userdp.accounting.amplified import calibrate_amplified, poisson_epsilon
from userdp.accounting.checks import check_rate
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.accounting.sampled_gaussian import group_rate, grouped_poisson_epsilon
from userdp.sampling.base import Sampler, check_whole
from userdp.sampling.coins import SampleCoins, round_keys


@dataclass(frozen=True)
class PoissonSamples(Sampler):
    """Every round asks every user, and draws every sample by its own coin.

    *Formal guarantees.* Unit: a sample if ``most`` is None; else a user, whose samples are added or removed together,
    at most ``most`` of them ever drawn, however many a node holds. Relation: ADD-OR-REMOVE. Noise multipliers are
    noise over the move by ONE sample. Two prices, with g the ``group`` of samples that the guarantee covers at once:

    clipped after averaging (``joint``): the group, however large, moves the release by at most as much as one sample
    can (`average_clip`). None of the group is drawn with probability ``(1 - rate)^g``; then
    both data sets release the same law, and otherwise laws at most one sensitivity apart. By joint convexity of the
    divergence over the other coins and over the drawn part of the group, a round is dominated by the Poisson-sampled
    Gaussian of rate ``1 - (1 - rate)^g``: a larger rate, NOT a larger sensitivity.

    clipped before averaging: the group moves the sum by one unit for each of its samples drawn
    (`userdp.accounting.sampled_gaussian.grouped_poisson_epsilon`).
    """

    users: int
    rate: float  # probability of each sample
    rounds: int
    seed: int = 0  # seed of the coins; secret in a deployment
    most: int | None = None  # protects a user: its samples beyond are never drawn; None: protects a sample
    joint: bool = True  # whether the group moves a release no further than one sample can

    relation: ClassVar[Relation] = "add_or_remove"
    assumption: ClassVar[str] = (
        "the number of samples is public, and which samples take part in which round stays secret (each node throws "
        "its own users' coins as requested)"
    )
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(users=self.users, rounds=self.rounds, most=self.most)
        check_rate(self.rate)

    @property
    def group(self) -> int:
        """The number of samples that the guarantee covers at once."""
        return 1 if self.most is None else self.most

    @property
    def unit(self) -> Unit:  # type: ignore[override]
        """The unit of the guarantee."""
        return "sample" if self.most is None else "user"

    @property
    def accountant(self) -> str:  # type: ignore[override]
        """The method that computes epsilons."""
        if self._group_rate == 1 and (self.joint or self.group == 1):
            return f"{ONE_GAUSSIAN}, composed over rounds that draw everything"  # as `poisson_epsilon` has it
        form = "privacy loss distribution of the Gaussian mechanism with Poisson-sampled samples, composed over rounds"
        if self.group == 1:
            return form
        if self.joint:
            return f"{form}; of a user's {self.group} samples any is drawn with probability {self._group_rate:.4g}"
        return f"{form}; group privacy for {self.group} samples"

    @property
    def expected_batch(self) -> float:
        """The number of users, all of whom take part."""
        return float(self.users)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """Return all users (n,); `coins` decides whose samples contribute."""
        self._checked(index)
        return np.arange(self.users)

    def coins(self, index: int) -> SampleCoins:
        """Return the coins for the samples of round ``index``; at most ``most`` of each user's samples take part."""
        return SampleCoins(self.rate, round_keys(self.seed, self.users, self._checked(index)), self.most)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return epsilon amplified by sampling, for adding or removing the group."""
        counted = self._counted(rounds)
        if self.joint or self.group == 1:
            return poisson_epsilon(noise_multiplier, self._group_rate, counted, delta)
        return grouped_poisson_epsilon(noise_multiplier, self.rate, self.group, counted, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        unit = 1 if self.joint else self.group  # noise over what the whole group can move, as plain composition has it
        return unit * calibrate_amplified(lambda noise: self.epsilon(unit * noise, delta), epsilon, delta, self.rounds)

    @property
    def _group_rate(self) -> float:
        return group_rate(self.rate, self.group)
