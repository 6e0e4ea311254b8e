"""Sections of research/README.md on a round, estimators, populations, large tables and whole commands, from results."""

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
COLOURS = (INK, RED, BLUE, "#808080")
Rows = dict[tuple[int, int], dict[str, dict[str, Any]]]


def sections() -> dict[str, str]:
    """Return the text of each section of the page, by name."""
    made = {"round": one_round, "robust": robust, "population": population, "streaming": streaming, "start": start}
    return {name: make() for name, make in made.items()}


def pictures() -> dict[str, str]:
    """Return the SVG of each picture, by name."""
    with mpl.rc_context(STYLE):
        return {"speed": svg(_ratios(round_rows()))}


def one_round() -> str:
    """Return the table of one round in all tools: processor milliseconds, then ratios."""
    report = read("peers")
    rows, versions = round_rows(), report["versions"]
    told = (
        f"One private round of {report['users']} users (`peers.py`; m samples per user, d features; milliseconds of "
        f"processor time, medians; one thread each, except that jax-privacy sets its own number of threads; "
        f"{report['machine']['cores']} cores; numpy {versions['numpy']}, pfl {versions['pfl']}, "
        f"jax-privacy {versions['jax-privacy']}, Flower {versions['flwr']} with one SuperNode per user, at the "
        f"smallest size only; sums equal to {_difference(rows):.0e}, relative):"
    )
    head = ["m", "d", *TOOLS.values(), "ours / numpy", "Ray / numpy, elapsed", "pfl / ours", "jax / ours"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(_line(size, rows[size]) for size in rows)]
    return "\n\n".join([_filled(told), "\n".join(lines)])


def robust() -> str:
    """Return the table of estimators beside numpy and scipy."""
    measured = read("robust")
    head = (
        "estimator",
        "rows x columns",
        "ours, ms",
        "compared with",
        "ms",
        "speed-up",
        f"elapsed, {measured['cores']} cores",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in measured["rows"]:
        shape = f"{row['rows']} x {row['columns']}"
        times = f"{row['ours_ms']:.3g} | {row['rival']} | {row['rival_ms']:.3g}"
        lines.append(f"| {row['what']} | {shape} | {times} | {row['ratio']:.2f} | {row['ratio_on_the_clock']:.2f} |")
    return "\n".join(lines)


def population() -> str:
    """Return the table of whole runs by number of users."""
    report = read("population")
    head = ["strategy", "users", "rounds", "seconds", "microseconds per user", "peak MiB"]
    parts = list(next((run["shares"] for run in report["runs"] if "shares" in run), ()))
    head += [f"{part}, %" for part in parts]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for run in report["runs"]:
        each = 1e6 * run["seconds"] / run["users"]
        cells = [f"`{run['strategy']}`", f"{run['users']:,}", run["rounds"], run["seconds"], f"{each:.0f}"]
        cells += [run["peak_mib"], *(f"{100 * run.get('shares', {}).get(part, 0):.0f}" for part in parts)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def streaming() -> str:
    """Return the table of runs on a file larger than memory, read in batches and at once."""
    report = read("streaming")
    told = (
        f"A Parquet file of {report['file_mib']:,} MiB ({report['rows']:,} rows of {report['users']:,} users, "
        f"{report['columns']} numbers each) and a process limited to {report['limit_mib']:,} MiB of address space; "
        f"{report['rounds']} rounds of `dp_fed_sgd`, the reference without privacy, metrics and the report:"
    )
    lines = ["| file read | trained | seconds | address space, MiB | resident, MiB |", f"|{'---|' * 5}"]
    for name, run in report["runs"].items():
        cells = ("yes" if run["trained"] else "no", run["seconds"], run["address_space_mib"], run["resident_mib"])
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join([textwrap.fill(told, 120), "", *lines])


def start() -> str:
    """Return the table of whole commands, including the start of their process."""
    report = read("start")
    lines = ["| `userdp` | processor seconds | elapsed seconds |", "|---|---|---|"]
    for row in report["rows"]:
        processor = "" if row["processor"] is None else f"{row['processor']:.2f}"
        lines.append(f"| `{row['command']}` | {processor} | {row['clock']:.2f} |")
    taken = report["rows"][-1]["clock"]
    verdict = (
        f"Measured on {report['machine']['cores']} cores; {report['machine']['busy']:g} processes were busy in the "
        f"minute before. The limit for the comparison on two idle cores is {report['limit']:g} s; here it took "
        f"{taken:.0f} s."
    )
    return "\n\n".join(["\n".join(lines), _filled(verdict)])


def read(name: str) -> dict[str, Any]:
    """Read a file of results."""
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def round_rows() -> Rows:
    """Return the rows by size and tool; a tool that cannot run a size has none."""
    rows: Rows = {}
    for row in read("peers")["rows"]:
        if row["seconds"]:
            rows.setdefault((row["samples"], row["columns"]), {})[row["tool"]] = row
    return rows


def _difference(rows: Rows) -> float:
    return max(row["difference"] for tools in rows.values() for row in tools.values())


def milliseconds(row: dict[str, Any], kind: str = "seconds") -> float:
    """Return a row's median processor time, or elapsed time (wall)."""
    return 1e3 * float(median(row[kind]))


def _line(size: tuple[int, int], tools: dict[str, dict[str, Any]]) -> str:
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
    """Draw the processor time of each tool over ours, by size, on a logarithmic scale."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    others = [tool for tool in TOOLS if tool not in ("ours", "ours on ray")]
    colours = dict(zip(others, COLOURS, strict=True))
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
