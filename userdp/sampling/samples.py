"""Rounds in which every SAMPLE takes part by its own coin, priced for one sample or for a whole user."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Relation, Unit
from userdp.accounting.amplified import calibrate_amplified, poisson_epsilon
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.accounting.sampled_gaussian import group_rate, grouped_poisson_epsilon
from userdp.errors import BadInput
from userdp.sampling.base import Sampler
from userdp.sampling.coins import SampleCoins, round_keys

_ASSUMPTION = (
    "the number of samples is public, and which samples take part in which round stays secret (each node throws "
    "its own users' coins as told)"
)


@dataclass(frozen=True)
class PoissonSamples(Sampler):
    """Every user is asked in every round, every sample by its own coin.

    *Formal guarantees.* Unit: a sample if ``most`` is None; else a user, whose samples come or go together, and of whom
    no more than ``most`` are ever drawn, however many a node holds. Relation: ADD-OR-REMOVE. Noise multipliers are
    noise over what ONE sample moves. Two prices, with g the ``group`` of samples that the promise covers at once:

    clipped after averaging (``joint``): whatever the group contributes, it moves the release by at most what one sample
    can (`average_clip`). None of the group is drawn with probability ``(1 - rate)^g``; then
    both data sets release the same law, and otherwise laws at most one sensitivity apart. By joint convexity of the
    divergence over the other coins and over which of the group are drawn, a round is dominated by the Poisson-sampled
    Gaussian of rate ``1 - (1 - rate)^g``: a larger rate, NOT a larger sensitivity.

    clipped before averaging: the group moves the sum by one unit for each of its samples drawn
    (`userdp.accounting.sampled_gaussian.grouped_poisson_epsilon`).

    Attributes:
        users: n.
        rate: chance of each sample.
        rounds: how many.
        seed: of the coins; secret in a deployment.
        most: promise for a user: its samples beyond this many are never drawn; None: promise for a sample.
        joint: whether the group moves a release no further than one sample can.

    Raises:
        BadInput: an argument out of range.
    """

    users: int
    rate: float
    rounds: int
    seed: int = 0
    most: int | None = None
    joint: bool = True

    relation: ClassVar[Relation] = "add_or_remove"
    assumption: ClassVar[str] = _ASSUMPTION
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.users, self.rounds, self.group) < 1:
            raise BadInput(f"users = {self.users}, rounds = {self.rounds}, most = {self.most}: each must be at least 1")
        if not 0 < self.rate <= 1:
            raise BadInput(f"rate = {self.rate}: the chance of a sample to take part must lie in (0, 1]")

    @property
    def group(self) -> int:
        """Samples that the promise covers at once."""
        return 1 if self.most is None else self.most

    @property
    def unit(self) -> Unit:  # type: ignore[override]
        """Whom the promise is for."""
        return "sample" if self.most is None else "user"

    @property
    def accountant(self) -> str:  # type: ignore[override]
        """How epsilons are computed."""
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
        """All users are asked."""
        return float(self.users)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """(n,) everybody; who contributes is decided by `coins`."""
        self._checked(index)
        return np.arange(self.users)

    def coins(self, index: int) -> SampleCoins:
        """What nodes draw the samples of round ``index`` by; where users are promised, at most ``most`` of each."""
        return SampleCoins(self.rate, round_keys(self.seed, self.users, self._checked(index)), self.most)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Amplified by sampling, for adding or removing the group."""
        counted = self._counted(rounds)
        if self.joint or self.group == 1:
            return poisson_epsilon(noise_multiplier, self._group_rate, counted, delta)
        return grouped_poisson_epsilon(noise_multiplier, self.rate, self.group, counted, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        """To 1e-4 relative."""
        unit = 1 if self.joint else self.group  # noise over what the whole group can move, as plain composition has it
        return unit * calibrate_amplified(lambda noise: self.epsilon(unit * noise, delta), epsilon, delta, self.rounds)

    @property
    def _group_rate(self) -> float:
        return group_rate(self.rate, self.group)
