"""Runs everything, stage by stage, and writes what each said, with its commit, to `long_run.json`: ``make long``.

``python tests/long_run.py [STAGE ...]``: only these stages; the others keep what they said before. Commit the file:
what later changes run follows from it (see `selection`). Needs a clean checkout, so that a commit says what ran. Takes
more than an hour on two cores; what a stage prints is in ``build/long``.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import selection
from rich.console import Console

LOGS = selection.ROOT / "build" / "long"
_TELLING = re.compile(r"(?!make\b|make\[)\s*\S")
"""A line that is not empty, and not make's own."""
SLOWEST = 40
"""Test files that the record names."""
STAGES = {
    "fast tests": ("test", "--cov --cov-branch --cov-report=term --cov-fail-under=90"),
    "slow tests": ("test-slow", ""),
    "containers": ("containers", ""),
    "newest versions": ("newest", ""),
    "planted faults": ("mutants", ""),
}
"""Stage -> its target in the Makefile, and further arguments of pytest."""


def main() -> int:
    """The exit code: 0 where every stage that ran was green."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; all if none is named")
    parser.add_argument("--python", default=sys.executable, help="the Python that the Makefile's targets are made with")
    chosen = parser.parse_args()
    if unknown := [stage for stage in chosen.stages if stage not in STAGES]:
        parser.error(f"there is no stage {unknown[0]!r}: name some of {', '.join(STAGES)}")
    if git("status", "--porcelain"):
        parser.error("the checkout has changes that are not committed: a record says which commit ran")
    record = json.loads(selection.RECORD.read_text(encoding="utf-8")) if selection.RECORD.is_file() else {"stages": {}}
    said = {}
    for stage in chosen.stages or STAGES:
        said[stage] = run(stage, record["stages"].get(stage, {}), chosen.python)
        record["stages"] = {name: (record["stages"] | said)[name] for name in STAGES if name in record["stages"] | said}
        selection.RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["verdict"] == "green" for one in said.values()) else 1


def run(stage: str, before: dict[str, Any], python: str) -> dict[str, Any]:
    """Run a stage and return its commit, when, seconds, the last line that it prints, and its slowest files."""
    target, more = STAGES[stage]
    LOGS.mkdir(parents=True, exist_ok=True)
    log, report = (LOGS / f"{stage.replace(' ', '-')}.{kind}" for kind in ("log", "xml"))
    commit, console, began = git("rev-parse", "HEAD"), Console(), time.monotonic()
    options = [f"PYTHON={python}", f"PYTEST_ARGS=--junitxml={report} {more}", "SLOW=slow and not containers"]
    with log.open("w", encoding="utf-8") as output, console.status(f"{stage}: {log}"):
        command = ["make", target, *options]
        code = subprocess.run(command, cwd=selection.ROOT, stdout=output, stderr=output, check=False).returncode
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if _TELLING.match(line)]
    lines = lines or [""]
    verdict = "red" if code else "green"
    console.print(f"{stage}: {verdict} ({lines[-1]})", markup=False, highlight=False)
    return {
        "verdict": verdict,
        "text": lines[-1].strip("= "),
        "commit": commit,
        "green_at": before.get("green_at", "") if code else commit,
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(time.monotonic() - began),
        "slowest": slowest(report) if report.is_file() else {},
    }


def slowest(report: Path) -> dict[str, int]:
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[case.get("classname", "")] += float(case.get("time", "0"))
    return {file: round(spent) for file, spent in seconds.most_common(SLOWEST)}


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=selection.ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
