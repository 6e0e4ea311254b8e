"""Steps along bias-reduced sparse gradients of random cohorts, ended by a privacy filter."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Scheme, Step
from strategies.core.ways import Course
from strategies.sparse.stopped_rounds import StoppedRounds
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee, RoundLedger
from userdp.arrays.sparse_rows import clip_rows
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.noise import NoiseSource
from userdp.papers.sparse_gradients.bias_reduction import (
    Draw,
    ProjectedMean,
    bias_reduced_gradient,
    second_moment_bound,
)
from userdp.papers.sparse_gradients.projection_mechanism import SparseVectors
from userdp.papers.sparse_gradients.stopped_sgd import (
    Accounting,
    Output,
    StepBudget,
    convex_rate,
    stationary_rate,
    typical_length,
)
from userdp.randomness import stream

_OUTPUT = 2
"""Label of the stream that draws the iterate that a run gives; `StoppedRounds` has 0 and 1."""


class StoppedOptions(StrategyOptions):
    """Settings of `StoppedSGD`."""

    clip_norm: float | None = Field(
        None,
        gt=0,
        description="L: l2 norm that each user's average gradient is clipped to; the certified if not given.",
    )
    sparsity: int | None = Field(
        None, ge=1, description="s: non-zero entries of a sample's gradient; certified, or the dimension, if not given."
    )
    accounting: Accounting = Field(
        "tight", description="tight: what the steps cost and all of the budget; paper: as printed, for epsilon <= 1."
    )
    oracle_share: float = Field(
        0.25, gt=0, le=1, description="Epsilon of one noisy mean, as a share; more of it makes fewer, quieter rounds."
    )
    output: Output = Field(
        "average", description="average: of all iterates, for convex losses; random: one of them, for any loss."
    )
    radius: float | None = Field(
        None, gt=0, description="D, bound on the l2 distance from start to minimiser; from the domain if not given."
    )
    gap: float | None = Field(
        None, gt=0, description="Bound on how far the loss at the start lies above its minimum; for output = 'random'."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; by theory if not given.")


@dataclass(frozen=True, kw_only=True)
class StoppedScheme(Scheme):
    """A `Scheme` of bias-reduced gradients.

    Attributes:
        sampler: who takes part in each round, and how many rounds there are.
        oracle: of one noisy mean of clipped gradients.
        second_moment: bound on that of an estimate.
        length: rounds that three runs in four have.
        rate: step size.
    """

    sampler: StoppedRounds
    oracle: ProjectedMean
    second_moment: float
    length: int
    rate: float

    @property
    def noise(self) -> float:
        """The bound on a run's error, per unit of the distance from its start to the minimiser."""
        return math.sqrt(self.second_moment / self.length)

    def estimate(self, draw: Draw, rows: NDArray[np.float64], noise: NoiseSource) -> Vector:
        """The private gradient estimate of a draw, from the rows of its users."""
        # Clipped again: the sensitivity must not rest on what other nodes say that they have clipped.
        rows = clip_rows(rows, self.oracle.largest_norm)
        users = draw.records
        batch, single = rows[np.searchsorted(users, draw.batch)], rows[np.searchsorted(users, draw.single)]
        chance = float(self.sampler.budget.levels.chances[draw.level])
        return bias_reduced_gradient(batch, single, chance, self.oracle, noise)


class IterateAverage:
    """The memory of a run that gives the average of its iterates, the start included."""

    def __init__(self) -> None:
        self._total: Vector | None = None
        self._count = 0

    def output(self, x: Vector, following: Vector) -> Vector:
        """The model after a step from ``x``."""
        if self._total is None:
            self._total, self._count = x.copy(), 1
        self._total += following
        self._count += 1
        return self._total / self._count


class RandomIterate:
    """The memory of a run that gives one of its iterates, drawn before it starts.

    Args:
        kept_at: how many steps that one has behind it.
    """

    def __init__(self, kept_at: int) -> None:
        self.kept_at = kept_at
        self._steps = 0
        self._kept: Vector | None = None

    def output(self, x: Vector, following: Vector) -> Vector:
        """The model after a step from ``x``: the latest iterate until the drawn one is reached."""
        if self._kept is None:
            self._kept = x
        self._steps += 1
        if self._steps <= self.kept_at:
            self._kept = following
        return self._kept


