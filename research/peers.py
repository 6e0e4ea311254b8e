"""One private round of a thousand users: processor seconds beside plain numpy, pfl, jax-privacy and Flower.

Logistic regression with ridge; each user's average gradient is clipped, all are added up, the server adds noise. Four
sizes: m samples per user, d features. The same round, by

- numpy: all users in one array of float32, a few lines, nothing else;
- ours: `dp_fed_sgd` on the local grid, messages, checks and ledger included; and on Ray with two actors;
- pfl: version 0.6 with its simulation backend;
- jax: jax-privacy 2.0, one compiled step that clips by user;
- flower: Flower's own engine on Ray, a SuperNode for each user, for the smallest size alone.

Every tool is a process of its own in an environment that this command makes, with one thread where it can be told so.
Rounds of the tools alternate, so that a busy machine slows all of them alike (those that run on Ray follow by
themselves); the first two of each are not counted. Each tool's sum, before the noise, must be numpy's to 1e-5 relative.
``python research/peers.py --json research/results/peers.json``.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from contestant import PEERS, Contestant, make_environment, python_of, start

USERS, TOLERANCE, WARM_UP = 1000, 1e-5, 2
SIZES = ((10, 100), (100, 100), (10, 1000), (100, 1000))
SCRIPTS = {
    "numpy": ("", "peers_numpy.py", ()),
    "ours": ("", "peers_ours.py", ("local",)),
    "ours on ray": ("", "peers_ours.py", ("ray",)),
    "pfl": ("pfl", "peers_pfl.py", ()),
    "jax": ("jax", "peers_jax.py", ()),
    "flower": ("", "peers_flower.py", ()),
}
"""Tool -> its environment ("" for this one), its script, and what the script is told."""
ENGINES = ("ours on ray", "flower")
"""Tools whose own processes are busy between rounds: these run by themselves, after the others."""
SLOW = {"pfl": 3, "flower": 1}
"""Counted rounds of tools whose rounds take seconds."""
SETTLE = 0.1
"""Seconds between rounds: the threads of the tool before spin for a while after their work is done."""
AT_MOST = {"numpy": (2.5, 1.8, 1.8, 1.5)}
"""Ours over that tool, by size."""
AT_LEAST = {"pfl": (200.0, 100.0, 50.0, 15.0), "flower": (1000.0,), "jax": (0.0, 0.0, 0.0, 1.0)}
"""The ratio of that tool to ours, by size."""
ON_RAY = 1.2
"""Ours on Ray over numpy, in wall time, at the largest size."""


@dataclass
class Row:
    """One tool at one size.

    Attributes:
        seconds: of processors, of each counted round.
        wall: seconds on the clock.
        peak_mib: largest resident memory; of engines with processes of their own the sum over them.
        difference: of its sum from numpy's, relative, in l2 norm.
        error: why there are no rounds.
    """

    samples: int
    columns: int
    tool: str
    seconds: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    difference: float | None = None
    error: str = ""

    @property
    def median(self) -> float:
        """Processor seconds of a round; infinite where there are none."""
        return statistics.median(self.seconds) if self.seconds else float("inf")


def main() -> None:
    arguments = parsed()
    if "pfl" in arguments.tools:
        make_environment(arguments.peers / "pfl", "pfl[pytorch]==0.6.*", "scikit-learn", torch=True)
    if "jax" in arguments.tools:
        make_environment(arguments.peers / "jax", "jax-privacy==2.0.*")
    rows, versions = list[Row](), dict[str, str]()
    for samples, columns in SIZES:
        measured = compete(samples, columns, arguments, versions)
        print(table(measured, heading=not rows), flush=True)
        rows += measured
        if arguments.json:  # after every size, for all of them take long
            machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
            report = {"users": USERS, "machine": machine, "versions": versions, "rows": [asdict(row) for row in rows]}
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    complaints = unequal(rows) + (slower(rows) if arguments.check else [])
    print("".join(f"{line}\n" for line in complaints), end="")
    sys.exit(1 if complaints else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=SCRIPTS, default=list(SCRIPTS), help="default all")
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds of the fast tools (default 15)")
    parser.add_argument("--peers", type=Path, default=PEERS, metavar="FOLDER", help="for environments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless every promised ratio is kept")
    return parser.parse_args()


def compete(samples: int, columns: int, arguments: argparse.Namespace, versions: dict[str, str]) -> list[Row]:
    """All tools at one size, round by round; notes their versions."""
    tools = [tool for tool in arguments.tools if tool != "flower" or (samples, columns) == SIZES[0]]
    rows = {tool: Row(samples, columns, tool) for tool in tools}
    with tempfile.TemporaryDirectory() as scratch:
        data = make_data(Path(scratch), samples, columns)
        for group in ([tool for tool in tools if tool not in ENGINES], *([tool] for tool in tools if tool in ENGINES)):
            with ExitStack() as stack:
                started = [stack.enter_context(process_of(tool, data, arguments.peers)) for tool in group]
                alternate([rows[tool] for tool in group], started, arguments.rounds)
                versions |= {name: each for one in started for name, each in (one.versions or {}).items()}
        compare(rows, Path(scratch))
    return list(rows.values())


def alternate(rows: list[Row], contestants: list[Contestant], rounds: int) -> None:
    """Rounds of some tools in turn."""
    for counted in range(-WARM_UP, rounds):
        for row, contestant in zip(rows, contestants, strict=True):
            if not contestant.error and counted < SLOW.get(row.tool, rounds):
                time.sleep(SETTLE)
                note(row, contestant.round(), counted=counted >= 0)
            row.error = contestant.error


def process_of(tool: str, data: Path, peers: Path) -> Contestant:
    """The tool's process."""
    environment, script, told = SCRIPTS[tool]
    python = python_of(peers / environment) if environment else Path(sys.executable)
    return start(python, script, [*told, str(data)], stem_of(data.parent, tool), threads=1)


