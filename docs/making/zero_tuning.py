"""The results of `auto` in docs/zero-tuning.md, from the measurements of research/zero_tuning.py."""

import csv
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "zero_tuning.csv"
ORACLE = "oracle-"
"""The prefix of the labels of strategies tuned on the private data."""
Cell = tuple[str, str]
Shares = Mapping[Cell, Mapping[str, list[float]]]
FREE = "non_private"
"""The label of training without privacy."""
WORTH_A_WAY = 0.1
"""The smallest non-private gain of which a share is shown: a smaller one is almost a division by zero."""
HEAD = (
    *("data", "users", "parameters", "epsilon", "no privacy", "auto (range over seeds)", "gap closed"),
    *("tuned on the private data, NOT private", "auto ahead by", "with default settings"),
)


def section() -> str:
    """Return the method, the table, the cells where `auto` is behind, and what was not measured."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shares: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    facts: dict[Cell, dict[str, str]] = {}
    for row in rows:
        cell = (row["task"], row["epsilon"])
        if row["strategy"] == "auto":  # its row says whether the plan warned
            facts.setdefault(cell, row)
        if row["value"]:
            zero, free, value = (float(row[name]) for name in ("constant", "without_privacy", "value"))
            shares[cell][row["strategy"]].append(1 - value / zero)
            if row["strategy"] == "auto":
                shares[cell][FREE].append(1 - free / zero)
    cells = [cell for cell in facts if "auto" in shares[cell]]
    table = [
        f"| {' | '.join(HEAD)} |",
        f"|{'---|' * len(HEAD)}",
        *(_line(cell, shares[cell], facts[cell]) for cell in cells),
    ]
    texts = (
        _introduction(shares),
        f"{_verdict(cells, shares)}{_at_the_edge(rows)}",
        _nowhere(cells, shares),
        _unmeasured(cells, shares),
    )
    told = [textwrap.fill(one, 120) for one in texts]
    return "\n\n".join([told[0], "\n".join(table), *told[1:]])


def _introduction(shares: Shares) -> str:
    seeds = sorted({len(found["auto"]) for found in shares.values() if "auto" in found})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        "A number is the share by which a model reduces the best constant's loss on held-out users: 0 is no better "
        "than predicting their own mean (or rate) for everybody; for squared loss it is R2. It is the median of "
        f"{count} seeds, each with its own split and noise. *Gap closed* is the share of `auto` over that of no "
        "privacy, if the latter is at least a tenth. *Tuned* is the best of three clipping strategies whose clip, step "
        "size and rounds were chosen among 24 settings **on the private data itself**: this is **not private**. The "
        "last column has the best of the same three with default settings. Bold marks where `auto` is behind."
    )


def _line(cell: Cell, shares: Mapping[str, list[float]], facts: Mapping[str, str]) -> str:
    """Return a row of the table; bold marks a cell where `auto` is behind."""
    auto, free = shares["auto"], median(shares[FREE])
    oracle, default = _best(shares, oracle=True), _best(shares, oracle=False)
    ahead = _ahead(shares)
    gap = "not measured" if ahead is None else _points(ahead)
    ways = [own / whole for own, whole in zip(auto, shares[FREE], strict=True)]
    return "| {} |".format(
        " | ".join(
            [
                cell[0],
                f"{int(facts['users']):,}",
                facts["parameters"],
                f"{float(cell[1]):g}" + (" (warned)" if facts["warned"] == "True" else ""),
                _percent(free),
                f"{_percent(median(auto))} ({_percent(min(auto))} to {_percent(max(auto))})",
                f"{100 * median(ways):.0f}%" if free >= WORTH_A_WAY else "",
                _named(oracle),
                f"**{gap}**" if ahead is not None and ahead < 0 else gap,
                _named(default),
            ]
        )
    )


def _best(shares: Mapping[str, list[float]], *, oracle: bool) -> tuple[float, str] | None:
    """Return the largest median and its strategy."""
    found = [
        (median(values), name)
        for name, values in shares.items()
        if name not in ("auto", FREE) and name.startswith(ORACLE) == oracle
    ]
    return max(found, default=None)


def _ahead(shares: Mapping[str, list[float]]) -> float | None:
    """Return the lead of `auto` over the best oracle strategy."""
    oracle = _best(shares, oracle=True)
    return None if oracle is None else median(shares["auto"]) - oracle[0]


def _verdict(cells: Iterable[Cell], shares: Shares) -> str:
    """Describe the cells where `auto` is behind the oracle, and the median difference."""
    gaps = {cell: gap for cell in cells if (gap := _ahead(shares[cell])) is not None}
    if not gaps:
        return "No oracle has been measured yet."
    behind = sorted((gap, cell) for cell, gap in gaps.items() if gap < 0)
    told = "; ".join(f"{task} at epsilon {float(epsilon):g} ({_points(gap)})" for gap, (task, epsilon) in behind)
    lead = _points(median(gaps.values()))
    middle = f"In the median over these {len(gaps)} cells `auto` is {lead} points ahead of the oracle"
    won = f"and ahead in {sum(gap > 0 for gap in gaps.values())} of them"
    return f"{middle}, {won}. **Where `auto` is behind:** {told or 'nowhere'}."


def _at_the_edge(rows: Iterable[Mapping[str, str]]) -> str:
    """Count the searches that ended at the largest number of rounds: a longer search might find better settings."""
    found = {
        (row["task"], row["epsilon"], row["strategy"]): int(json.loads(row["settings"])["rounds"])
        for row in rows
        if row["settings"]
    }
    if not found:
        return ""
    most = max(found.values())
    edge = sum(rounds == most for rounds in found.values())
    return (
        f" In {edge} of {len(found)} searches the oracle chose the largest number of rounds tried ({most}), so better "
        "settings for clipping may exist there."
    )


def _nowhere(cells: Iterable[Cell], shares: Shares) -> str:
    """List seeds that ended no better than the best constant, which a median does not show."""
    lost = {cell: sum(share <= 0 for share in shares[cell]["auto"]) for cell in cells}
    told = [
        f"{count} of {len(shares[cell]['auto'])} seeds of {cell[0]} at epsilon {float(cell[1]):g}"
        for cell, count in lost.items()
        if count
    ]
    return f"**Runs of `auto` no better than the best constant:** {'; '.join(told) or 'none'}."


def _unmeasured(cells: list[Cell], shares: Shares) -> str:
    """List what was not measured, with its cells."""
    lacking = {
        "the oracle": [cell for cell in cells if _best(shares[cell], oracle=True) is None],
        "the strategies with default settings": [cell for cell in cells if _best(shares[cell], oracle=False) is None],
    }
    told = [f"{what}: {'; '.join(_groups(those))}" for what, those in lacking.items() if those]
    told.append("other strategies, other settings, and other data")
    return f"**Not measured:** {'. '.join(f'{one[0].upper()}{one[1:]}' for one in told)}."


def _groups(cells: Iterable[Cell]) -> list[str]:
    """Return tasks with their epsilons, grouped by equal epsilons."""
    budgets: dict[str, list[str]] = defaultdict(list)
    for task, epsilon in cells:
        budgets[task].append(f"{float(epsilon):g}")
    together: dict[str, list[str]] = defaultdict(list)
    for task, epsilons in budgets.items():
        together[" and ".join(epsilons)].append(task)
    return [f"{', '.join(those)} at epsilon {epsilons}" for epsilons, those in together.items()]


def _named(best: tuple[float, str] | None) -> str:
    if best is None:
        return "not measured"
    return f"{_percent(best[0])} (`{best[1].removeprefix(ORACLE).removesuffix('-NOT-private')}`)"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%".replace("-", "\N{MINUS SIGN}")


def _points(share: float) -> str:
    digits = 1 if abs(share) >= 0.0005 else 3
    return f"{100 * share:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
