"""Rounds of local training of six neural models: processor seconds and peak memory, beside plain torch, pfl and Flower.

Everybody takes part: each user makes 5 full-batch SGD steps on its own samples, its update is clipped, and all are
added up, without noise. The same round, by

- ours: a `userdp` node with all users, asked for the sum of "local_update" of a `TorchProblem`;
- loop: for each user a copy of the model, autograd and torch.optim.SGD, in plain torch;
- pfl: version 0.6 with its simulation backend, in an environment that this command makes;
- flower: Flower's own engine on Ray, a SuperNode for each user, for the perceptron alone.

Every tool is a process of its own, which keeps its data as it likes. Rounds of the tools alternate, so that a busy
machine slows all of them alike; the first is not counted. Processor seconds include children, and threads that spin
while they wait: ``--threads 1`` for those of the mathematics alone. Each tool's sum must be the loop's to 1e-4
relative. ``python research/neural.py --check``.
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
from neural_tools import TOOLS, Contestant, make_data, make_environments, start

MODELS = {  # as in neural_models, which needs torch, whose memory every worker would begin with
    "perceptron": "digits",
    "embedding": "characters",
    "gru": "characters",
    "lstm": "characters",
    "written_gru": "characters",
    "transformer": "characters",
}
FLOWERS = ("perceptron",)
"""Models for Flower's engine: what a message costs it does not depend on the model."""
RATIO, LIMIT_MIB, TOLERANCE = 0.9, 1024, 1e-4
SETTLE = 0.3
"""Seconds between rounds: the threads of the tool before spin for a while after their work is done."""


@dataclass
class Row:
    """One tool on one model.

    Attributes:
        seconds: of processors, of each counted round.
        peak_mib: largest resident memory; for Flower the sum over its processes.
        difference: of its sum from the loop's, relative, in l2 norm; None without a loop.
        error: why there are no rounds.
    """

    model: str
    tool: str
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    difference: float | None = None
    error: str = ""

    @property
    def median(self) -> float:
        """The median seconds of a round; infinite where there are none."""
        return statistics.median(self.seconds) if self.seconds else float("inf")


def main() -> None:
    arguments = parsed()
    if "pfl" in arguments.tools:
        make_environments(arguments.peers)
    rows, versions = list[Row](), dict[str, str]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_data(folder, arguments.peers, quick=arguments.quick)
        about = {name: described(folder / f"{name}.npz") for name in ("digits", "characters")}
        print("\n".join(about.values()), flush=True)
        for model in arguments.models:
            tools = [tool for tool in arguments.tools if tool != "flower" or model in FLOWERS]
            measured = compete(model, tools, folder, arguments, versions)
            print(table(measured, heading=not rows), flush=True)
            rows += measured
            if arguments.json:  # after every model, for all of them take long
                told = {"settings": settings(arguments) | about, "versions": versions}
                report = told | {"rows": [asdict(row) for row in rows]}
                arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    wrong = unequal(rows)
    failed = too_slow(rows) if arguments.check else []
    print("".join(f"{line}\n" for line in wrong + failed), end="")
    sys.exit(1 if wrong or failed else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=some_of(MODELS), default=list(MODELS), help="comma-separated (default all)")
    parser.add_argument("--tools", type=some_of(TOOLS), default=list(TOOLS), help="comma-separated (default all)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each tool (default 3)")
    parser.add_argument("--threads", type=int, help="of each tool; by default as many as it takes")
    parser.add_argument("--quick", action="store_true", help="few users with few samples: only for a trial")
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache" / "userdp" / "peers", metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with 1 unless ours takes at most {RATIO} of the faster of loop and pfl, and {LIMIT_MIB} MiB",
    )
    return parser.parse_args()


