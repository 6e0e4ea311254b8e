"""The table behind the pictures of strategies' pages: how far their runs get, round by round.

Runs the example of every strategy (docs/making/examples.toml) with five seeds, and `auto` on the same people. What the
table has already is kept, unless the configuration has changed since.

    python docs/make_courses.py                   what is missing; under two minutes for all examples
    python docs/make_courses.py --again auto      one anew, after a change of its code
    python docs/make.py                           the pictures and the sentences beside them, from the table
"""

import argparse
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from making import courses, examples

from simulations.config.run_config import parse_config
from simulations.records.evaluation import main_metric
from simulations.runs.run import run
from userdp.errors import BadInput

SEEDS = range(5)
POINTS = 24
"""The most points of a course: its first and its last rounds, and some between."""


@dataclass(frozen=True)
class Course:
    """The course of one seed.

    Attributes:
        rounds: the rounds after which it was measured, 0 first.
        shares: the share of the way to training without privacy that the released model had gone by each of them.
        gain: the share of the initial loss that training without privacy removes.
    """

    rounds: list[int]
    shares: list[float]
    gain: float


def main() -> None:
    """Run what is missing, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME", help="run these though they are there")
    again = parser.parse_args().again
    table = courses.table()
    for name, config in courses.configurations().items():
        told = examples.digest(config)
        rows = table[table["example"] == name]
        if name not in again and set(rows["configuration"]) == {told}:
            continue
        try:
            measured = pd.DataFrame(_rows(name, config)).assign(configuration=told, userdp=version("userdp"))
        except BadInput as fault:  # of a public set whose file is not here
            raise SystemExit(f"{name}: {fault}") from None
        table = pd.concat([table[table["example"] != name], measured])
        table.to_csv(courses.MEASURED, index=False, float_format="%.4g")
        print(f"{name}: {measured['median'].iloc[-1]:.1%} of the way")


def _rows(name: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per round: the share of the way that seeds had gone, and how far `auto` gets on the same people."""
    found = [_course(config, seed) for seed in SEEDS]
    beside = config | {"privacy": {**config["privacy"], "unit": "user"}, "strategy": {"kind": "auto"}}
    auto = median(_course(beside, seed).shares[-1] for seed in SEEDS)
    last = min(len(course.rounds) for course in found) - 1  # runs that stop by themselves differ in their rounds
    rows = []
    for place in sorted({round(place) for place in np.linspace(0, last, POINTS)}):
        shares = [course.shares[-1 if place == last else place] for course in found]
        rows.append(
            {
                "example": name,
                "round": found[0].rounds[place],
                "median": median(shares),
                "least": min(shares),
                "most": max(shares),
                "auto": auto,
                "gain": median(course.gain for course in found),
                "seeds": len(SEEDS),
            }
        )
    return rows


def _course(config: dict[str, Any], seed: int) -> Course:
    parsed = parse_config(config | {"seed": seed})
    with TemporaryDirectory(prefix="courses-") as folder:
        directory = Path(folder) / "run"
        result = run(parsed, directory=directory, report=False).result
        rounds = pd.read_parquet(directory / "rounds.parquet")
    metric = main_metric(result["metrics"])
    start = result["reference"]["initial"][metric]
    end = result["reference_private"]["non_private"][metric]
    values = [start, *rounds[f"metric.{metric}"]]
    shares = [(start - value) / (start - end) for value in values]
    return Course([0, *rounds["round"].astype(int)], shares, gain=1 - end / start)


if __name__ == "__main__":
    main()
