"""Private tests that users agree at every step, without which a robust estimate is not released.

Sources: AboveThreshold, Dwork, Roth 2014, Section 3.6, as used by Ghazi, Kumar, Liu, Manurangsi, "Linear-Time
User-Level DP-SCO via Robust Statistics" (2025), Algorithm 4, here with the score's full sensitivity and an exact
threshold. The minimum-score test is ours.

*Formal guarantees.* Unit: a user; relation: one user replaced; each user takes part in one step. Claim: a phase that
tests the scores of T steps, and releases its result by an (epsilon_r, delta_r)-DP mechanism if they pass and a constant
otherwise, is (epsilon + epsilon_r, delta + delta_r)-DP for an observer of that output and of when the test halted. The
released mechanism's sensitivity may be proven for batches one of which is aligned.

*Proof.* Two neighbours differ in one user of step t*. Up to the model of step t* everything is equal.

1. *At most one batch of step t* is aligned.* An unaligned batch scores at most U (the kernel's unaligned bound) and its
   neighbour at most ``U + 2 (B-1)/B``. By the choice of the threshold the test passes step t* with probability at most
   delta for either; above a higher one, less often. Halting before t* has equal probability for both, so the
   transcripts are within total variation delta of each other, which is (0, delta)-DP. Only t* matters, so no union over
   steps is needed.
2. *Both are aligned.* Scores before t* are equal, that of t* differs by at most ``2 (B-1)/B`` (replacement), later ones
   by at most the kernel's movement bound, for distances change by at most ``movement`` when the model moves by what the
   estimator's sensitivity and the contractive steps allow. Let Delta be the larger bound. *AboveThreshold*: lower the
   noisy threshold by Delta (likelihood ratio at most e^{e1} with noise Lap(Delta/e1)): every step that passed passes
   still; the one failing step's noise moves by at most 2 Delta (ratio at most e^{e2} with noise Lap(2 Delta/e2)).
   *Minimum*: a minimum moves by at most Delta when every score does. So the test is (e1 + e2, 0)- or (epsilon, 0)-DP,
   and composes with the release.

Both cases are dominated by randomised response at epsilon, the release, and an event of probability delta, which is how
`userdp.accounting.costs` composes participations. The claim needs case 1's threshold, and the noise on it.

*Rounds.* One `AboveThreshold` (with ``movement = 0``) covers many rounds; each passes before it releases a value of its
own, and a user is in k of them. Claim: towards an observer of all, it costs
``Cost(shared_epsilon=epsilon, failure_delta=delta)``: epsilon once, delta in each of the k rounds, beside the k
releases. *Proof.* Given what was released before, a round of the replaced user is doubtful if not both of its batches
are aligned. Let M' do what the run M does, but in a doubtful round use ``U + 2 (B-1)/B`` as the score for any data, and
if that passes say "bad" and stop.

1. In M' two neighbours' scores differ in the k rounds alone, by at most Delta, and in doubtful ones not at all. Noises
   of test and releases are independent, so likelihoods are products. For any releases, the laws F, F' of when the test
   stops are within e^epsilon of each other, by step 2 above. So ``V = (e^epsilon F - F') / (e^epsilon - 1)``, and V'
   with F and F' exchanged, are laws, each known as far as releases are; and ``F = p V + (1 - p) V'``, ``F' = p V' + (1
   - p) V`` with ``p = e^epsilon / (1 + e^epsilon)``: the answer of one randomised response decides which law to follow.
     It and the k releases, each of which meets two aligned batches, dominate M'.
2. With the same noise M and M' differ only if M' says "bad", for no batch of a doubtful round scores more. If releases
   were made regardless of the test, they would not depend on its noise, and that score would pass a given round with
   probability at most delta, by the choice of the threshold. So M' says "bad" with probability at most k delta.
3. For every event E and x >= 0, with d(x) for the pair that dominates M': ``P[M in E] <= P[M' in E, not bad] + k delta
   <= e^x P'[M' in E, not bad] + d(x) + k delta <= e^x P'[M in E] + d(x) + k delta``.

*Secure noise.* `SecureNoise` gives threshold and scores rounded to float64, by r = 2^-52 of their size at most.
Rounding is monotone, so step 2 holds with Delta + 2r for Delta: a lowered threshold, after rounding, lies below the old
one by Delta or more. For sizes up to 2^30 Delta that is below 2^-21 Delta, which the source's slack covers. As it draws
``1 + slack`` times the noise, the margin of step 1 grows by twice the slack (once for the noise, once for rounding).

Clients of a phase see the models inside it, which are NOT private; see the strategies.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from userdp.accounting.costs import Cost
from userdp.errors import BadInput
from userdp.estimators.concentration import Kernel, replacement_bound
from userdp.noise import NoiseSource, Scores, within
from userdp.state import Stateful

# Of epsilon, for the threshold's noise: it minimises the variance of the two noises' sum.
_THRESHOLD_SHARE = 1 / (1 + 2 ** (2 / 3))
_REACH = 50  # Scales of the threshold's noise that quadrature covers; the tails beyond weigh 2e-22.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


class Session(Stateful, ABC):
    """One run of a test: give each step's score to `observe` in turn, then ask `passed`."""

    remembered: ClassVar[tuple[str, ...]] = ("_observed", "_halted", "_threshold")
    given: ClassVar[tuple[str, ...]] = ("_sensitivity",)

    def __init__(self, sensitivity: float) -> None:
        self._sensitivity, self._observed = sensitivity, 0
        self._halted = False

    def observe(self, scores: Scores) -> bool:
        """Take a step's one score (not finite: a failure); return False if the test has failed for good.

        Raises `RunFailed` for a score that one user may move by more than the test is priced for.
        """
        score = float(within(scores, self._sensitivity).values[0])
        self._observed += 1
        self._halted = self._halted or not math.isfinite(score) or not self._accepts(score)
        return not self._halted

    def passed(self) -> bool:
        """Return whether there were scores and the test passed; asking again draws no new noise."""
        return self._observed > 0 and not self._halted and self._accepts_all()

    @abstractmethod
    def _accepts(self, score: float) -> bool: ...

    def _accepts_all(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ConcentrationTest(ABC):
    """The common part of both tests; the module states and proves their guarantee."""

    batch: int  # B, users of one step
    kernel: Kernel  # of the score; its radius must not exceed that of the estimator that the test protects
    epsilon: float  # of the test, > 0
    delta: float  # probability with which an unaligned batch may pass, in (0, 1/2)
    # bound on how far the distance of two users' rows moves in the steps after the replaced user's: twice the
    # smoothness times the bound on the models' sup-norm distance; 0 when every step is tested alone
    movement: float = 0.0
    raised: float = 0.0  # a threshold above the least private one; 0 for the least

    def __post_init__(self) -> None:
        if self.batch < 2:
            raise BadInput(f"batch = {self.batch}: a concentration test needs at least 2 users")
        if not 0 < self.epsilon < math.inf:
            raise BadInput(f"test epsilon = {self.epsilon}: must be a positive number")
        if not 0 < self.delta < 0.5:
            raise BadInput(f"test delta = {self.delta}: must lie strictly between 0 and 1/2, such as 1e-7")
        if not 0 <= self.movement < math.inf:
            raise BadInput(f"movement = {self.movement}: must be zero or a positive number")
        if self.raised != 0 and not self.least_threshold <= self.raised < math.inf:
            raise BadInput(
                f"raised = {self.raised:.6g}: users who disagree could pass such a threshold too often; it must be at "
                f"least {self.least_threshold:.6g}"
            )

    @property
    def sensitivity(self) -> float:
        """The bound Delta on how much one user changes any score of an aligned phase."""
        return max(replacement_bound(self.batch), self.kernel.movement_bound(self.batch, self.movement))

    def scored(self, score: float, users: int) -> Scores:
        """Return the score of so many users, of any data, with the bound on how far one of them moves it."""
        moved = max(replacement_bound(users), self.kernel.movement_bound(users, self.movement))
        return Scores(np.array([score]), moved)

    @property
    @abstractmethod
    def margin(self) -> float:
        """The margin M, which the test's noise exceeds with probability at most delta."""

    @property
    def threshold(self) -> float:
        """The public score to reach."""
        return self.raised or self.least_threshold

    @property
    def least_threshold(self) -> float:
        """The least private threshold: the unaligned bound, one replacement, and the margin."""
        return self.kernel.unaligned_bound(self.batch) + replacement_bound(self.batch) + self.margin

    @property
    def cost(self) -> Cost:
        """The cost of one run of the test."""
        return Cost(pure_epsilon=self.epsilon, failure_delta=self.delta)

    @abstractmethod
    def session(self, noise: NoiseSource) -> Session:
        """Start one run of the test, with its own noise."""

    def pass_probability(self, scores: ArrayLike, steps: int = 1) -> float:
        """Return the exact probability that all steps pass.

        Args:
            scores: one score, or (T,) of them, fixed in advance.
            steps: how often the score, or the list of them, occurs.

        Raises `BadInput`: no scores, a NaN among them, or no steps.
        """
        values = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        if values.size == 0 or np.isnan(values).any() or steps < 1:
            raise BadInput("a pass probability needs at least one score that is a number, and at least one step")
        distinct, counts = np.unique(values - self.threshold, return_counts=True)
        return self._pass_probability(distinct, counts * steps)

    @abstractmethod
    def _pass_probability(self, gaps: NDArray[np.float64], counts: NDArray[np.int64]) -> float: ...


@dataclass(frozen=True, kw_only=True)
class AboveThreshold(ConcentrationTest):
    """Each step's noisy score against one noisy threshold; stops at the first below (Dwork, Roth 2014).

    *Formal guarantees.* See the module, for phases and for rounds. Noises: Lap(Delta/e1) on the threshold and
    Lap(2 Delta/e2) on each score, ``e1 + e2 = epsilon``, ``e1 : e2 = 1 : 2^(2/3)`` or equal.
    """

    equal: bool = False  # e1 = e2, as printed

    @property
    def threshold_scale(self) -> float:
        """The scale of the threshold's Laplace noise."""
        return self.sensitivity / (self._share * self.epsilon)

    @property
    def query_scale(self) -> float:
        """The scale of each score's Laplace noise."""
        return 2 * self.sensitivity / ((1 - self._share) * self.epsilon)

    @property
    def _share(self) -> float:
        return 1 / 2 if self.equal else _THRESHOLD_SHARE

    @property
    def margin(self) -> float:
        """The delta-quantile of the sum of the two noises, rounded up."""
        narrow, wide = self.threshold_scale, self.query_scale
        share = wide**2 / (2 * (wide**2 - narrow**2))

        def tail(x: float) -> float:
            """P[Lap(narrow) + Lap(wide) >= x] for x >= 0."""
            return share * math.exp(-x / wide) - (share - 0.5) * math.exp(-x / narrow)

        # Leaving out the second term only raises the tail, so the other end of the bracket is safe.
        high = wide * math.log(share / self.delta)
        root = float(scipy.optimize.brentq(lambda x: math.log(tail(x) / self.delta), 0.0, high, xtol=1e-12 * wide))
        while tail(root) > self.delta:
            root += 1e-12 * wide
        return root

    def session(self, noise: NoiseSource) -> Session:
        """Start one run of the test; the threshold's noise is drawn now."""
        return _AboveThresholdSession(self, noise)

    def _pass_probability(self, gaps: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
        """Average the product of Laplace tails over the threshold's noise, by Gauss-Legendre between kinks."""
        scale = self.threshold_scale
        reach = _REACH * scale
        even = np.linspace(-reach, reach, 2 * _REACH + 1)
        edges = np.union1d(even, gaps[np.abs(gaps) < reach])
        half = np.diff(edges)[:, None] / 2
        noise = edges[:-1, None] + half * (1 + _NODES)
        log_pass = np.zeros_like(noise)
        for gap, count in zip(gaps, counts, strict=True):
            log_pass += count * _log_laplace_tail(noise - gap, self.query_scale)
        density = np.exp(-np.abs(noise) / scale) / (2 * scale)
        return min(1.0, float((half * _WEIGHTS * density * np.exp(log_pass)).sum()))


class MinimumScore(ConcentrationTest):
    """The least score of all steps against the threshold, with one Laplace noise. It cannot stop early.

    *Formal guarantees.* See the module. Noise: Lap(Delta/epsilon) on the least score; the margin is its
    delta-quantile ``(Delta/epsilon) ln(1/(2 delta))``. It needs about a quarter of the users of `AboveThreshold`.
    """

    @property
    def scale(self) -> float:
        """The scale of the Laplace noise."""
        return self.sensitivity / self.epsilon

    @property
    def margin(self) -> float:
        """The delta-quantile of the noise."""
        return self.scale * math.log(1 / (2 * self.delta))

    def session(self, noise: NoiseSource) -> Session:
        """Start one run of the test; its noise is drawn now."""
        return _MinimumScoreSession(self, noise)

    def _pass_probability(self, gaps: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
        return float(np.exp(_log_laplace_tail(-gaps[:1], self.scale))[0])


def _noisy_threshold(test: ConcentrationTest, scale: float, noise: NoiseSource) -> float:
    return float(noise.laplace(test.threshold + 2 * noise.slack * test.margin, scale))


class _AboveThresholdSession(Session):
    remembered: ClassVar[tuple[str, ...]] = (*Session.remembered, "_scale")
    parts: ClassVar[tuple[str, ...]] = ("_noise",)

    def __init__(self, test: AboveThreshold, noise: NoiseSource) -> None:
        super().__init__(test.sensitivity)
        self._noise = noise
        self._scale = test.query_scale
        self._threshold = _noisy_threshold(test, test.threshold_scale, noise)

    def _accepts(self, score: float) -> bool:
        return float(self._noise.laplace(score, self._scale)) >= self._threshold


class _MinimumScoreSession(Session):
    remembered: ClassVar[tuple[str, ...]] = (*Session.remembered, "_least")

    def __init__(self, test: MinimumScore, noise: NoiseSource) -> None:
        super().__init__(test.sensitivity)
        self._least = math.inf
        self._threshold = _noisy_threshold(test, test.scale, noise)

    def _accepts(self, score: float) -> bool:
        self._least = min(self._least, score)
        return True

    def _accepts_all(self) -> bool:
        return self._least >= self._threshold


def _log_laplace_tail(x: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Logarithm of P[Lap(scale) >= x]."""
    decay = -np.abs(x) / scale
    return np.where(x >= 0, decay - math.log(2), np.log1p(-0.5 * np.exp(decay)))
