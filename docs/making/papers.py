"""The measured tables of the papers' pages, from the results of research/papers.py."""

from typing import Any

import pandas as pd

HEADINGS = {
    "way": "sampling",
    "least": "minimum",
    "most": "maximum",
    "epsilon_found": "epsilon by accountant",
    "delta_at_least": "lower bound on delta",
    "constant_needed": "required constant",
    "distance_counted_on": "assumed distance",
    "gap_of_the_noise_alone": "gap from noise alone",
    "bound_proven_here": "our bound",
    "bound_of_the_paper": "the paper's bound",
    "error_of_the_average": "error, average iterate",
    "error_of_the_last": "error, last iterate",
    "of_Theorem_6,_delta_=_1e-5": "Theorem 6, delta = 1e-5",
    "spent_of_epsilon": "share of epsilon spent",
    "rho_of_a_group_over_none,_closed_form": "rho ratio per group, closed form",
    "the_same,_solved": "rho ratio per group, solved",
    "low_by_a_thousandth": "clouds short by 0.001 or more",
    "low_by,_mean": "mean shortfall",
    "low_by,_most": "largest shortfall",
    "truth": "exact",
    "error_of_ours": "our error",
    "times_less_noise": "noise reduction factor",
    "epsilon_of_a_round,_zCDP": "epsilon per round, zCDP",
    "the_paper's": "epsilon per round, paper",
    "times": "ratio",
    "noise_as_it_is": "unprojected noise",
    "quarter_quantile": "25 % quantile",
}
"""Headings of columns whose name in the results file is not one."""
VERSIONS = ("userdp", "numpy", "python")
"""The columns with the versions that made a table; pages leave them out."""


def by_cell(rows: pd.DataFrame, file: str) -> str:
    """Return a row per problem and cell of the grid, a column per strategy: the median and range over seeds."""
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
            f"`{file}`: {measure}, median of {seeds} seeds, range in brackets (userdp {version}).",
            "",
            *lines,
        ]
    )


def by_sweep(rows: pd.DataFrame, name: str) -> str:
    """Return the table of one sweep."""
    shown = [column for column in rows.columns if column not in VERSIONS]
    lines = [
        f"| {' | '.join(HEADINGS.get(column, column.replace('_', ' ')) for column in shown)} |",
        f"|{'---|' * len(shown)}",
    ]
    lines += [f"| {' | '.join(_told(value) for value in row)} |" for row in rows[shown].itertuples(index=False)]
    told = f"`python research/papers.py --only {name}` (userdp {rows['userdp'].iloc[0]})."
    return "\n".join([told, "", *lines])


def _told(value: Any) -> str:
    """Format a number: integers in full, others with three digits, a missing value as nothing."""
    if isinstance(value, str) or pd.isna(value):
        return value if isinstance(value, str) else ""
    number = float(value)
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e9 else f"{number:.3g}"


def _cell_keys(rows: pd.DataFrame) -> list[str]:
    """Return the columns that identify a cell: the problem and the keys of the grid, which contain a dot."""
    return ["problem", *(column for column in rows.columns if "." in column)]


def _word(key: str) -> str:
    """Return a key's heading: `privacy.epsilon` becomes epsilon."""
    return key.partition(".")[2].replace("_", " ") or key


def _start(initial: pd.Series) -> str:
    """Return the initial model's median error over seeds, with its range if it varies."""
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
