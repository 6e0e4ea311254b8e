"""Steps along bias-reduced sparse gradients of random cohorts, ended by a privacy filter."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Guarantee, RoundLedger
from userdp.computations import Computation, clip_rows
from userdp.errors import BadInput
from userdp.problems.base import Vector
from userdp.randomness import stream
from userdp.sparse_gradients.bias_reduction import Draw, ProjectedMean, bias_reduced_gradient, second_moment_bound
from userdp.sparse_gradients.projection_mechanism import SparseVectors
from userdp.sparse_gradients.stopped_sgd import (
    Accounting,
    Output,
    StepBudget,
    convex_rate,
    stationary_rate,
    typical_length,
)

_LEVELS, _BATCHES, _OUTPUT = 0, 1, 2
"""Labels of the streams that draw the levels of a run, its batches, and the iterate that it gives."""


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


@dataclass(frozen=True)
class StoppedRounds:
    """The rounds of one run: their levels, who is drawn in each, and what they cost. A `userdp.accounting.Scheme`.

    *Formal guarantees.* Those of `StepBudget` with users as records. Levels come from the seed alone, so the number of
    rounds is known before any data are read.

    Attributes:
        budget: what all rounds may cost.
        seed: of levels and cohorts.
    """

    budget: StepBudget
    seed: int

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """(T,): what the filter let pass."""
        return self.budget.draw_levels(stream(self.seed, "sampling", _LEVELS))

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.levels)

    def draw(self, index: int) -> Draw:
        """Who takes part in round ``index``, and how.

        Raises:
            BadInput: there is no such round.
        """
        if not 0 <= index < self.rounds:
            raise BadInput(f"round {index} was asked for, there are {self.rounds}")
        rng = stream(self.seed, "sampling", _BATCHES, index)
        return Draw.of(self.budget.records, int(self.levels[index]), rng)

    def cohort(self, index: int) -> NDArray[np.int64]:
        """Rising indices of the users of round ``index``."""
        return self.draw(index).records

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Epsilon after ``rounds`` rounds (all of them if not given).

        Raises:
            BadInput: less noise, or a smaller delta, than the budget's.
        """
        if noise_multiplier < self.budget.noise_multiplier or delta < self.budget.delta:
            raise BadInput(
                f"noise multiplier = {noise_multiplier:g}, delta = {delta:g}: the rounds are accounted for at least "
                f"{self.budget.noise_multiplier:g} and {self.budget.delta:g}"
            )
        return self.budget.spent(self.levels[:rounds])


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

    def _make_plan(self) -> Plan:
        options, n, privacy = self.options, self.public.users, self.privacy
        budget = StepBudget(n, privacy.epsilon, privacy.delta, options.accounting, options.oracle_share)
        self._rounds = StoppedRounds(budget, self.seed)
        self._oracle = ProjectedMean(self.problem.dimension, self._members(), budget.noise_multiplier)
        self._second_moment = second_moment_bound(budget.levels, self._oracle)
        self._length = typical_length(budget)
        self._rate = options.learning_rate or self._default_rate()
        rounds = self._rounds.rounds
        self._kept_at = int(stream(self.seed, "sampling", _OUTPUT).integers(rounds + 1))
        noise = math.sqrt(self._second_moment / self._length)
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=int(max(budget.levels.batches[self._rounds.levels], default=0)) + 1,
            users=n,
            users_needed=2,
            guarantee=self._promise(),
            noise=noise,
            signal=self._oracle.largest_norm,
            numbers={
                "clip_norm": self._oracle.largest_norm,
                "sparsity": self._oracle.members.sparsity,
                "learning_rate": self._rate,
                "typical_rounds": self._length,
                "mean_cohort": budget.levels.mean_batch + 1,
                "oracle_epsilon": budget.oracle_epsilon,
                "noise_multiplier": budget.noise_multiplier,
                "estimate_norm": math.sqrt(self._second_moment),
            },
            warnings=self._warnings(rounds, noise),
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

    def _default_rate(self) -> float:
        if self.options.output == "average":
            return convex_rate(self._distance(), self._second_moment, self._length)
        smoothness, gap = self.problem.certificate.smoothness, self.options.gap
        if not smoothness or not gap:
            raise BadInput(
                "strategy.gap and a smooth loss, or strategy.learning_rate, are needed for output = 'random': the step "
                "size follows from them"
            )
        return stationary_rate(gap, smoothness, self._second_moment, self._length)

    def _distance(self) -> float:
        distance = self.options.radius or self.problem.domain.radius * math.sqrt(self.problem.dimension)
        if not math.isfinite(distance):
            raise BadInput(
                f"strategy.radius must be declared: {self.name} sets its step size by it, and the domain is unbounded"
            )
        return distance

    def _warnings(self, rounds: int, noise: float) -> tuple[str, ...]:
        norm, warnings = self._oracle.largest_norm, []
        if noise >= norm:
            warnings.append(
                f"the error bound of this run, {noise / norm:.3g} L D, is no better than the L D that an untrained "
                f"model can be off by (L = {norm:.3g}, D the distance from the start to the minimiser): it takes many "
                "more users, or another strategy, such as dp_fed_sgd"
            )
        if rounds < self._length:
            warnings.append(
                f"a large cohort ends this run after {rounds} rounds, where three in four runs have more than "
                f"{self._length}"
            )
        if self.options.output == "random" and math.isfinite(self.problem.domain.radius):
            warnings.append("the bound on the gradient of a random iterate is proven for unbounded domains only")
        return tuple(warnings)

    def _promise(self) -> Guarantee:
        return Guarantee(
            unit="user",
            relation="replace_one",
            epsilon=self._rounds.budget.spent(self._rounds.levels),
            delta=self.privacy.delta,
            accountant="privacy filter over rounds amplified by sampling without replacement",
            adversary="against other nodes and whoever sees every iterate; the server is trusted",
            assumptions=(
                "n is public, and who takes part in which round stays secret, from other nodes too (what a large node "
                "knows of its own users' draws raises the others' rate)",
                "nodes compute as told, and the server is trusted",
            ),
            holds=True,
        )

    def _make_ledger(self) -> RoundLedger:
        return RoundLedger(self._rounds, self._rounds.budget.noise_multiplier, self.privacy)

    def _ask(self, index: int) -> Request:
        computation = Computation("user_gradient", clip_norm=self._oracle.largest_norm)
        return Request(self._rounds.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        following = self.problem.domain.project(x - self._rate * self._estimate(index, gathered))
        return following, self._output(index, x, following)

    def _estimate(self, index: int, gathered: Gathered) -> Vector:
        """The private gradient estimate of round ``index``."""
        draw, users = self._rounds.draw(index), self._rounds.cohort(index)
        # Clipped again: the sensitivity must not rest on what other nodes say that they have clipped.
        rows = clip_rows(gathered.values, self._oracle.largest_norm)
        batch, single = rows[np.searchsorted(users, draw.batch)], rows[np.searchsorted(users, draw.single)]
        chance = float(self._rounds.budget.levels.chances[draw.level])
        # Not how many took part: that would tell whether the single user is in the batch, which the accounting hides.
        self.facts = {"level": float(draw.level)}
        return bias_reduced_gradient(batch, single, chance, self._oracle, self._noise(index))

    def _output(self, index: int, x: Vector, following: Vector) -> Vector:
        """The model after round ``index``: the average of the iterates, or one of them once it is reached."""
        if index == 0:
            self._total, self._kept = x.copy(), x
        self._total += following
        if self.options.output == "average":
            return self._total / (index + 2)
        if index + 1 <= self._kept_at:
            self._kept = following
        return self._kept
