"""Steps along bias-reduced sparse gradients of random cohorts, ended by a privacy filter."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Step
from strategies.core.ways import Course
from strategies.sparse.iterates import IterateAverage, RandomIterate
from strategies.sparse.stopped_rounds import StoppedRounds
from strategies.sparse.stopped_scheme import StoppedScheme, run_warnings
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee, RoundLedger
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.papers.sparse_gradients.bias_reduction import (
    MeanOracle,
    ProjectedMean,
    second_moment_bound,
)
from userdp.papers.sparse_gradients.projection_mechanism import SparseVectors
from userdp.papers.sparse_gradients.recovered_mean import RecoveredMean
from userdp.papers.sparse_gradients.stopped_sgd import (
    Accounting,
    Output,
    StepBudget,
    convex_rate,
    stationary_rate,
    typical_length,
)
from userdp.randomness import stream
from userdp.sampling.random_cohorts import DRAWN_TOGETHER

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
    oracle: Literal["projection", "recovery"] = Field(
        "projection",
        description="projection: noisy means, projected; recovery: from noisy random measurements, by the least l1 "
        "norm. No constant of its error is proven, so give learning_rate, too.",
    )
    runs: int = Field(
        1,
        ge=1,
        le=100,
        description="Runs that share the budget; of several, a last round of all users chooses the one of the lowest "
        "loss. For output = 'average'.",
    )
    choice_share: float = Field(0.1, gt=0, lt=1, description="Of epsilon, for the choice among several runs.")
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
    how many rounds there are does not depend on data. Every iterate is private, against whoever does not
    know who takes part: nodes are trusted not to use what they know of their own users' draws, on which the others'
    depend; the server is trusted and sees each drawn user's clipped gradient. A user of the cohort is in two of the
    means of the cohort and its halves. Levels, and with them cohort sizes, are drawn without the data, so costs are
    known before a round runs, and the filter (Whitehouse, Ramdas, Rogers, Wu 2023) ends the run before the first
    that would exceed the budget. Several runs (`runs`) share one filter, and so compose, for nodes that see them all,
    too; levels of one run are independent of another's. The model among their ends is chosen by the exponential
    mechanism: a user's change of loss from the start to model j is held to ``+- L ||x_j - start||_2``, a number of
    released models, by the node and again by the server, so a user moves a sum by at most twice the largest of
    these; that is (choice_share epsilon, 0)-DP, and added. With the oracle "recovery" rows are clipped to l1 norm
    L sqrt(s) as well, and a mean is measured by a public matrix whose stretch on such rows is known (`RecoveredMean`).

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
    promise: ClassVar[str] = "user level; against other nodes too, unless cohorts are drawn without replacement"
    adversary: ClassVar[str] = DRAWN_TOGETHER
    without_secure_noise: ClassVar[str | None] = "its cohorts, which must stay secret, come from the seed"
    meanings: ClassVar[Mapping[str, str]] = {
        "sparsity": "most non-zeros of a sample's gradient",
        "level": "features and targets are cut at it",
        "typical_rounds": "three runs in four have more rounds than this",
        "runs": "that share the budget; the best is chosen",
        "choice_epsilon": "epsilon of choosing among the runs",
        "mean_cohort": "users a round, on average",
        "oracle_epsilon": "epsilon of one noisy mean, before amplification by sampling",
        "estimate_norm": "bound on the root mean square l2 norm of a round's gradient estimate",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "chosen_run": Fact("noised", "which of several runs was chosen, from 1"),
        "level": Fact("public", "level of the bias-reduced estimate, drawn without looking at data"),
    }
    Options: ClassVar[type[StrategyOptions]] = StoppedOptions
    options: StoppedOptions
    scheme: StoppedScheme
    memory: IterateAverage | RandomIterate

    def _make_scheme(self) -> StoppedScheme:
        options, privacy = self.options, self.privacy
        choice = options.choice_share * privacy.epsilon if options.runs > 1 else 0.0
        budget = StepBudget(
            self.public.users,
            privacy.epsilon - choice,
            privacy.delta,
            options.accounting,
            options.oracle_share,
            options.runs,
        )
        sampler, members = StoppedRounds(budget, self.seed, choice), self._members()
        oracle = self._oracle(budget, members)
        second_moment, length = second_moment_bound(budget.levels, oracle), typical_length(budget)
        return StoppedScheme(
            guarantee=self._guarantee_of(sampler),
            ledger=partial(RoundLedger, sampler, budget.noise_multiplier),
            new_memory=self._memory_of(sampler.rounds),
            sampler=sampler,
            oracle=oracle,
            members=members,
            l1_norm=members.l1_norm if options.oracle == "recovery" else None,
            choice_epsilon=choice,
            second_moment=second_moment,
            length=length,
            rate=options.learning_rate or self._default_rate(second_moment, length),
        )

    def _oracle(self, budget: StepBudget, members: SparseVectors) -> MeanOracle:
        dimension = self.problem.dimension
        if self.options.oracle == "projection":
            return ProjectedMean(dimension, members, budget.noise_multiplier)
        return RecoveredMean(dimension, members, budget.oracle_epsilon, budget.oracle_delta, self.seed)

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
        if self.options.runs > 1:
            raise BadInput(
                "strategy.runs must be 1 with output = 'random': runs are compared by their loss, which says nothing "
                "of a gradient"
            )
        return partial(RandomIterate, int(stream(self.seed, "sampling", _OUTPUT).integers(rounds + 1)))

    def _guarantee_of(self, sampler: StoppedRounds) -> Guarantee:
        return self._promise(
            sampler.epsilon(sampler.budget.noise_multiplier, sampler.budget.delta),
            "privacy filter over rounds amplified by sampling without replacement"
            + (", and a choice among runs, added" if sampler.choice_epsilon else ""),
            (
                "n is public, and who takes part in which round stays secret, from other nodes too (what a large node "
                "knows of its own users' draws raises the others' rate)",
                "nodes compute as told, and the server is trusted",
            ),
        )

    def _make_plan(self) -> Plan:
        scheme, members, budget = self.scheme, self.scheme.members, self.scheme.sampler.budget
        bounded = math.isfinite(self.problem.domain.radius)
        return self._planned(
            Course(
                steps=max(1, round(scheme.length)),
                rate=scheme.rate,
                deviation=math.sqrt(scheme.second_moment / self.problem.dimension),
                longest=members.norm,
                averaged=self.options.output == "average",
            ),
            rounds=scheme.sampler.rounds,
            cohort=int(max(budget.levels.batches[scheme.sampler.levels], default=0)) + 1
            if budget.runs == 1
            else budget.records,
            users_needed=2,
            noise=scheme.noise,
            signal=members.norm,
            numbers={
                "clip_norm": members.norm,
                "sparsity": members.sparsity,
                "learning_rate": scheme.rate,
                "typical_rounds": scheme.length,
                "mean_cohort": budget.levels.mean_batch + 1,
                "oracle_epsilon": budget.oracle_epsilon,
                "noise_multiplier": budget.noise_multiplier,
                "estimate_norm": math.sqrt(scheme.second_moment),
                **({"runs": budget.runs, "choice_epsilon": scheme.choice_epsilon} if budget.runs > 1 else {}),
            },
            warnings=run_warnings(scheme, self.options.output, bounded=bounded),
        )

    def _ask(self, index: int) -> Request:
        scheme = self.scheme
        if index == scheme.sampler.steps:
            models, start = self._ends()
            arrays = {"models": models, "reach": scheme.reach(models, start)}
            return Request(scheme.sampler.cohort(index), Computation("loss_changes", arrays=arrays))
        computation = Computation("user_gradient", clip_norm=scheme.members.norm, l1_norm=scheme.l1_norm)
        return Request(scheme.sampler.cohort(index), computation)

    def _ends(self) -> tuple[NDArray[np.float64], Vector]:
        """((k, p) what several runs gave, where they started)."""
        assert isinstance(self.memory, IterateAverage)
        assert self.memory.start is not None
        return np.array(self.memory.finished), self.memory.start

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        if index == scheme.sampler.steps:
            models, start = self._ends()
            chosen = scheme.choose(gathered.values, scheme.reach(models, start), self._noise(index))
            return Step(models[chosen], models[chosen], {"chosen_run": float(chosen + 1)})
        draw = scheme.sampler.draw(index)
        estimate = scheme.estimate(draw, gathered.values, self._noise(index))
        following = self.problem.domain.project(x - scheme.rate * estimate)
        # Not how many took part: that would tell whether the single user is in the batch, which the accounting hides.
        facts = {"level": float(draw.level)}
        released = self.memory.output(x, following)
        if index in scheme.sampler.ends and isinstance(self.memory, IterateAverage) and scheme.choice_epsilon:
            following = self.memory.restart(released)
        return Step(following, released, facts)
