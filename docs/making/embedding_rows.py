"""The log losses of docs/neural.md by which rows of an embedding train, from research/results/embedding_rows.csv."""

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from making.courses import fill

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results" / "embedding_rows.csv"
CHOICES = ("all", "found", "each_round", "projected")


def section() -> str:
    """Return the table, and sentences about where a choice of rows pays, and what an oracle's would."""
    rows = pd.read_csv(RESULTS)
    means = rows.groupby(["population", "epsilon", "rows", "kept", "step"], dropna=False, sort=False)["loss"].mean()
    best = means.groupby(["population", "epsilon", "rows", "kept"], dropna=False, sort=False).min().reset_index()
    head = ["users of", "epsilon", *(f"`{each}`" for each in CHOICES), "known", "noiseless", "constant", "no privacy"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    halves, oracle = list[str](), list[str]()
    for (name, epsilon), cell in best[best["epsilon"] < math.inf].groupby(["population", "epsilon"], sort=False):
        own = {which: _least(cell, which) for which in CHOICES}
        free = best[(best["population"] == name) & (best["epsilon"] == math.inf)]
        known, kept = min(cell[cell["rows"] == "known"][["loss", "kept"]].to_numpy().tolist(), default=(math.nan, 0.0))
        quiet, constant, none = (
            _least(free[free["kept"] == kept], "known"),
            _least(free, "constant"),
            _least(free, "all"),
        )
        numbers = (*own.values(), known, quiet, constant, none)
        lines.append(f"| {name} | {epsilon:g} | {' | '.join(map(_number, numbers))} |")
        case, middle = f"{name} {epsilon:g}", (own["all"] + none) / 2
        halves += [case] if min(own.values()) <= middle else []
        gains, noise = ((each - other) / (own["all"] - none) for each, other in ((own["all"], known), (known, quiet)))
        oracle += [f"{case} {gains:.0%}, and noise on them is {noise:.0%}"] if kept else []
    told = f"Means of {rows['seed'].nunique()} seeds. {_people(rows)} Choices halve what `all` leaves to no privacy "
    told += f"for: {_listed(halves)}. Known rows would gain of it: {_listed(oracle)}."
    return "\n".join([*lines, "", fill(told)])


def _people(rows: pd.DataFrame) -> str:
    """Say how many users and items there are, how many a user has, and what the items' own means give."""
    first = rows.groupby("population", sort=False)[["users", "items", "held"]].first()
    told = (f"{name} {users:,.0f}, {items:,.0f}, {held:.0f}" for name, users, items, held in first.itertuples())
    shares = rows[rows["rows"] == "own_share"].groupby("population", sort=False)["loss"].mean()
    means = (f"{name} {loss:.4f}" for name, loss in shares.items())
    return f"Users, items, items a user: {'; '.join(told)}. Each item's own mean, without privacy: {_listed(means)}."


def _number(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "\N{EN DASH}"


def _least(cells: pd.DataFrame, which: str) -> float:
    return float(cells[cells["rows"] == which]["loss"].min())


def _listed(cases: Iterable[str]) -> str:
    return ", ".join(cases) or "none"
