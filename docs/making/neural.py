"""The tables of docs/neural.md, from the measurements of research/neural_table.py."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from userdp.accounting.composition import promises_something

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "neural_table.csv"
WITHOUT, NO_PRIVACY = "trivial", "non_private"
SETS = {
    "pupils": "Pupils (ASSISTments 2015): is the next answer right? Area under the curve, larger is better.",
    "roles": "Roles of German plays (GerDraCor): the next character. Bits a character, smaller is better.",
    "writers": "Writers (MNIST): which digit? Accuracy, larger is better.",
}
CONVENTIONAL = "dp_fed_sgd"
DIGITS = 3
"""Decimal places of a result."""


def table() -> pd.DataFrame:
    """Return the rows without an error, each with the share of the gap from the trivial model to no privacy.

    Shares are computed per seed: each seed has its own split, trivial model and training without privacy.
    """
    rows = pd.read_csv(MEASURED)
    rows = rows[rows["error"].isna()]
    ends = rows.pivot_table(index=["problem", "seed"], columns="strategy", values="value")
    ends = ends.reindex(columns=[WITHOUT, NO_PRIVACY]).add_prefix("at_")
    rows = rows.merge(ends.reset_index(), on=["problem", "seed"], how="left")
    way = rows[f"at_{NO_PRIVACY}"] - rows[f"at_{WITHOUT}"]
    return rows.assign(share=(rows["value"] - rows[f"at_{WITHOUT}"]) / way)


def section() -> str:
    """Return the tables of all sets."""
    rows = table()
    parts = []
    for problem, heading in SETS.items():
        own = rows[rows["problem"] == problem]
        if not own.empty:
            parts += [f"### {heading}", *_set(own)]
    return "\n\n".join([*parts, _measured_with(rows)])


def in_short() -> str:
    """Return one line per set: the best strategy at the smallest and largest budget, and both ends of the gap."""
    rows = table()
    budgets = sorted(rows.loc[rows["epsilon"] > 0, "epsilon"].unique())
    budgets = [budgets[0], budgets[-1]]
    lines = []
    for problem, heading in SETS.items():
        own = rows[rows["problem"] == problem]
        medians = own.groupby(["epsilon", "strategy"])[["value", "share"]].median()
        told = []
        for epsilon in budgets:
            best = medians.loc[epsilon]["share"].idxmax()
            told.append(f"{_number(medians.loc[(epsilon, best), 'value'])} at epsilon = {epsilon:g} (`{best}`)")
        least, most = (_number(medians.loc[(0.0, one), "value"]) for one in (WITHOUT, NO_PRIVACY))
        people = f"{int(own.loc[own['epsilon'] > 0, 'users'].iloc[0]):,} people"
        lines.append(f"- {heading} {people}. Trivial model {least}; {', '.join(told)}; without privacy {most}.")
    return "\n".join(lines)


def convention() -> str:
    """Return what a convention would print of one strategy's runs, at the smallest and the largest budget."""
    rows = table()
    rows = rows[rows["strategy"] == CONVENTIONAL].drop_duplicates(["problem", "epsilon"])
    rows = rows[rows["epsilon"].isin([rows["epsilon"].min(), rows["epsilon"].max()])]
    names = ("noise", "pretended_epsilon", "pretended_noise")
    cells = [[one["problem"], *(f"{one[name]:.2g}" for name in ("epsilon", *names))] for _, one in rows.iterrows()]
    return _lines(["people", "epsilon", "noise added", "convention's epsilon", "convention's noise"], cells)


