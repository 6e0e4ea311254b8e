"""Coverage and widths of coefficients for docs/coefficients.md, from the results of research/coefficients.py."""

import csv
from pathlib import Path

_HARDLY_ANY = 0.05  # Share of coefficients with an interval
_RESULTS = Path(__file__).resolve().parents[2] / "research" / "results"


def coverage() -> str:
    """Return a table of the made-up settings."""
    rows = _rows("coefficients.csv")
    head = "| problem | features | users | epsilon | covered | given | width |\n|---|---|---|---|---|---|---|"
    lines = [
        f"| `{row['kind']}` | {row['dimension']} | {int(row['users']):,} | {float(row['epsilon']):g} | {_found(row)} |"
        for row in rows
    ]
    fewest = min(int(row["repetitions"]) for row in rows)
    note = f"{fewest} repetitions of each setting at least; `python research/coefficients.py` measures them again."
    return "\n".join([head, *lines, "", note])


def tables() -> str:
    """Return how many intervals of the real tables hold the estimate of a fit without privacy, and some of them."""
    rows = _rows("coefficients_tables.csv")
    head = "| table | epsilon | coefficients | with an interval | hold that fit | width |\n|---|---|---|---|---|---|"
    lines = []
    for table, epsilon in dict.fromkeys((row["table"], row["epsilon"]) for row in rows):
        own = [row for row in rows if (row["table"], row["epsilon"]) == (table, epsilon)]
        given = [row for row in own if row["error"] != "nan"]
        held = sum(
            abs(float(row["estimate"]) - float(row["without_privacy"])) <= 1.96 * float(row["error"]) for row in given
        )
        ratios = sorted(float(row["error"]) / float(row["its_error"]) for row in given)
        width = f"{ratios[len(ratios) // 2]:.2f}" if ratios else "-"
        lines.append(f"| `{table}` | {float(epsilon):g} | {len(own)} | {len(given)} | {held} | {width} |")
    return "\n".join([head, *lines])


def hazards() -> str:
    """Return a table of the made-up cohorts."""
    rows = _rows("hazards.csv")
    head = "| periods | covariates | cohorts | covered | given |\n|---|---|---|---|---|"
    lines = [
        f"| {row['periods']} | {row['covariates']} | {row['repetitions']} | {float(row['covered']):.1%} | "
        f"{float(row['given']):.0%} |"
        for row in rows
    ]
    return "\n".join([head, *lines, "", "`python research/hazards.py` measures them again."])


def _rows(name: str) -> list[dict[str, str]]:
    with (_RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _found(row: dict[str, str]) -> str:
    """Return three cells; where hardly any interval is given, nothing is said of those."""
    given = float(row["given"])
    if given < _HARDLY_ANY:
        return f"- | {given:.1%} | -"
    return f"{float(row['covered']):.1%} | {given:.1%} | {float(row['width']):.2f}"
