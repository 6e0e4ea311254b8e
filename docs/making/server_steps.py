"""The server steps of research/README.md that were tried, from the measurements of research/server_steps.py."""

import textwrap
from collections.abc import Iterator

import pandas as pd

from making.neural import MEASURED as TABLE
from making.neural import SETS

MEASURED = TABLE.with_name("server_steps.csv")
TRIED = 17
"""The seed of the first runs."""
STEPS = {
    "adam": "Adam",
    "falling": "Adam, steps falling linearly to nothing",
    "filtered": "gradients taken ahead (DiSK), Adam",
    "orthogonal": "orthogonal (Muon); Adam for vectors",
    "orthogonal_above": "the same, singular values above the noise",
    "shrunk": "each gradient's singular values shrunk, Adam",
    "shrunk_momentum": "singular values of Adam's mean shrunk",
}
MINUS = "\N{MINUS SIGN}"
LARGER = {"bits": -1.0}
"""Sign of better; 1 for a metric that is not listed."""


def table() -> pd.DataFrame:
    """Return all rows, with how much better than Adam's last model of the same run's set, budget and seed they are."""
    rows = pd.read_csv(MEASURED)
    known = pd.read_csv(TABLE).rename(columns={"value": "plain"})
    tried = rows[(rows["step"] == "adam") & (rows["rate"] == 1) & (rows["released"] == "last")]
    tried = tried[~tried["seed"].isin(known["seed"])].rename(columns={"value": "plain"})
    key = ["problem", "strategy", "epsilon", "seed"]
    plain = pd.concat([known, tried])[[*key, "plain"]]
    rows = rows.merge(plain, on=key, how="left")
    return rows.assign(gain=(rows["value"] - rows["plain"]) * rows["metric"].map(LARGER).fillna(1.0))


def section() -> str:
    """Return the first runs, then those over seeds."""
    rows = table()
    first, others = rows[rows["seed"] == TRIED], rows[rows["seed"] != TRIED]
    hours = rows.drop_duplicates(["problem", "epsilon", "seed", "step", "rate"])["seconds"].sum() / 3600
    parts = [
        _paragraph(
            f"Epsilon {_numbers(first['epsilon'])}, seed {TRIED}: the last model; the best average over models that "
            "weighs each by 0.5, 0.7, 0.8 or 0.9 of the next; the last model with the singular values of its way from "
            "the start shrunk. Bold: better than the first line's last model."
        ),
        "\n".join(_first(first)),
        _paragraph(
            f"Seeds {_numbers(others['seed'])}: gain over the same seed's run in the table, as a median over seeds, "
            "and for how many seeds it is above zero."
        ),
        "\n".join(_again(others)),
        _paragraph(f"{hours:.1f} hours on a busy core; all rows: research/results/server_steps.csv."),
    ]
    return "\n\n".join(parts)


def _first(rows: pd.DataFrame) -> Iterator[str]:
    yield f"| server step | step size | {' | '.join(SETS)} |"
    yield f"|{'---|' * (2 + len(SETS))}"
    for (step, rate), own in _in_order(rows):
        cells = [_cell(own[own["problem"] == problem]) for problem in SETS]
        yield f"| {STEPS[step]} | {rate:g} | {' | '.join(cells)} |"


def _cell(own: pd.DataFrame) -> str:
    if own.empty:
        return "not run"
    averages = own[own["released"].str.startswith("average")]
    shown = [("", own[own["released"] == "last"]), ("averaged ", averages.nlargest(1, "gain"))]
    shown.append(("shrunk ", own[own["released"] == "shrunk"]))
    told = [
        f"{name}**{one['value']:.3f}**" if one["gain"] > 0 else f"{name}{one['value']:.3f}"
        for name, found in shown
        for _, one in found.iterrows()
    ]
    return "; ".join(told)


def _again(rows: pd.DataFrame) -> Iterator[str]:
    shown = {"last": "last model", **{f"average {decay}": f"averaged, {decay}" for decay in (0.5, 0.7, 0.8, 0.9)}}
    yield f"| server step | step size | set | epsilon | {' | '.join(shown.values())} |"
    yield f"|{'---|' * (4 + len(shown))}"
    for (step, rate), own in _in_order(rows):
        for (problem, epsilon), cell in own.groupby(["problem", "epsilon"]):
            gains = [cell[cell["released"] == name]["gain"] for name in shown]
            told = [f"{gain.median():+.3f}, {(gain > 0).sum()} of {len(gain)}".replace("-", MINUS) for gain in gains]
            line = [STEPS[step], f"{rate:g}", problem, f"{epsilon:g}", *told]
            yield f"| {' | '.join(line)} |"


def _in_order(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, float], pd.DataFrame]]:
    for step in STEPS:
        for rate, own in rows[rows["step"] == step].groupby("rate"):
            yield (step, float(rate)), own  # type: ignore[arg-type]


def _numbers(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values.unique()))


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120)
