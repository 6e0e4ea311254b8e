"""Follow the regularised leader on privately released sums of gradients, with noise correlated over rounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS, clip_facts, with_lengths
from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.core.options import Found, PreparedOptions, StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Scheme, Step
from strategies.core.ways import Landing
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.mechanisms.factorisations import FactorisationName
from userdp.nodes.computations import Computation
from userdp.noise import NoiseSource
from userdp.sampling import CorrelatedBatches
from userdp.state import Stateful


class DPFTRLOptions(PreparedOptions):
    """Settings of `DPFTRL`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None, ge=1, description="Users a round, the same partition every epoch; n / rounds (one epoch) if not given."
    )
    factorisation: FactorisationName | Literal["best"] = Field(
        "square_root",
        description="How noise is correlated over rounds. best: whichever has the least predicted noise in the last "
        "round, from public numbers. Mostly that is banded (up to 64 vectors kept) where users return within 64 "
        "rounds, and else buffered (four, however long the run). The tree is the classic baseline.",
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")

    def found(self, found: Found) -> dict[str, float]:
        """Clip and step."""
        return {"clip_norm": found.clip(self.rounds), **found.steps(self.rounds)}


@dataclass(frozen=True, kw_only=True)
class CorrelatedScheme(Scheme):
    """A `Scheme` of prefix sums.

    Attributes:
        sampler: who takes part in each round, and how noise is correlated.
        noise_multiplier: noise over what one user can move in all rounds together.
        sensitivity: that, of means over a cohort.
        rate: step size.
    """

    sampler: CorrelatedBatches
    noise_multiplier: float
    sensitivity: float
    rate: float

    @property
    def deviation(self) -> float:
        """Of each coordinate of the fresh noise of a round."""
        return self.noise_multiplier * self.sensitivity


class PrefixSums(Stateful):
    """The memory of the server: where it started, and the sum of all rounds' means so far, with its noise.

    Args:
        scheme: of the run.
        dimension: p.
        secure: encode values before noise is added, rather than correlate noise and add it.
    """

    remembered: ClassVar[tuple[str, ...]] = ("start", "_sum", "deviation")
    added: ClassVar[tuple[str, ...]] = ("deviation",)
    parts: ClassVar[tuple[str, ...]] = ("_correlated", "_encoder")
    given: ClassVar[tuple[str, ...]] = ("scheme", "_secure")

    def __init__(self, scheme: CorrelatedScheme, dimension: int, *, secure: bool) -> None:
        self.start: Vector | None = None
        self.scheme, self._secure = scheme, secure
        # Remembered with the encoder's terms, to whose sensitivity it is calibrated.
        self.deviation = scheme.deviation
        self._correlated = scheme.sampler.factorisation.noise()
        self._encoder = scheme.sampler.factorisation.encoder()
        self._sum = np.zeros(dimension)

    def add(self, mean: Vector, noise: NoiseSource) -> Vector:
        """The noisy sum of all means up to this one."""
        if self._secure:
            return self._correlated.add(noise.gaussian(self._encoder.add(mean), self.deviation))
        self._sum += mean
        return self._sum + self._correlated.add(noise.gaussian(np.zeros(len(mean)), self.deviation))


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
        "node O(N d), one sum of d numbers up; server O(K d) and d numbers kept for each band, buffer or level of the "
        "noise"
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
        "fresh_noise_deviation": Fact(
            "noised", "standard deviation of the noise drawn in the round: planned, or in proportion to a released clip"
        ),
        **CLIP_FACTS,
    }
    Options: ClassVar[type[StrategyOptions]] = DPFTRLOptions
    options: DPFTRLOptions
    scheme: CorrelatedScheme
    memory: PrefixSums

    def _make_scheme(self) -> CorrelatedScheme:
        options, n = self.options, self.public.users
        cohort = options.cohort or max(1, n // options.rounds)
        sampler = CorrelatedBatches(n, cohort, options.rounds, self.seed, options.factorisation)
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        scheme = CorrelatedScheme(
            guarantee=sampler.guarantee(multiplier, self.privacy.delta, self.adversary, self.wire.clipping),
            ledger=partial(sampler.ledger, multiplier),
            # Row t of C G adds up to all answers of the run, and errors of T rows together are sqrt(T) times as long.
            # Where an encoder works on its own rows, each round since has rounded an answer a few times more.
            summands=options.rounds * (sampler.batch + sampler.factorisation.recursion),
            spread=math.sqrt(options.rounds),
            sampler=sampler,
            noise_multiplier=multiplier,
            sensitivity=sampler.sensitivity_factor * options.clip_norm / cohort * sampler.sensitivity,
            rate=options.learning_rate or self._default_step,
        )
        secure = self.privacy.noise == "secure"
        return replace(scheme, new_memory=partial(PrefixSums, scheme, self.problem.dimension, secure=secure))

    def _make_plan(self) -> Plan:
        options, scheme, sampler = self.options, self.scheme, self.scheme.sampler
        last = scheme.deviation * float(sampler.factorisation.deviations()[-1])
        noise, signal = last * math.sqrt(self.problem.dimension), options.rounds * options.clip_norm
        return self._planned(
            Landing(deviation=scheme.rate * last, reach=scheme.rate * signal),
            rounds=options.rounds,
            cohort=sampler.batch,
            users_needed=sampler.batch,
            noise=noise,
            signal=signal,
            numbers={
                "clip_norm": options.clip_norm,
                "cohort": sampler.batch,
                "participations": -(-options.rounds // sampler.batches.separation),
                "separation": sampler.batches.separation,
                "factorisation": sampler.chosen,
                "learning_rate": scheme.rate,
                "noise_multiplier": scheme.noise_multiplier,
                "l2_sensitivity": scheme.sensitivity,
                "noise_deviation": last,
            },
        )

    def _ask(self, index: int) -> Request:
        computation = Computation("user_gradient", reduce="sum", clip_norm=self.options.clip_norm)
        return Request(self.scheme.sampler.cohort(index), with_lengths(self, computation))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, memory = self.scheme, self.memory
        if memory.start is None:
            memory.start = x
        mean = gathered.values / scheme.sampler.expected_batch
        released = memory.add(mean, self._noise(index))
        following = self.problem.domain.project(memory.start - scheme.rate * released)
        noise = memory.deviation * math.sqrt(self.problem.dimension)
        facts = {"fresh_noise_deviation": memory.deviation}
        return Step(following, following, facts | clip_facts(gathered, self.options.clip_norm, mean, noise))