def stem_of(folder: Path, tool: str) -> Path:
    """The path of the tool's files, without a suffix."""
    return folder / tool.replace(" ", "-")


def make_data(folder: Path, samples: int, columns: int) -> Path:
    """A file of `peers_work.Work`: features of length about one, targets of a noisy linear rule."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((USERS, samples, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
    truth = rng.normal(size=columns)
    targets = (features @ truth + rng.normal(size=(USERS, samples)) > 0).astype(np.float32)
    np.savez(folder / "data.npz", features=features, targets=targets, model=rng.normal(size=columns) / columns)
    return folder / "data.npz"


def note(row: Row, answer: dict[str, float], *, counted: bool) -> None:
    """Add the cost of a round to the row."""
    if answer and counted:
        row.seconds.append(answer["seconds"])
        row.wall.append(answer["wall"])
        row.peak_mib = max(row.peak_mib, answer["peak_mib"])


def compare(rows: dict[str, Row], folder: Path) -> None:
    """Every tool's sum with numpy's."""
    sums = {tool: np.load(stem_of(folder, tool).with_suffix(".npy")) for tool, row in rows.items() if not row.error}
    for tool, row in rows.items():
        if tool in sums and "numpy" in sums:
            away = np.linalg.norm(sums[tool].astype(np.float64) - sums["numpy"])
            row.difference = float(away / np.linalg.norm(sums["numpy"]))


def table(rows: list[Row], *, heading: bool) -> str:
    """The rows for people, with the ratios of ours."""
    names = ["m".rjust(4), "d".rjust(5), "tool".ljust(11), "ms", "wall ms", "peak MiB", "difference", "it / ours"]
    widths = [4, 5, 11, 9, 9, 8, 10, 9]
    lines = [" | ".join(name.rjust(width) for name, width in zip(names, widths, strict=True))] if heading else []
    ours = next((row.median for row in rows if row.tool == "ours"), float("inf"))
    for row in rows:
        label = f"{row.samples:4} | {row.columns:5} | {row.tool:11}"
        if row.error or not row.seconds:
            lines.append(f"{label} | fails: {row.error}")
            continue
        cells = [f"{1e3 * row.median:.1f}", f"{1e3 * statistics.median(row.wall):.1f}", f"{row.peak_mib:.0f}"]
        cells += ["" if row.difference is None else f"{row.difference:.1e}", f"{row.median / ours:.2f}"]
        lines.append(" | ".join([label, *(cell.rjust(width) for cell, width in zip(cells, widths[3:], strict=True))]))
    return "\n".join(lines)


def unequal(rows: list[Row]) -> list[str]:
    """Tools whose sum is not numpy's."""
    return [
        f"NOT EQUAL: {row.tool} at ({row.samples}, {row.columns}) differs from numpy by {row.difference:.1e}, relative"
        for row in rows
        if row.difference is not None and not row.difference <= TOLERANCE
    ]


def slower(rows: list[Row]) -> list[str]:
    """Promised ratios that are not kept."""
    found: dict[tuple[Any, ...], Row] = {(row.samples, row.columns, row.tool): row for row in rows}
    failed = []
    for index, size in enumerate(SIZES):
        ours = found[*size, "ours"].median
        for tool, limits in AT_MOST.items():
            if (*size, tool) in found and ours > limits[index] * found[*size, tool].median:
                failed.append(f"TOO SLOW: ours takes {ours / found[*size, tool].median:.2f} of {tool} at {size}")
        for tool, limits in AT_LEAST.items():
            if (*size, tool) in found and found[*size, tool].median < limits[index] * ours:
                failed.append(f"TOO SLOW: {tool} takes {found[*size, tool].median / ours:.2f} of ours at {size}")
    largest = SIZES[-1]
    if (*largest, "ours on ray") in found and (*largest, "numpy") in found:
        ours, theirs = (statistics.median(found[*largest, tool].wall) for tool in ("ours on ray", "numpy"))
        if ours > ON_RAY * theirs:
            failed.append(f"TOO SLOW: ours on Ray takes {ours / theirs:.2f} of numpy at {largest}, on the clock")
    return failed


if __name__ == "__main__":
    main()
