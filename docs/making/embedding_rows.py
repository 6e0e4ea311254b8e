"""The log losses of docs/neural.md by which rows of an embedding train, from research/results/embedding_rows.csv."""

import math
from pathlib import Path

import pandas as pd

from making.courses import fill

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results" / "embedding_rows.csv"
CHOICES = ("all", "found", "each_round")


def section() -> str:
    """Return the table, and a sentence about where a choice of rows halves what all rows leave."""
    losses, seeds, people = _best()
    head = ["model", "users", "items", "epsilon", *(f"`{each}`" for each in CHOICES), "constant", "no privacy"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    halved = []
    for name, epsilon in dict.fromkeys((name, epsilon) for name, epsilon, _ in losses if math.isfinite(epsilon)):
        own = {each: losses[name, epsilon, each] for each in CHOICES}
        constant, free = losses[name, math.inf, "constant"], losses[name, math.inf, "all"]
        numbers = (f"{value:.4f}" for value in (*own.values(), constant, free))
        users, items = people[name]
        lines.append(f"| {name} | {users:,} | {items:,} | {epsilon:g} | {' | '.join(numbers)} |")
        best = min(own, key=own.__getitem__)
        if best != "all" and own[best] - free <= (own["all"] - free) / 2:
            halved.append(f"{name} at epsilon {epsilon:g} (`{best}`)")
    shares = [f"{name} {loss:.4f}" for (name, _, rows), loss in losses.items() if rows == "own_share"]
    told = f"The mean of each item alone, without privacy, has: {', '.join(shares)}. "
    told += f"Choosing rows halves the gap that all leave to no privacy for: {', '.join(halved) or 'none'}."
    return "\n".join([*lines, "", fill(f"Means of {seeds} seeds. {told}")])


def _best() -> tuple[dict[tuple[str, float, str], float], int, dict[str, tuple[int, int]]]:
    """Return (population, epsilon, rows) -> the mean loss at the best step; the seeds; population -> users, items."""
    rows = pd.read_csv(RESULTS)
    means = rows.groupby(["population", "epsilon", "rows", "step"], dropna=False, sort=False)["loss"].mean()
    best = means.groupby(["population", "epsilon", "rows"], sort=False).min()
    sizes = rows.groupby("population", sort=False)[["users", "items"]].first()
    people = {str(name): (int(users), int(items)) for name, users, items in sizes.itertuples(name=None)}
    return {(str(a), float(b), str(c)): float(loss) for (a, b, c), loss in best.items()}, rows["seed"].nunique(), people
