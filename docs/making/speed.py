"""What research/README.md says of a round, estimators, populations, large tables and whole commands, from tables."""

import json
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from making.pictures import BLUE, INK, RED, STYLE, WIDTH, svg

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results"
TOOLS = {"numpy": "plain numpy", "ours": "ours", "ours on ray": "ours, Ray", "pfl": "pfl", "jax": "jax-privacy"}
TOOLS |= {"flower": "Flower"}
Rows = dict[tuple[int, int], dict[str, dict[str, Any]]]


def sections() -> dict[str, str]:
    """Name of a section of the page -> its text."""
    made = {"round": one_round, "robust": robust, "population": population, "streaming": streaming, "start": start}
    return {name: make() for name, make in made.items()}


def pictures() -> dict[str, str]:
    """Name of a picture -> SVG."""
    with mpl.rc_context(STYLE):
        return {"speed": svg(_ratios(round_rows()))}


def one_round() -> str:
    """A round beside the other tools: processor milliseconds, then ratios."""
    report = read("peers")
    rows, versions = round_rows(), report["versions"]
    told = (
        f"One private round of {report['users']} users (`peers.py`; m samples a user, d features; milliseconds of "
        f"processor time, medians; one thread each, though jax-privacy takes those of its own; "
        f"{report['machine']['cores']} cores; numpy {versions['numpy']}, pfl {versions['pfl']}, "
        f"jax-privacy {versions['jax-privacy']}, Flower {versions['flwr']} with a SuperNode a user, for the smallest "
        f"size alone; sums equal to {_difference(rows):.0e}, relative):"
    )
    head = ["m", "d", *TOOLS.values(), "ours / numpy", "Ray / numpy, on the clock", "pfl / ours", "jax / ours"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(_line(size, rows[size]) for size in rows)]
    return "\n\n".join([_filled(told), "\n".join(lines)])


def robust() -> str:
    """Estimators beside numpy and scipy."""
    measured = read("robust")
    head = (
        "what",
        "rows x columns",
        "ours, ms",
        "beside",
        "ms",
        "times faster",
        f"on {measured['cores']} cores' clock",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in measured["rows"]:
        shape = f"{row['rows']} x {row['columns']}"
        times = f"{row['ours_ms']:.3g} | {row['rival']} | {row['rival_ms']:.3g}"
        lines.append(f"| {row['what']} | {shape} | {times} | {row['ratio']:.2f} | {row['ratio_on_the_clock']:.2f} |")
    return "\n".join(lines)


def population() -> str:
    """Whole runs, by users."""
    report = read("population")
    head = ["strategy", "users", "rounds", "seconds", "microseconds a user", "peak MiB"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for run in report["runs"]:
        each = 1e6 * run["seconds"] / run["users"]
        cells = [f"`{run['strategy']}`", f"{run['users']:,}", run["rounds"], run["seconds"], f"{each:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells))} | {run['peak_mib']} |")
    return "\n".join(lines)


def streaming() -> str:
    """A table larger than memory, in batches and at once."""
    report = read("streaming")
    told = (
        f"A Parquet file of {report['file_mib']:,} MiB ({report['rows']:,} rows of {report['users']:,} users, "
        f"{report['columns']} numbers each) and a process that may have {report['limit_mib']:,} MiB of addresses; "
        f"{report['rounds']} rounds of `dp_fed_sgd`, the reference without privacy, metrics and the report:"
    )
    lines = ["| the file is read | trained | seconds | address space, MiB | resident, MiB |", f"|{'---|' * 5}"]
    for name, run in report["runs"].items():
        cells = ("yes" if run["trained"] else "no", run["seconds"], run["address_space_mib"], run["resident_mib"])
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join([textwrap.fill(told, 120), "", *lines])


def start() -> str:
    """Whole commands, from the empty process to the end."""
    report = read("start")
    lines = ["| `userdp` | processor seconds | seconds on the clock |", "|---|---|---|"]
    for row in report["rows"]:
        processor = "" if row["processor"] is None else f"{row['processor']:.2f}"
        lines.append(f"| `{row['command']}` | {processor} | {row['clock']:.2f} |")
    taken = report["rows"][-1]["clock"]
    verdict = (
        f"Measured on {report['machine']['cores']} cores; {report['machine']['busy']:g} processes were busy in the "
        "minute before. On two idle cores the comparison is meant to take at most "
        f"{report['limit']:g} s on the clock; here it took {taken:.0f}."
    )
    return "\n\n".join(["\n".join(lines), _filled(verdict)])


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def round_rows() -> Rows:
    """Size -> tool -> its row, of tools that can do that size."""
    rows: Rows = {}
    for row in read("peers")["rows"]:
        if row["seconds"]:
            rows.setdefault((row["samples"], row["columns"]), {})[row["tool"]] = row
    return rows


def _difference(rows: Rows) -> float:
    return max(row["difference"] for tools in rows.values() for row in tools.values())


def milliseconds(row: dict[str, Any], kind: str = "seconds") -> float:
    """The median of a row: of processor time, or (wall) on the clock."""
    return 1e3 * float(median(row[kind]))


def _line(size: tuple[int, int], tools: dict[str, dict[str, Any]]) -> str:
    """A row of the table."""
    ours, numpy = milliseconds(tools["ours"]), milliseconds(tools["numpy"])
    ratio = f"{ours / numpy:.2f}"
    cells = [*map(str, size), *(f"{milliseconds(tools[tool]):.3g}" if tool in tools else "" for tool in TOOLS)]
    cells.append(ratio)
    cells.append(f"{milliseconds(tools['ours on ray'], 'wall') / milliseconds(tools['numpy'], 'wall'):.2f}")
    cells += [f"{milliseconds(tools[tool]) / ours:.3g}" for tool in ("pfl", "jax")]
    return f"| {' | '.join(cells)} |"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _ratios(rows: Rows) -> Figure:
    """Processor time of each tool over ours, by size, on a logarithmic scale."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    others = [tool for tool in TOOLS if tool not in ("ours", "ours on ray")]
    colours = dict(zip(others, (INK, RED, BLUE, "#999999"), strict=True))
    for place, tool in enumerate(others):
        found = [(index, tools) for index, tools in enumerate(rows.values()) if tool in tools]
        heights = [milliseconds(tools[tool]) / milliseconds(tools["ours"]) for _, tools in found]
        where = [index + 0.2 * (place - 1.5) for index, _ in found]
        axes.bar(where, heights, 0.19, color=colours[tool], label=TOOLS[tool])
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), [f"m = {m}, d = {d}" for m, d in rows])
    axes.set_ylabel("time over ours")
    figure.legend(loc="outside upper center", ncols=4)
    return figure
