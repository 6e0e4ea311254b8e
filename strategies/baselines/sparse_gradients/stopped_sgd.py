"""Steps along bias-reduced sparse gradients of random cohorts, ended by a privacy filter."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from strategies import About, Fact, Given, NoisySteps, Outline, Price, Recipe
from strategies.baselines.declared_bounds import declared
from strategies.baselines.sparse_gradients import stopping as theory
from strategies.baselines.sparse_gradients.bias_reduction import MeanOracle, ProjectedMean, second_moment_bound
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.recovery import RecoveredMean
from strategies.baselines.sparse_gradients.stopped_scheme import (
    IterateAverage,
    Iterates,
    RandomIterate,
    StoppedRounds,
    StoppedScheme,
)
from userdp.accounting import RoundLedger
from userdp.errors import BadInput
from userdp.randomness import stream
from userdp.sampling import DRAWN_TOGETHER

_OUTPUT = 2
"""Label of the stream that draws the iterate that a run gives; `StoppedRounds` has 0 and 1."""


class StoppedSGD(Recipe):
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
    these; that is (choice_share epsilon, 0)-DP, and added. With ``output = "random"`` the score of a model is minus
    the length of the sum of users' gradients there, each of which its node clips to L: a user moves the sum, and so
    its length, by at most 2 L. With the oracle "recovery" rows are clipped to l1 norm
    L sqrt(s) as well, and a mean is measured by a public matrix whose stretch on such rows is known (`RecoveredMean`).

    *Assumptions.* n is public. Who takes part in which round stays secret, from other nodes too. The server is
    trusted. Other nodes may answer with anything: rows are clipped again by the server.

    The server holds the rows of one cohort: at most (n + 1) d numbers, typically a few times d.
    """

    about: ClassVar[About] = About(
        name="stopped_sgd",
        summary_line="bias-reduced sparse gradients of random cohorts, until a privacy filter says stop",
        family="sparse",
        cost="about 2n / ln(1 / delta) rounds of log2(n) users on average, n at worst; node O(N d), a row of d numbers "
        "a user up; server O(U d + d log d)",
        paper="Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithms 1, 3, 4), corrected; Algorithm 5 for nodes",
        needs="any loss; sparse gradients and very many users to be of use",
        promise="user level; against other nodes too, unless cohorts are drawn without replacement",
        adversary=DRAWN_TOGETHER,
        without_secure_noise="its cohorts, which must stay secret, come from the seed",
        meanings={
            "sparsity": "most non-zeros of a sample's gradient",
            "typical_rounds": "three runs in four have more rounds than this",
            "runs": "that share the budget; the best is chosen",
            "choice_epsilon": "epsilon of choosing among the runs",
            "mean_cohort": "users per round, on average",
            "oracle_epsilon": "epsilon of one noisy mean, before amplification by sampling",
            "estimate_norm": "bound on the root mean square l2 norm of a round's gradient estimate",
        },
        notes={
            "chosen_run": Fact("noised", "which of several runs was chosen, from 1"),
            "level": Fact("public", "level of the bias-reduced estimate, drawn without looking at data"),
        },
    )

    clip_norm: float | None = Field(
        None,
        gt=0,
        description="L: l2 norm that each user's average gradient is clipped to; the certified if not given.",
    )
    sparsity: int | None = Field(
        None, ge=1, description="s: non-zero entries of a sample's gradient; certified, or the dimension, if not given."
    )
    accounting: theory.Accounting = Field(
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
        "loss, or for output = 'random' of the shortest gradient.",
    )
    choice_share: float = Field(0.1, gt=0, lt=1, description="Of epsilon, for the choice among several runs.")
    output: theory.Output = Field(
        "average", description="average: of all iterates, for convex losses; random: one of them, for any loss."
    )
    radius: float | None = Field(
        None, gt=0, description="D, bound on the l2 distance from start to minimiser; from the domain if not given."
    )
    gap: float | None = Field(
        None, gt=0, description="Bound on how far the loss at the start lies above its minimum; for output = 'random'."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; by theory if not given.")

    def scheme(self, given: Given) -> StoppedScheme:
        n, p, epsilon, recovery = given.users, given.dimension, given.privacy.epsilon, self.oracle == "recovery"
        choice = self.choice_share * epsilon if self.runs > 1 else 0.0
        budget = theory.StepBudget(
            n, epsilon - choice, given.privacy.delta, self.accounting, self.oracle_share, self.runs
        )
        sampler, members = StoppedRounds(budget, given.seed, choice), self._members(given)
        oracle: MeanOracle = ProjectedMean(p, members, budget.noise_multiplier)
        if recovery:
            oracle = RecoveredMean(p, members, budget.oracle_epsilon, budget.oracle_delta, given.seed)
        second_moment, length = second_moment_bound(budget.levels, oracle), theory.typical_length(budget)
        new_memory = self._new_memory(sampler, given.seed)
        rate = self.learning_rate or self._default_rate(given, second_moment, length)
        rests_on = (
            "n is public, and who takes part in which round stays secret, from other nodes too (what a large node "
            "knows of its own users' draws raises the others' rate)",
            "nodes compute as requested, and the server is trusted",
        )
        promise = given.promise(
            sampler.epsilon(budget.noise_multiplier, budget.delta),
            "privacy filter over rounds amplified by sampling without replacement"
            + (", and a choice among runs, added" if choice else ""),
            rests_on,
        )
        return StoppedScheme(
            price=Price(promise, partial(RoundLedger, sampler, budget.noise_multiplier)),
            outline=self._outline(given, sampler, members, rate, second_moment, length),
            new_memory=new_memory,
            domain=given.problem.domain,
            rounds=sampler,
            oracle=oracle,
            members=members,
            l1_norm=members.l1_norm if recovery else None,
            rate=rate,
            by_gradient=self.output == "random",
        )

    def _members(self, given: Given) -> SparseVectors:
        """Return the clip of gradients."""
        certificate, d = given.problem.certificate, given.dimension
        use = "clips users' gradients to it, and the problem certifies no positive bound"
        norm = declared(given, "clip_norm", self.clip_norm or certificate.gradient_norm, use)
        return SparseVectors(min(self.sparsity or certificate.sparsity or d, d), norm)

    def _default_rate(self, given: Given, second_moment: float, length: int) -> float:
        if self.output == "average":
            distance = self.radius or given.problem.domain.radius * math.sqrt(given.dimension)
            distance = declared(given, "radius", distance, "sets its step size by it, and the domain is unbounded")
            return theory.convex_rate(distance, second_moment, length)
        smoothness = given.problem.certificate.smoothness
        if not smoothness or not self.gap:
            raise BadInput(
                "strategy.gap and a smooth loss, or strategy.learning_rate, are needed for output = 'random': the step "
                "size follows from them"
            )
        return theory.stationary_rate(self.gap, smoothness, second_moment, length)

    def _new_memory(self, sampler: StoppedRounds, seed: int) -> Callable[[], Iterates]:
        """Return the function that makes the memory of these runs."""
        if self.output == "average":
            return IterateAverage
        rng = stream(seed, "sampling", _OUTPUT)
        return partial(RandomIterate, kept_at=tuple(int(rng.integers(steps + 1)) for steps in sampler.lengths))

    def _outline(
        self, given: Given, sampler: StoppedRounds, members: SparseVectors, rate: float, moment: float, length: int
    ) -> Outline:
        """The scheme in numbers; noise is the bound on a run's error, per unit of its distance to the minimiser."""
        budget, noise, averaged = sampler.budget, math.sqrt(moment / length), self.output == "average"
        deviation, bounded = math.sqrt(moment / given.dimension), math.isfinite(given.problem.domain.radius)
        largest = int(max(budget.levels.batches[sampler.levels], default=0)) + 1
        several = {"runs": budget.runs, "choice_epsilon": sampler.choice_epsilon} if budget.runs > 1 else {}
        return Outline(
            rounds=sampler.rounds,
            cohort=largest if budget.runs == 1 else budget.records,
            users_needed=2,
            path=NoisySteps(
                steps=max(1, length), rate=rate, deviation=deviation, longest=members.norm, averaged=averaged
            ),
            noise=noise,
            signal=members.norm,
            numbers={
                "clip_norm": members.norm,
                "sparsity": members.sparsity,
                "learning_rate": rate,
                "typical_rounds": length,
                "mean_cohort": budget.levels.mean_batch + 1,
                "oracle_epsilon": budget.oracle_epsilon,
                "noise_multiplier": budget.noise_multiplier,
                "estimate_norm": math.sqrt(moment),
                **several,
            },
            warnings=tuple(_warnings(sampler, members.norm, noise, length, unproven=bounded and not averaged)),
        )


def _warnings(sampler: StoppedRounds, norm: float, noise: float, length: int, *, unproven: bool) -> Iterator[str]:
    """Return the warnings about the runs; ``unproven`` if no bound on a random iterate's gradient is known."""
    runs, rounds = sampler.budget.runs, sampler.steps // sampler.budget.runs
    if noise >= norm:
        yield (
            f"the error bound of this run, {noise / norm:.3g} L D, is no better than the L D that an untrained model "
            f"can be off by (L = {norm:.3g}, D the distance from the start to the minimiser): it takes many more "
            "users, or another strategy, such as dp_fed_sgd"
        )
    if rounds < length:
        run = "this run" if runs == 1 else "runs"
        yield f"large cohorts end {run} after {rounds} rounds, where three in four have more than {length}"
    if unproven:
        yield "the bound on the gradient of a random iterate is proven for unbounded domains only"
