"""The tables behind the numbers on the papers' pages: makes them, and keeps each as a small table.

Each paper's room, a folder of strategies with a paper.toml, holds its results/NAME.csv: of the comparison
configs/NAME.toml, one row per run, or of a function in sweeps. The room's page shows them (docs/make.py). A comparison
goes on where it was stopped.

    python research/papers.py                                those that have no table yet
    python research/papers.py --only high-dimensional-sparse --again
                                                               one of them, anew
    python research/papers.py --left                         run nothing; say what is missing
"""

import argparse
import shutil
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import pandas as pd
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sweeps.sweep import Sweep

from simulations.comparison.config import load_comparison
from simulations.comparison.jobs import compare
from simulations.records.environment import versions

ROOT = Path(__file__).resolve().parents[1]
ROOMS = sorted(path.parent for path in ROOT.glob("strategies/**/paper.toml"))
WORK = ROOT / "build" / "papers"
KEPT = ("problem", "strategy", "seed", "main_metric", "value", "initial", "reference_private", "error_private")
"""Columns of every table of a comparison, beside those of its grid."""


def comparisons() -> dict[str, Path]:
    """Return the configuration of each comparison that a page shows, by name; in its room, or at the front door."""
    folders = [ROOT / "simulations" / "configs", *(room / "configs" for room in ROOMS)]
    files = {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}
    return {name: files[name] for room in ROOMS for name in _declared(room) if name in files}


def _declared(room: Path) -> list[str]:
    return list(tomllib.loads((room / "paper.toml").read_text(encoding="utf-8"))["tables"].values())


@cache
def _sweeps() -> dict[str, tuple[Path, Sweep]]:
    found = {}
    for room in ROOMS:
        for file in sorted((room / "sweeps").glob("*.py")):
            module = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            found |= {name: (room, sweep) for name, sweep in getattr(module, "SWEEPS", {}).items()}
    return found


def sweeps() -> dict[str, Sweep]:
    """Return the maker of each sweep, by name."""
    return {name: sweep for name, (_, sweep) in _sweeps().items()}


def table_of(name: str) -> Path:
    """Return the path of a table."""
    room = _sweeps()[name][0] if name in _sweeps() else next(room for room in ROOMS if name in _declared(room))
    return room / "results" / f"{name}.csv"


def measured(name: str, workers: int) -> pd.DataFrame:
    """Make a table, with the versions that made it."""
    made = {tool: found for tool, found in versions().items() if tool in {"userdp", "numpy", "python"}}
    if name in sweeps():
        return sweeps()[name].make().assign(**made)
    comparison = load_comparison(comparisons()[name])
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task(name, total=len(comparison.cells))
        outcome = compare(comparison, workers=workers, directory=WORK / name, watch=lambda *_: progress.advance(task))
    return pd.DataFrame(outcome.rows)[[*comparison.grid_keys, *KEPT]].assign(**made)


def main() -> None:
    names = [*comparisons(), *sweeps()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="tables to make", metavar="NAME")
    parser.add_argument("--again", action="store_true", help="make them anew, from the first run")
    parser.add_argument("--left", action="store_true", help="make nothing; say what is missing")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 runs one cell after the other in this one")
    arguments = parser.parse_args()
    for name in arguments.only:
        table = table_of(name)
        if arguments.again:
            shutil.rmtree(WORK / name, ignore_errors=True)
        elif table.exists():
            continue
        if arguments.left:
            print(name)
            continue
        table.parent.mkdir(exist_ok=True)
        measured(name, arguments.workers).to_csv(table, index=False, float_format="%.6g" if name in sweeps() else None)
        print(table)


if __name__ == "__main__":
    main()
