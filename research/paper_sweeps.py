"""The sweeps behind what the papers' pages say of arrays: makes them, and keeps each as a small table.

Each is results/papers/sweeps/NAME.csv, made by a function of sweeps/; docs/papers shows them (docs/make.py). What
compares strategies from configurations is research/papers.py.

    python research/paper_sweeps.py                          those that have no table yet
    python research/paper_sweeps.py --only NAME --again      one of them, anew
    python research/paper_sweeps.py --left                   run nothing; say what is missing
"""

import argparse
from pathlib import Path

import pandas as pd
from sweeps import SWEEPS

from simulations.records.environment import versions

RESULTS = Path(__file__).resolve().parent / "results" / "papers" / "sweeps"


def measured(name: str) -> pd.DataFrame:
    """That sweep's table, with the versions that made it."""
    made = {tool: found for tool, found in versions().items() if tool in {"userdp", "numpy", "python"}}
    return SWEEPS[name].make().assign(**made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS), help="sweeps to make")
    parser.add_argument("--again", action="store_true", help="forget their tables first")
    parser.add_argument("--left", action="store_true", help="run nothing; say what is missing")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        table = RESULTS / f"{name}.csv"
        if table.exists() and not arguments.again:
            continue
        if arguments.left:
            print(name)
            continue
        measured(name).to_csv(table, index=False, float_format="%.6g")
        print(table)


if __name__ == "__main__":
    main()
