"""The comparisons behind the numbers on the papers' pages: runs them, and keeps what they found as small tables.

Each table is results/papers/NAME.csv, one row a run, of simulations/configs/NAME.toml; docs/papers shows them
(docs/make.py). A comparison goes on where it was stopped.

    python research/papers.py                                those that have no table yet
    python research/papers.py --only high-dimensional-sparse --again
                                                               one of them, anew
    python research/papers.py --left                         run nothing; say what is missing
"""

import argparse
import shutil
from pathlib import Path

import pandas as pd
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.comparison.config import load_comparison
from simulations.comparison.jobs import compare
from simulations.runs.run import versions

HERE = Path(__file__).resolve().parent
CONFIGURATIONS = HERE.parent / "simulations" / "configs"
RESULTS = HERE / "results" / "papers"
WORK = HERE.parent / "build" / "papers"
NAMES = (
    "heavy-tailed-p2",
    "heavy-tailed-p3",
    "heavy-tailed-p4",
    "high-dimensional-frank-wolfe",
    "high-dimensional-lasso",
    "high-dimensional-sparse",
    "high-dimensional-dimension",
    "high-dimensional-sparsity",
    "high-dimensional-logistic",
    "compare-hard-instance",
    "robust-paper",
    "user-level",
    "sparse-means",
    "sparse-choice",
    "sparse-runs",
    "biweight",
    "sparse-gradients",
    "heavy-tailed-linear",
    "heavy-tailed-logistic",
    "averaged-clipping-restarts",
    "averaged-clipping-rough",
)
"""Comparisons that a page shows."""
KEPT = ("problem", "strategy", "seed", "main_metric", "value", "initial", "reference_private", "error_private")
"""Columns of every table, beside those of the comparison's grid."""


def measured(name: str, workers: int) -> pd.DataFrame:
    """One row a run of that comparison, with the versions that made it."""
    comparison = load_comparison(CONFIGURATIONS / f"{name}.toml")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task(name, total=len(comparison.cells))
        outcome = compare(comparison, workers=workers, directory=WORK / name, watch=lambda *_: progress.advance(task))
    rows = pd.DataFrame(outcome.rows)[[*comparison.grid_keys, *KEPT]]
    return rows.assign(**{tool: found for tool, found in versions().items() if tool in {"userdp", "numpy", "python"}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="comparisons to run")
    parser.add_argument("--again", action="store_true", help="forget their tables and runs first")
    parser.add_argument("--left", action="store_true", help="run nothing; say what is missing")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 runs one cell after the other in this one")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        table = RESULTS / f"{name}.csv"
        if arguments.again:
            table.unlink(missing_ok=True)
            shutil.rmtree(WORK / name, ignore_errors=True)
        if table.exists():
            continue
        if arguments.left:
            print(name)
            continue
        measured(name, arguments.workers).to_csv(table, index=False)
        print(table)


if __name__ == "__main__":
    main()
