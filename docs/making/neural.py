"""The tables of docs/neural.md, from the measurements of research/neural_table.py."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
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
HEAD = (
    *("epsilon", "for replacing one", "strategy", "median (range over seeds)", "gap closed, %", "people needed"),
    *("noise, % of the reach", "noise added", "convention's epsilon", "convention's noise"),
)
DIGITS = 3
"""Decimal places of a result."""


@dataclass(frozen=True)
class Promise:
    """A requirement on the table.

    Attributes:
        told: The requirement.
        found: The measured value.
        held: None if cells are missing.
    """

    told: str
    found: str
    held: bool | None


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


def promises(rows: pd.DataFrame) -> list[Promise]:
    """Return the requirements that the settings of the configuration have to meet."""
    free = rows[(rows["problem"] == "pupils") & (rows["strategy"] == NO_PRIVACY)]["value"].median()
    found = [
        Promise(
            "pupils, without privacy: an area of at least 0.70",
            "not measured" if pd.isna(free) else f"{free:.3f}",
            None if pd.isna(free) else bool(free >= 0.70),
        )
    ]
    for problem, epsilon, least in (("pupils", 8.0, 0.70), ("pupils", 2.0, 0.45), ("roles", 8.0, 0.60)):
        own = rows[(rows["problem"] == problem) & (rows["epsilon"] == epsilon)].groupby("strategy")["share"].median()
        told = f"{problem}, epsilon {epsilon:g}: the best strategy closes at least {least:.0%} of the gap"
        if own.dropna().empty:
            found.append(Promise(told, "not measured", None))
        else:
            best = str(own.idxmax())
            found.append(Promise(told, f"{_percent(own[best])} by `{best}`", bool(own[best] >= least)))
    return found


def section() -> str:
    """Return the tables of all sets, and the requirements on them."""
    rows = table()
    parts = []
    for problem, heading in SETS.items():
        own = rows[rows["problem"] == problem]
        if not own.empty:
            parts += [f"### {heading}", *_set(own)]
    parts += ["### Requirements on the table", "\n".join(map(_verdict, promises(rows))), _measured_with(rows)]
    return "\n\n".join(parts)


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
    shown = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for epsilon in sorted(private["epsilon"].unique(), reverse=True):
        at = private[private["epsilon"] == epsilon]
        order = at.groupby("strategy")["share"].median().sort_values(ascending=False).index
        shown += [_line(at[at["strategy"] == strategy]) for strategy in order]
    yield "\n".join(shown)
    yield textwrap.fill(_forecasts(private), 120)


def _line(runs: pd.DataFrame) -> str:
    """Return the row of one strategy at one budget, over its seeds."""
    one = runs.iloc[0]
    replaced = "no guarantee at this delta"
    if promises_something(one["replace_one_delta"], one["users"]):
        replaced = f"{one['replace_one_epsilon']:.3g}"
    cells = [
        f"{one['epsilon']:g}",
        "same" if one["relation"] == "replace_one" else replaced,
        f"`{one['strategy']}`",
        f"{_number(runs['value'].median())} ({_range(runs['value'])})",
        _hundredths(runs["share"].median()),
        f"{int(one['users_needed']):,}",
        "" if pd.isna(one["model_noise"]) or not one["reach"] else _hundredths(one["model_noise"] / one["reach"]),
        *_convention(one),
    ]
    return f"| {' | '.join(cells)} |"


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


def _convention(one: pd.Series) -> tuple[str, str, str]:
    """Return the noise of a round's sum over the clip, then epsilon and noise of the convention."""
    if pd.isna(one["noise"]):
        return ("varies", "", "")
    return f"{one['noise']:.3g}", f"{one['pretended_epsilon']:.2g}", f"{one['pretended_noise']:.2g}"


def _verdict(promise: Promise) -> str:
    verdict = "" if promise.held is None else "; holds" if promise.held else "; **fails**"
    return f"- {promise.told}: {promise.found}{verdict}."


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