def _set(own: pd.DataFrame) -> Iterator[str]:
    """Yield both ends of the gap, then the table of private runs."""
    ends = own[own["epsilon"] == 0].set_index("strategy")
    told = []
    for strategy, name in ((WITHOUT, "Trivial model"), (NO_PRIVACY, "No privacy")):
        if strategy in ends.index:
            lines = ends.loc[[strategy]]
            how = f": {lines['settings'].iloc[0]}" if strategy == WITHOUT else ", Adam over random cohorts"
            reached = f"{_number(lines['value'].median())} ({_range(lines['value'])})"
            told.append(f"{name} (computed WITHOUT privacy{how}): {reached}.")
    private = own[own["epsilon"] > 0]
    if not private.empty:
        people, parameters = (int(private[name].iloc[0]) for name in ("users", "dimension"))
        told.append(f"{people:,} people in training; {parameters:,} parameters; delta {private['delta'].iloc[0]:.1g}.")
    yield textwrap.fill(" ".join(told), 120)
    if private.empty:
        yield "No private run has been measured yet."
        return
    budgets = sorted(private["epsilon"].unique(), reverse=True)
    at = dict(iter(private.groupby(["strategy", "epsilon"])))
    order = private[private["epsilon"] == budgets[0]].groupby("strategy")["share"].median()
    order = [*order.sort_values(ascending=False).index]
    columns = [f"epsilon = {epsilon:g}" for epsilon in budgets]
    for title, cell in (("median (range), gap closed", _result), ("for replacing one; noise", _terms)):
        cells = [[cell(at[name, epsilon]) if (name, epsilon) in at else "" for epsilon in budgets] for name in order]
        yield _lines([title, *columns], [[f"`{name}`", *found] for name, found in zip(order, cells, strict=True)])
    yield textwrap.fill(_forecasts(private), 120)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


def _result(runs: pd.DataFrame) -> str:
    """Return what a strategy reaches at a budget, over its seeds."""
    return f"{_number(runs['value'].median())} ({_range(runs['value'])}), {_percent(runs['share'].median())}"


def _terms(runs: pd.DataFrame) -> str:
    """Return the epsilon of a strategy's noise for replacing one, and the noise as a share of the reach."""
    one = runs.iloc[0]
    replaced = "no guarantee at this delta"
    if one["relation"] == "replace_one":
        replaced = "same"
    elif promises_something(one["replace_one_delta"], one["users"]):
        replaced = f"{one['replace_one_epsilon']:.3g}"
    return replaced if pd.isna(one["model_noise"]) else f"{replaced}; {_percent(one['model_noise'] / one['reach'])}"


def _forecasts(private: pd.DataFrame) -> str:
    """Judge forecasts: a warning predicts that the initial model may be as good, silence that it is worse."""
    rows = private.groupby(["epsilon", "strategy"]).agg(share=("share", "median"), warned=("warnings", "first"))
    warned, useless = rows["warned"].notna(), rows["share"] <= 0
    told = [f"The plan's warning, or its silence, was right for {(warned == useless).sum()} of {len(rows)} rows."]
    for fault, chosen in (
        ("Warned, and no better than trivial", warned & useless),
        ("Warned, and better than trivial", warned & ~useless),
        ("**Not warned, and no better than trivial**", ~warned & useless),
    ):
        if chosen.any():
            of = ", ".join(f"`{strategy}` at epsilon {epsilon:g}" for epsilon, strategy in rows[chosen].index)
            told.append(f"{fault}: {of}.")
    return " ".join(told)


def _measured_with(rows: pd.DataFrame) -> str:
    seeds = ", ".join(str(seed) for seed in sorted(rows["seed"].unique()))
    of = {name: ", ".join(sorted(map(str, rows[name].dropna().unique()))) for name in ("userdp", "torch", "python")}
    hours = rows["seconds"].sum() / 3600
    return textwrap.fill(
        f"Seeds {seeds}; {len(rows)} runs, {hours:.1f} hours in all on one core; userdp {of['userdp']}, torch "
        f"{of['torch']}, Python {of['python']}. All rows, with their settings and the measured commit, are in "
        "research/results/neural_table.csv.",
        120,
    )


def _number(value: float) -> str:
    return f"{value:.{DIGITS}f}"


def _range(values: pd.Series) -> str:
    return f"{_number(values.min())} to {_number(values.max())}"


def _hundredths(share: float) -> str:
    return "?" if pd.isna(share) else f"{100 * share:.0f}".replace("-", "\N{MINUS SIGN}")


def _percent(share: float) -> str:
    return f"{_hundredths(share)} %"
