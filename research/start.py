"""The cost of a command from the empty process to its end: help, plan, small run, its report, small comparison.

Whole processes, imports included. Processor seconds are those of the process and of what it waits for, with one
thread for mathematics; Ray's processes are nobody's children, so the comparison is measured twice: in one process, and
on the clock as it runs by default, with a Ray process for each core. The least of several repetitions, in turns.

    python research/start.py --check --json research/results/start.json
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from simulations.comparison.config import load_comparison

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATIONS = ROOT / "simulations" / "configs"
PROGRAM = [sys.executable, "-c", "from simulations.cli import main; main()"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
COMPARISON = "compare compare-quick.toml"
LIMIT = 20.0
"""Seconds on the clock for the comparison, on two idle cores."""


@dataclass(frozen=True)
class Row:
    """One command.

    Attributes:
        command: as people would type it, without folders.
        processor: seconds of all its processes; None where they are not its own.
        clock: seconds.
    """

    command: str
    processor: float | None
    clock: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="of the short commands (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if the comparison takes over {LIMIT:.0f} s")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder), arguments.repetitions)
    for row in rows:
        processor = "" if row.processor is None else f"{row.processor:.2f}"
        print(f"{row.command:42} | {processor:>6} s of processor | {row.clock:6.2f} s")
    if arguments.json:
        machine = {"cores": os.cpu_count(), "busy": round(load, 1)}
        cells = len(load_comparison(CONFIGURATIONS / "compare-quick.toml").cells)
        report = {"machine": machine, "limit": LIMIT, "cells": cells, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    taken = next(row.clock for row in rows if row.command == COMPARISON)
    if arguments.check and taken > LIMIT:
        sys.exit(f"TOO SLOW: {COMPARISON}: {taken:.1f} > {LIMIT:.0f} s")


def measured(folder: Path, repetitions: int) -> list[Row]:
    """All commands; what they write goes into the folder."""
    runs, small = folder / "runs", str(CONFIGURATIONS / "quickstart.toml")
    short = {
        "--help": ["--help"],
        "plan quickstart.toml": ["plan", small],
        "run quickstart.toml": ["run", small, "--output", str(runs)],
        "report DIRECTORY": ["report", str(runs / "quickstart-auto-seed1")],
    }
    rounds = [[timed(name, command) for name, command in short.items()] for _ in range(repetitions)]
    rows = [min(times, key=lambda row: row.processor or 0.0) for times in zip(*rounds, strict=True)]
    compared = ["compare", str(CONFIGURATIONS / "compare-quick.toml"), "--output"]
    rows.append(timed(f"{COMPARISON} --workers 0", [*compared, str(folder / "alone"), "--workers", "0"]))
    side_by_side = timed(COMPARISON, [*compared, str(folder / "together")])
    return [*rows, Row(COMPARISON, None, side_by_side.clock)]


def timed(name: str, command: list[str]) -> Row:
    """One process, from its start to its end; it ends the program if the command fails."""
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*PROGRAM, *command], capture_output=True, text=True, check=False, env=environment)
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"userdp {name} failed:\n{done.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Row(name, round(processor, 2), round(clock, 2))


if __name__ == "__main__":
    main()
