"""The error bound of one run if several runs share a budget, for the page on sparse gradients."""

import math

from strategies.baselines.sparse_gradients.bias_reduction import ProjectedMean, second_moment_bound
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.reference.boosting import SelectionBudget
from strategies.baselines.sparse_gradients.stopping import StepBudget, typical_length

RECORDS = (1_000, 10_000, 30_000)
RUNS = (4, 16)
EPSILON, CHOICE = 1.0, 0.1
DIMENSION, MEMBERS = 10**6, SparseVectors(4, 1.0)


def bounds() -> str:
    """Return a row per number of records: one run, several under one filter, and one under the paper's selection."""
    several = [f"{runs} runs, one filter" for runs in RUNS]
    head = ["n", "one run", *several, "one run of Algorithm 5"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for records in RECORDS:
        delta = 0.9 / records**2
        # The same chance of a good run as with four runs: 15 in 16.
        paper = SelectionBudget(EPSILON, delta, 2 / 16)
        budgets = [
            StepBudget(records, EPSILON, delta),
            *(StepBudget(records, (1 - CHOICE) * EPSILON, delta, runs=runs) for runs in RUNS),
            StepBudget(records, paper.run_epsilon, paper.run_delta),
        ]
        lines.append(f"| {records:,} | {' | '.join(f'{_bound(budget):.3g}' for budget in budgets)} |")
    return "\n".join(
        [
            f"Bound on the excess risk of one run in units of L D (d = {DIMENSION:,}, s = {MEMBERS.sparsity}, "
            f"epsilon = {EPSILON:g}, delta = 0.9/n^2, tight):",
            "",
            *lines,
        ]
    )


def _bound(budget: StepBudget) -> float:
    """Return the bound of a run, ``nu / sqrt(tau)``."""
    oracle = ProjectedMean(DIMENSION, MEMBERS, budget.noise_multiplier)
    return math.sqrt(second_moment_bound(budget.levels, oracle) / typical_length(budget))


PARTS = {"runs": bounds}
"""Part of the page -> its table, made anew with the page."""
