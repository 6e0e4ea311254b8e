"""Rounds with an own coin for every SAMPLE, priced for one sample or for a whole user."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from userdp.accounting import (
    ONE_GAUSSIAN,
    Cost,
    Relation,
    SampledRounds,
    Unit,
    calibrate_amplified,
    check_least,
    check_rate,
    epsilon_of,
    poisson_epsilon,
)
from userdp.randomness import stream
from userdp.sampling import SampleCoins, Sampler, check_whole

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_CELLS = 3000  # Cells of the privacy loss of one round of a group.


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
    (`grouped_poisson_epsilon`).
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
    of_samples: ClassVar[bool] = True

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
        self.checked_round(index)
        return np.arange(self.users)

    def coins(self, index: int) -> SampleCoins:
        """Return the coins for the samples of round ``index``; at most ``most`` of each user's samples take part."""
        return SampleCoins(self.rate, round_keys(self.seed, self.users, self.checked_round(index)), self.most)

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return epsilon amplified by sampling, for adding or removing the group."""
        counted = self.counted_rounds(rounds)
        if self.joint or self.group == 1:
            return poisson_epsilon(noise_multiplier, self._group_rate, counted, delta)
        return grouped_poisson_epsilon(noise_multiplier, self.rate, self.group, counted, delta)

    def replaced(self, noise_multiplier: float, delta: float) -> tuple[float, float]:
        """See `Sampler.replaced`; exact where the group moves a release no further than one sample.

        A release is then a mixture over which of the group's samples are drawn, with the same weights for both groups;
        divergences are jointly convex, so the worst pair of rows bounds it as it does a single coin.
        """
        if not (self.joint or self.group == 1):
            return super().replaced(noise_multiplier, delta)
        price = poisson_epsilon(noise_multiplier / 2, self._group_rate, self.rounds, delta, "replace_one")
        return price, delta

    def calibrate(self, epsilon: float, delta: float) -> float:
        unit = 1 if self.joint else self.group  # noise over what the whole group can move, as plain composition has it
        return unit * calibrate_amplified(lambda noise: self.epsilon(unit * noise, delta), epsilon, delta, self.rounds)

    @property
    def _group_rate(self) -> float:
        return group_rate(self.rate, self.group)


def round_keys(seed: int, users: int, index: int) -> NDArray[np.uint64]:
    """Return the (n,) keys of round ``index``."""
    return stream(seed, "sampling", index).integers(0, 1 << 64, size=users, dtype=np.uint64)


@lru_cache(maxsize=1024)
def grouped_poisson_epsilon(noise_multiplier: float, rate: float, group: int, rounds: int, delta: float) -> float:
    """Compute epsilon of Poisson-sampled Gaussian sums for adding or removing up to ``group`` records at once.

    Each record is drawn independently, so the group moves the sum by at most J units with J binomial(group, rate). The
    pair of N(0, z^2) and the mixture of N(j, z^2) over J dominates every round, for vectors and adaptively too (Ganesh
    2024, mixtures of Gaussians). Plain composition at ``group`` units is a bound as well, and the smaller is returned.
    ``noise_multiplier`` is noise over the effect of ONE record on the sum.
    """
    check_least("group", group)
    SampledRounds(noise_multiplier, rate, rounds)
    plain = epsilon_of(Cost(noise_multiplier=noise_multiplier / group), rounds, delta)
    if rounds == 0 or rate == 1:
        return plain
    mixture = _mixture_round(noise_multiplier, rate, group).self_compose(rounds)
    return min(plain, float(mixture.get_epsilon_for_delta(delta)))


def group_rate(rate: float, group: int) -> float:
    """Compute the probability that at least one of ``group`` records is drawn: ``1 - (1 - rate)^group``."""
    return 1.0 if rate == 1 else -math.expm1(group * math.log1p(-rate))


@lru_cache(maxsize=16)
def _mixture_round(noise_multiplier: float, rate: float, group: int) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415 -- slow to import

    counts = np.arange(group + 1)
    chances = scipy.stats.binom.pmf(counts, group, rate)
    # Very rare counts are merged into the largest, which can only cost more.
    last = max(1, int(np.searchsorted(np.cumsum(chances), 1 - 1e-14)))
    kept = np.append(chances[:last], max(0.0, 1 - chances[:last].sum()))
    sizes = np.append(counts[:last], group)
    ratio = group / noise_multiplier
    # Fine enough for the loss of a typical round, within a fixed number of cells; any width is valid.
    width = max((ratio * ratio / 2 + 8 * ratio) / _CELLS, rate * ratio / 5)
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise_multiplier, sizes.tolist(), kept.tolist(), value_discretization_interval=width
    )