def run_warnings(scheme: StoppedScheme, output: Output, *, bounded: bool) -> tuple[str, ...]:
    """What is worth saying of a run that gives this output, in a bounded domain or not."""
    norm, noise, rounds, warnings = scheme.oracle.largest_norm, scheme.noise, scheme.sampler.rounds, []
    if noise >= norm:
        warnings.append(
            f"the error bound of this run, {noise / norm:.3g} L D, is no better than the L D that an untrained "
            f"model can be off by (L = {norm:.3g}, D the distance from the start to the minimiser): it takes many "
            "more users, or another strategy, such as dp_fed_sgd"
        )
    if rounds < scheme.length:
        warnings.append(
            f"a large cohort ends this run after {rounds} rounds, where three in four runs have more than "
            f"{scheme.length}"
        )
    if output == "random" and bounded:
        warnings.append("the bound on the gradient of a random iterate is proven for unbounded domains only")
    return tuple(warnings)


class StoppedSGD(UserLevelStrategy):
    """Steps along bias-reduced gradients of random cohorts, until the next cohort would exceed the budget.

    Each round draws a level N, of probability about 2^-(N+1), a cohort of 2^(N+1) users in two halves, and one more
    user. The noisy, projected means of the cohort, of its halves and of that user make an estimate that has the bias of
    the largest cohort there can be.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one, n public. Each user's average gradient is clipped to l2 norm L, so replacing one
    moves the mean of b users by at most 2L / b, to which each mean's Gaussian noise is calibrated; divisors are
    public, and missing users count as zero. Sparsity is used by projections of noisy means only, which are
    post-processing: a wrong one costs accuracy, not privacy. A round costs what `StepBudget` says, amplified by
    sampling without replacement while cohorts stay secret; a privacy filter composes the rounds. Who is drawn and
    how many rounds there are does not depend on data. Every iterate is private: nodes are protected from each
    other; the server is trusted and sees each drawn user's clipped gradient. A user of the cohort is in two of the
    means of the cohort and its halves. Levels, and with them cohort sizes, are drawn without the data, so costs are
    known before a round runs, and the filter (Whitehouse, Ramdas, Rogers, Wu 2023) ends the run before the first
    that would exceed the budget.

    *Assumptions.* n is public. Who takes part in which round stays secret, from other nodes too. The server is
    trusted. Other nodes may answer with anything: rows are clipped again by the server.

    The server holds the rows of one cohort: at most (n + 1) d numbers, typically a few times d.
    """

    name: ClassVar[str] = "stopped_sgd"
    summary_line: ClassVar[str] = "bias-reduced sparse gradients of random cohorts, until a privacy filter says stop"
    family: ClassVar[str] = "sparse"
    cost: ClassVar[str] = (
        "about 2n / ln(1 / delta) rounds of log2(n) users on average, n at worst; node O(N d), a row of d numbers a "
        "user up; server O(U d + d log d)"
    )
    paper: ClassVar[str] = "Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithms 1, 3, 4), corrected"
    needs: ClassVar[str] = "any loss; sparse gradients and very many users to be of use"
    without_secure_noise: ClassVar[str | None] = "its cohorts, which must stay secret, come from the seed"
    meanings: ClassVar[Mapping[str, str]] = {
        "sparsity": "most non-zeros of a sample's gradient",
        "level": "features and targets are cut at it",
        "typical_rounds": "three runs in four have more rounds than this",
        "mean_cohort": "users a round, on average",
        "oracle_epsilon": "epsilon of one noisy mean, before amplification by sampling",
        "estimate_norm": "bound on the root mean square l2 norm of a round's gradient estimate",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "level": Fact("public", "level of the bias-reduced estimate, drawn without looking at data"),
    }
    Options: ClassVar[type[StrategyOptions]] = StoppedOptions
    options: StoppedOptions
    scheme: StoppedScheme
    memory: IterateAverage | RandomIterate

    def _make_scheme(self) -> StoppedScheme:
        options, privacy = self.options, self.privacy
        budget = StepBudget(self.public.users, privacy.epsilon, privacy.delta, options.accounting, options.oracle_share)
        sampler = StoppedRounds(budget, self.seed)
        oracle = ProjectedMean(self.problem.dimension, self._members(), budget.noise_multiplier)
        second_moment, length = second_moment_bound(budget.levels, oracle), typical_length(budget)
        return StoppedScheme(
            guarantee=self._guarantee_of(sampler),
            ledger=partial(RoundLedger, sampler, budget.noise_multiplier),
            new_memory=self._memory_of(sampler.rounds),
            sampler=sampler,
            oracle=oracle,
            second_moment=second_moment,
            length=length,
            rate=options.learning_rate or self._default_rate(second_moment, length),
        )

    def _members(self) -> SparseVectors:
        certificate, d = self.problem.certificate, self.problem.dimension
        norm = self.options.clip_norm or certificate.gradient_norm
        if not norm:
            raise BadInput(
                f"strategy.clip_norm must be declared: {self.name} clips users' gradients to it, and the problem "
                "certifies no positive bound"
            )
        return SparseVectors(min(self.options.sparsity or certificate.sparsity or d, d), norm)

    def _default_rate(self, second_moment: float, length: int) -> float:
        if self.options.output == "average":
            return convex_rate(self._distance(), second_moment, length)
        smoothness, gap = self.problem.certificate.smoothness, self.options.gap
        if not smoothness or not gap:
            raise BadInput(
                "strategy.gap and a smooth loss, or strategy.learning_rate, are needed for output = 'random': the step "
                "size follows from them"
            )
        return stationary_rate(gap, smoothness, second_moment, length)

    def _distance(self) -> float:
        distance = self.options.radius or self.problem.domain.radius * math.sqrt(self.problem.dimension)
        if not math.isfinite(distance):
            raise BadInput(
                f"strategy.radius must be declared: {self.name} sets its step size by it, and the domain is unbounded"
            )
        return distance

    def _memory_of(self, rounds: int) -> Callable[[], IterateAverage | RandomIterate]:
        """What makes the memory of a run of so many rounds."""
        if self.options.output == "average":
            return IterateAverage
        return partial(RandomIterate, int(stream(self.seed, "sampling", _OUTPUT).integers(rounds + 1)))

    def _guarantee_of(self, sampler: StoppedRounds) -> Guarantee:
        return self._promise(
            sampler.budget.spent(sampler.levels),
            "privacy filter over rounds amplified by sampling without replacement",
            (
                "n is public, and who takes part in which round stays secret, from other nodes too (what a large node "
                "knows of its own users' draws raises the others' rate)",
                "nodes compute as told, and the server is trusted",
            ),
        )

    def _make_plan(self) -> Plan:
        scheme, oracle, budget = self.scheme, self.scheme.oracle, self.scheme.sampler.budget
        bounded = math.isfinite(self.problem.domain.radius)
        return self._planned(
            Course(
                steps=max(1, round(scheme.length)),
                rate=scheme.rate,
                deviation=math.sqrt(scheme.second_moment / self.problem.dimension),
                longest=oracle.largest_norm,
                averaged=self.options.output == "average",
            ),
            rounds=scheme.sampler.rounds,
            cohort=int(max(budget.levels.batches[scheme.sampler.levels], default=0)) + 1,
            users_needed=2,
            noise=scheme.noise,
            signal=oracle.largest_norm,
            numbers={
                "clip_norm": oracle.largest_norm,
                "sparsity": oracle.members.sparsity,
                "learning_rate": scheme.rate,
                "typical_rounds": scheme.length,
                "mean_cohort": budget.levels.mean_batch + 1,
                "oracle_epsilon": budget.oracle_epsilon,
                "noise_multiplier": budget.noise_multiplier,
                "estimate_norm": math.sqrt(scheme.second_moment),
            },
            warnings=run_warnings(scheme, self.options.output, bounded=bounded),
        )

    def _ask(self, index: int) -> Request:
        computation = Computation("user_gradient", clip_norm=self.scheme.oracle.largest_norm)
        return Request(self.scheme.sampler.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, draw = self.scheme, self.scheme.sampler.draw(index)
        estimate = scheme.estimate(draw, gathered.values, self._noise(index))
        following = self.problem.domain.project(x - scheme.rate * estimate)
        # Not how many took part: that would tell whether the single user is in the batch, which the accounting hides.
        facts = {"level": float(draw.level)}
        return Step(following, self.memory.output(x, following), facts)