def some_of(names: dict[str, str]) -> Any:
    """The type of an argument that lists some of these names."""

    def read(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; there are {', '.join(names)}")
        return chosen

    return read


def described(data: Path) -> str:
    """The source, the number and the sizes of a file's users, as text."""
    with np.load(data) as file:
        sizes = np.diff(file["offsets"])
        return f"{data.stem}: {file['source']}, {len(sizes)} users of {sizes.min()} to {sizes.max()} samples"


def compete(
    model: str, tools: list[str], folder: Path, arguments: argparse.Namespace, versions: dict[str, str]
) -> list[Row]:
    """All tools, round by round; notes their versions."""
    rows = [Row(model, tool) for tool in tools]
    data = folder / f"{MODELS[model]}.npz"
    with ExitStack() as stack:
        started = [start(tool, model, data, folder, arguments.peers, arguments.threads) for tool in tools]
        contestants = [stack.enter_context(contestant) for contestant in started]
        for counted in range(arguments.rounds + 1):
            for row, contestant in zip(rows, contestants, strict=True):
                if not contestant.error:
                    time.sleep(SETTLE)
                    note(row, contestant.round(), counted=counted > 0)
        for row, contestant in zip(rows, contestants, strict=True):
            row.error = contestant.error
            versions |= contestant.versions or {}
    compare({row.tool: row for row in rows}, dict(zip(tools, contestants, strict=True)))
    return rows


def note(row: Row, answer: dict[str, float], *, counted: bool) -> None:
    """Add the cost of a round to the row."""
    if answer and counted:
        row.seconds.append(answer["seconds"])
        row.peak_mib = max(row.peak_mib, answer["peak_mib"])


def compare(rows: dict[str, Row], contestants: dict[str, Contestant]) -> None:
    """Every tool's sum with the loop's."""
    if "loop" not in rows or rows["loop"].error:
        return
    wanted = np.load(contestants["loop"].total).astype(np.float64)
    for tool, row in rows.items():
        if not row.error:
            found = np.load(contestants[tool].total).astype(np.float64)
            row.difference = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def table(rows: list[Row], *, heading: bool) -> str:
    """The rows for people, with the ratios of ours."""
    names = ["model".ljust(11), "tool".ljust(6), "seconds", "peak MiB", "difference", "ours / it"]
    lines = [" | ".join(names)] if heading else []
    ours = next((row.median for row in rows if row.tool == "ours"), float("inf"))
    for row in rows:
        label = f"{row.model.ljust(len(names[0]))} | {row.tool.ljust(len(names[1]))}"
        if row.error:
            lines.append(f"{label} | fails: {row.error}")
            continue
        difference = "" if row.difference is None else f"{row.difference:.1e}"
        ratio = "" if ours == float("inf") or row.tool == "ours" else f"{ours / row.median:.2f}"
        cells = [f"{row.median:.3f}", f"{row.peak_mib:.0f}", difference, ratio]
        padded = [cell.rjust(len(name)) for cell, name in zip(cells, names[2:], strict=True)]
        lines.append(" | ".join([label, *padded]))
    return "\n".join(lines)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings and the machine of the measurement."""
    chosen = {name: getattr(arguments, name) for name in ("rounds", "threads", "quick")}
    return chosen | {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}


def unequal(rows: list[Row]) -> list[str]:
    """Tools whose sum is not the loop's."""
    return [
        f"NOT EQUAL: {row.tool} on {row.model} differs from the loop by {row.difference:.1e}, relative"
        for row in rows
        if row.difference is not None and not row.difference <= TOLERANCE
    ]


def too_slow(rows: list[Row]) -> list[str]:
    """Models on which ours does not keep what it promises."""
    failed = []
    for row in rows:
        if row.tool != "ours":
            continue
        others = [other.median for other in rows if other.model == row.model and other.tool in ("loop", "pfl")]
        limit = RATIO * min(others, default=float("inf"))
        if row.error:
            failed.append(f"FAILS: {row.model}: {row.error}")
        elif row.median > limit:
            failed.append(f"TOO SLOW: {row.model} takes {row.median:.3f} s, must be at most {limit:.3f}")
        if row.peak_mib > LIMIT_MIB:
            failed.append(f"TOO LARGE: {row.model} takes {row.peak_mib:.0f} MiB, must be at most {LIMIT_MIB}")
    return failed


if __name__ == "__main__":
    main()
