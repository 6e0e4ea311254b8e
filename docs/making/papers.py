"""What the papers' pages say was measured, made from the tables that research/papers.py keeps."""

from pathlib import Path
from typing import Any

import pandas as pd

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results" / "papers"
VERSIONS = ("userdp", "numpy", "python")
"""Columns that say what made a table."""


def by_cell(name: str) -> str:
    """A row a problem and cell of the grid, a column a strategy: the median over seeds, and the least and the most."""
    rows = pd.read_csv(RESULTS / f"{name}.csv")
    strategies = list(dict.fromkeys(rows["strategy"]))
    keys = [key for key in _cell_keys(rows) if key != "problem" or rows["problem"].nunique() > 1]
    head = [*(_word(key) for key in keys), "start", *(f"`{strategy}`" for strategy in strategies)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for values, here in rows.groupby(keys, sort=False):
        told = [value if isinstance(value, str) else f"{value:,g}" for value in values]
        cells = [_cell(here[here["strategy"] == strategy]) for strategy in strategies]
        start = _start(here["initial"])
        lines.append(f"| {' | '.join([*told, start, *cells])} |")
    measure = rows["main_metric"].dropna().iloc[0].replace("_", " ")
    seeds, version = rows["seed"].nunique(), rows["userdp"].iloc[0]
    return "\n".join(
        [
            f"`simulations/configs/{name}.toml`: {measure}, median of {seeds} seeds, least to most in brackets "
            f"(userdp {version}).",
            "",
            *lines,
        ]
    )


def by_sweep(name: str) -> str:
    """The table of that sweep of research/paper_sweeps.py, as it is."""
    rows = pd.read_csv(RESULTS / "sweeps" / f"{name}.csv")
    shown = [column for column in rows.columns if column not in VERSIONS]
    lines = [f"| {' | '.join(column.replace('_', ' ') for column in shown)} |", f"|{'---|' * len(shown)}"]
    lines += [f"| {' | '.join(_told(value) for value in row)} |" for row in rows[shown].itertuples(index=False)]
    told = f"`python research/paper_sweeps.py --only {name}` (userdp {rows['userdp'].iloc[0]})."
    return "\n".join([told, "", *lines])


def _told(value: Any) -> str:
    """Whole numbers whole, others in three digits; nothing where there is none."""
    if isinstance(value, str) or pd.isna(value):
        return value if isinstance(value, str) else ""
    number = float(value)
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e9 else f"{number:.3g}"


def _cell_keys(rows: pd.DataFrame) -> list[str]:
    """Columns that say which cell a row is of: the problem, and those of the grid, which have a section's name."""
    return ["problem", *(column for column in rows.columns if "." in column)]


def _word(key: str) -> str:
    """`privacy.epsilon` is epsilon."""
    return key.partition(".")[2].replace("_", " ") or key


def _start(initial: pd.Series) -> str:
    """The error of the initial model: its median over seeds, and the least and the most where data differ by seed."""
    middle, least, most = (f"{value:.3g}" for value in (initial.median(), initial.min(), initial.max()))
    return middle if least == most else f"{middle} ({least} to {most})"


def _cell(rows: pd.DataFrame) -> str:
    values = rows["value"].dropna()
    if values.empty:
        return "not run"
    told = f"{values.median():.2g}"
    span = f"{values.min():.2g} to {values.max():.2g}"
    mark = f"**{told}**" if values.median() >= rows["initial"].median() else told
    return f"{mark} ({span})"
