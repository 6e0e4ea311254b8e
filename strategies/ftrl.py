"""Follow the regularised leader on privately released sums of gradients, with noise correlated over rounds."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.computations import Computation
from userdp.noise import NoiseSource, rounding_slack
from userdp.problems.base import Vector
from userdp.sampling import CorrelatedBatches


class DPFTRLOptions(StrategyOptions):
    """Settings of `DPFTRL`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None, ge=1, description="Users a round, the same partition every epoch; n / rounds (one epoch) if not given."
    )
    factorisation: Literal["square_root", "tree"] = Field(
        "square_root", description="How noise is correlated over rounds; the tree is the classic baseline."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")


class DPFTRL(UserLevelStrategy):
    """Steps by the noisy SUM of all clipped gradients so far: ``x_t = project(x_0 - rate (sum_{s<=t} g_s + noise_t))``.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one, n public. Each user's average gradient is clipped to l2 norm C, so replacing a user
    moves the sum of a round in which it takes part by at most 2C; cohorts are cyclic, so those rounds are fixed and
    equally far apart. All prefix sums are released by one factorisation ``A = B C`` with noise ``B Z``, calibrated
    to the Frobenius norm of what one user can move in all rounds together: the whole run is ONE Gaussian mechanism,
    also though each gradient is taken at the model released before (proof in `userdp.mechanisms.prefix_sums`). No
    amplification by sampling is claimed. Projection and steps are post-processing. The divisor is the planned
    cohort; a missing or non-finite answer counts as zero. The server is trusted.

    *Assumptions.* n and who takes part are public. The server is trusted. Nodes clip as told; sums that are too
    large are refused.
    """

    name: ClassVar[str] = "dp_ftrl"
    summary_line: ClassVar[str] = "sums of clipped user gradients with noise correlated over rounds"
    family: ClassVar[str] = "clipping"
    cost: ClassVar[str] = (
        "node O(N d), one sum of d numbers up; server O(K d) and d numbers kept for each level or round of the noise"
    )
    paper: ClassVar[str] = "Kairouz et al. 2021; Fichtenberger, Henzinger, Upadhyay 2023; Choquette-Choo et al. 2023"
    with_secure_noise: ClassVar[str] = (
        "the rows of C G are released with independent noise, prefix sums are computed from them"
    )
    example: ClassVar[Mapping[str, Any]] = {"rounds": 4}
    meanings: ClassVar[Mapping[str, str]] = {
        "separation": "rounds between two participations of a user",
        "factorisation": "how noise is correlated over rounds",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "fresh_noise_deviation": Fact("public", "standard deviation of the noise drawn in the round"),
    }
    Options: ClassVar[type[StrategyOptions]] = DPFTRLOptions
    options: DPFTRLOptions
    _sampler: CorrelatedBatches

    def _make_plan(self) -> Plan:
        options, n, p = self.options, self.public.users, self.problem.dimension
        cohort = options.cohort or max(1, n // options.rounds)
        self._sampler = CorrelatedBatches(n, cohort, options.rounds, self.seed, options.factorisation)
        multiplier = self._sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        sensitivity = self._sampler.sensitivity_factor * options.clip_norm / cohort * self._sampler.sensitivity
        self._multiplier, self._deviation = multiplier, multiplier * sensitivity
        self._rate = options.learning_rate or self._default_step
        self._correlated = self._sampler.factorisation.noise()
        self._encoder = self._sampler.factorisation.encoder()
        self._start = self.problem.initial()
        self._sum = np.zeros(p)
        last = self._deviation * float(self._sampler.factorisation.deviations()[-1])
        noise, signal = last * math.sqrt(p), options.rounds * options.clip_norm
        warnings = []
        if noise >= signal:
            warnings.append(
                f"the noise of the last sum ({noise:.3g}) exceeds the sum of clips ({signal:.3g}), which bounds it: "
                "use a larger strategy.cohort, more users or a larger epsilon"
            )
        return Plan(
            strategy=self.name,
            rounds=options.rounds,
            cohort=cohort,
            users=n,
            users_needed=cohort,
            guarantee=self._sampler.guarantee(
                multiplier,
                self.privacy.delta,
                "against other nodes and whoever sees every iterate; the server is trusted",
                ("nodes clip each user as told, and the server is trusted",),
            ),
            noise=noise,
            signal=signal,
            numbers={
                "clip_norm": options.clip_norm,
                "cohort": cohort,
                "participations": -(-options.rounds // self._sampler.batches.separation),
                "separation": self._sampler.batches.separation,
                "factorisation": options.factorisation,
                "learning_rate": self._rate,
                "noise_multiplier": multiplier,
                "l2_sensitivity": sensitivity,
                "noise_deviation": last,
            },
            warnings=tuple(warnings),
        )

    def _ask(self, index: int) -> Request:
        computation = Computation("user_gradient", reduce="sum", clip_norm=self.options.clip_norm)
        return Request(self._sampler.cohort(index), computation)

    def _rounding_slack(self) -> float:
        # Row t of C G adds up to all answers of the run, and the errors of T rows together are sqrt(T) times as long.
        rounds = self.options.rounds
        return rounding_slack(rounds * self._sampler.batch, math.sqrt(rounds))

    def _correlated_sum(self, mean: Vector, noise: NoiseSource) -> Vector:
        """The sum of all rounds' means so far, with its noise."""
        if self.privacy.noise == "secure":
            return self._correlated.add(noise.gaussian(self._encoder.add(mean), self._deviation))
        self._sum += mean
        return self._sum + self._correlated.add(noise.gaussian(np.zeros(len(mean)), self._deviation))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        if index == 0:
            self._start = x
        released = self._correlated_sum(gathered.values / self._sampler.expected_batch, self._noise(index))
        self.facts = {"fresh_noise_deviation": self._deviation}
        following = self.problem.domain.project(self._start - self._rate * released)
        return following, following
