"""What the papers' pages say was measured, made from the tables that benchmarks/papers.py keeps."""

from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "papers"
EPSILON = "privacy.epsilon"


def by_epsilon(name: str) -> str:
    """A row an epsilon, a column a strategy: the median over seeds, and the least and the most where they differ."""
    rows = pd.read_csv(RESULTS / f"{name}.csv")
    strategies = list(dict.fromkeys(rows["strategy"]))
    head = ["epsilon", *(f"`{strategy}`" for strategy in strategies)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for epsilon, here in rows.groupby(EPSILON, sort=True):
        cells = [_cell(here[here["strategy"] == strategy]) for strategy in strategies]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    seeds, users = rows["seed"].nunique(), rows["userdp"].iloc[0]
    start = rows["initial"].median()
    return "\n".join(
        [
            f"`simulations/configs/{name}.toml`: {rows['main_metric'].iloc[0].replace('_', ' ')}, {start:.3g} at the "
            f"start; median of {seeds} seeds, least to most in brackets (userdp {users}).",
            "",
            *lines,
        ]
    )


def _cell(rows: pd.DataFrame) -> str:
    values = rows["value"].dropna()
    if values.empty:
        return "not run"
    told = f"{values.median():.2g}"
    span = f"{values.min():.2g} to {values.max():.2g}"
    mark = f"**{told}**" if values.median() >= rows["initial"].median() else told
    return f"{mark} ({span})"
