"""The results of neural models trained on real users privately, beside a trivial model, no privacy, and a convention.

Runs the cells of simulations/configs/compare-neural.toml one after the other, and adds a row for each to
results/neural_table.csv: it may be stopped at any time, and resumes there. Beside the private runs stand, for
every set and seed, training without privacy and a trivial model (research/neural_trivial.py); and what a convention
of simulators would have printed (research/neural_convention.py). docs/neural.md shows the table (docs/make.py).

    python research/neural_table.py                             all that the table does not have yet
    python research/neural_table.py --only pupils roles         these sets
    python research/neural_table.py --strategies dp_fed_sgd     these strategies, and what stands beside them
    python research/neural_table.py --again writers             forget a set's rows first, after a change
    python research/neural_table.py --again auto                ... or a strategy's
    python research/neural_table.py --left                      run nothing; say what is missing

The sets' files have no public address: `userdp list data NAME` says what they are made from; USERDP_DATA names
their folder.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from neural_convention import printed_epsilon, scaled_noise
from neural_trivial import TRIVIAL
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.comparison.config import Cell, Comparison, load_comparison
from simulations.config.run_config import RunConfig
from simulations.records.environment import versions
from simulations.runs.build import load_datasets, starting_problem
from simulations.runs.run import run
from userdp.accounting import Guarantee
from userdp.data import Block, Federation
from userdp.data.source import Datasets
from userdp.errors import UserdpError
from userdp.problems import Problem

HERE = Path(__file__).resolve().parent
FILE = HERE.parent / "simulations" / "configs" / "compare-neural.toml"
RESULTS = HERE / "results" / "neural_table.csv"
WITHOUT, NO_PRIVACY = "trivial", "non_private"
FIRST = {("pupils", 8.0): 0, ("pupils", 2.0): 1, ("roles", 8.0): 2}
"""The cells that are run first: the page makes promises about them."""
ROUND_BY_ROUND = ("dp_fed_sgd", "dp_fed_avg", "adaptive_clipping")
"""Strategies with noise of its own and equally much of it in every round: the convention is about nothing else."""
KEY = ("problem", "strategy", "epsilon", "seed")
COLUMNS = (
    *KEY,
    *("metric", "value", "initial", "error"),
    *("users", "dimension", "relation", "spent_epsilon", "delta", "replace_one_epsilon", "replace_one_delta"),
    *("rounds", "cohort", "noise", "pretended_epsilon", "pretended_noise"),
    *("users_needed", "warnings", "model_noise", "reach"),
    *("settings", "seconds", "python", "torch", "userdp", "code"),
)


@dataclass(frozen=True)
class Piece:
    """One row of the table.

    Attributes:
        cell: a run of the comparison; of what is without privacy any of the same set and seed.
        strategy: its label, or what it is without privacy.
        epsilon: asked for; 0 without privacy.
    """

    cell: Cell
    strategy: str
    epsilon: float

    @property
    def key(self) -> tuple[str, str, float, int]:
        """The values that identify it."""
        return self.cell.problem, self.strategy, self.epsilon, self.cell.seed

    def row(self) -> dict[str, Any]:
        """Run it."""
        started = time.perf_counter()
        found = (
            trivial_row(self.cell)
            if self.strategy == WITHOUT
            else trained_row(self._config(), datasets_of(self.cell.problem, self.cell.seed))
        )
        told = versions()
        return {
            **dict(zip(KEY, self.key, strict=True)),
            "metric": TRIVIAL[self.cell.problem][0],
            **{name: value for name, value in found.items() if name != "metrics"},
            "seconds": time.perf_counter() - started,
            **{name: told[name] for name in ("python", "torch", "userdp")},
            "code": _code(),
        } | _measured(TRIVIAL[self.cell.problem][0], found.get("metrics", {}))

    def _config(self) -> RunConfig:
        return self.cell.reference() if self.strategy == NO_PRIVACY else self.cell.config()


def _measured(metric: str, metrics: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """The set's metric of the model, and of the initial one."""
    return {name: found[metric] for name, found in metrics.items() if metric in found}


def trivial_row(cell: Cell) -> dict[str, Any]:
    """The model that anybody would think of."""
    config = cell.config()
    problem, datasets = starting_problem(config), datasets_of(cell.problem, cell.seed)
    assert datasets.test is not None
    reached = TRIVIAL[cell.problem][1](_usable(problem, datasets.users), _usable(problem, datasets.test))
    return {"value": reached, "users": datasets.users.users, "settings": TRIVIAL[cell.problem][2]}


def trained_row(config: RunConfig, datasets: Datasets) -> dict[str, Any]:
    """A run of the comparison, or the reason why it failed."""
    settings = config.strategy.model_dump(exclude_defaults=True, exclude={"kind"})
    row: dict[str, Any] = {"settings": json.dumps(settings)}
    with TemporaryDirectory(prefix="neural-table-") as folder:
        try:
            outcome = run(config, datasets=datasets, directory=Path(folder) / "run", report=False)
        except UserdpError as error:
            return row | {"error": str(error)}
    plan, result = outcome.plan, outcome.result
    row |= {
        "metrics": {"value": result["metrics"], "initial": result["reference"]["initial"]},
        **{"users": plan.users, "dimension": result["dimension"], "rounds": plan.rounds, "cohort": plan.cohort},
        **{"users_needed": plan.users_needed, "warnings": " ".join(plan.warnings)},
    }
    if plan.forecast is not None:
        row |= {"model_noise": plan.forecast.noise, "reach": plan.forecast.reach}
    return row | (_promised(config, outcome.guarantee, plan.numbers) if outcome.guarantee.holds else {})


def _promised(config: RunConfig, guarantee: Guarantee, numbers: Any) -> dict[str, Any]:
    """The guarantee, its meaning for replacing one user, and the epsilon that the convention would have printed."""
    pair = guarantee.epsilon, guarantee.delta
    found = {
        **{"relation": guarantee.relation, "spent_epsilon": pair[0], "delta": pair[1]},
        **{"replace_one_epsilon": pair[0], "replace_one_delta": pair[1]},
    }
    if guarantee.relation != "replace_one":
        found |= {name: numbers[name] for name in ("replace_one_epsilon", "replace_one_delta")}
    if config.strategy.kind not in ROUND_BY_ROUND:
        return found
    # Over the clip, not over what replacing a user moves: twice the clip.
    noise = float(numbers["noise_multiplier"]) * (2.0 if guarantee.relation == "replace_one" else 1.0)
    arguments = int(numbers["cohort"]), int(config.strategy.rounds), config.privacy.delta
    return found | {
        "noise": noise,
        "pretended_epsilon": printed_epsilon(noise, *arguments),
        "pretended_noise": scaled_noise(config.privacy.epsilon, *arguments),
    }


def _usable(problem: Problem, federation: Federation) -> Block:
    """The samples of all users that can be used."""
    usable = problem.bound(federation.block(np.arange(federation.users)))[0].usable_part()[1]
    assert usable is not None
    return usable


@cache
def comparison() -> Comparison:
    """The comparison to run."""
    return load_comparison(FILE)


@lru_cache(maxsize=len(TRIVIAL))
def datasets_of(problem: str, seed: int) -> Datasets:
    """Users of a set, read once for many runs."""
    cells = comparison().cells
    return load_datasets(next(cell for cell in cells if (cell.problem, cell.seed) == (problem, seed)).config())


@cache
def _code() -> str:
    """The commit that was measured, so that nobody takes old numbers for those of new code."""
    asked = ["git", "describe", "--always", "--exclude", "*"]
    told = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def pieces(cells: Sequence[Cell]) -> list[Piece]:
    """The rows of the whole table: what is promised first, then set by set, what is without privacy before the rest."""
    found: dict[tuple[str, str, float, int], Piece] = {}
    for cell in cells:
        own = Piece(cell, cell.strategy, float(cell.grid["privacy.epsilon"]))
        for piece in (Piece(cell, WITHOUT, 0.0), Piece(cell, NO_PRIVACY, 0.0), own):
            found.setdefault(piece.key, piece)
    places = list(dict.fromkeys(cell.problem for cell in cells))

    def order(piece: Piece) -> tuple[int, int, float, int]:
        problem, _, epsilon, seed = piece.key
        budgets = {budget: place for (name, budget), place in FIRST.items() if name == problem}
        place = budgets.get(epsilon, len(FIRST)) if epsilon else min(budgets.values(), default=len(FIRST))
        return place, places.index(problem), -epsilon if epsilon else -np.inf, seed

    return sorted(found.values(), key=order)


def measured(path: Path = RESULTS) -> pd.DataFrame:
    """The rows that there are."""
    if not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    return pd.read_csv(path, keep_default_na=True, dtype={"code": str})


def missing(table: pd.DataFrame, wanted: Sequence[Piece]) -> list[Piece]:
    """The pieces to run: they are not in the table, or failed."""
    good = table[table["error"].isna()]
    there = set(good[list(KEY)].itertuples(index=False, name=None))
    return [piece for piece in wanted if piece.key not in there]


def add(path: Path, row: dict[str, Any]) -> None:
    """A row to the table, in the place of the one that is there; written whole, so that a stop leaves no half."""
    table = measured(path)
    same = (table[list(KEY)] == [row[name] for name in KEY]).all(axis=1)
    new = pd.DataFrame([row], columns=list(COLUMNS))
    kept = table[~same]
    frame = new if kept.empty else pd.concat([kept, new], ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    frame.sort_values(list(KEY)).to_csv(partial, index=False, float_format="%.6g")
    partial.replace(path)


def forget(path: Path, names: Sequence[str]) -> None:
    """Leave out the rows of sets and strategies."""
    table = measured(path)
    gone = table["problem"].isin(list(names)) | table["strategy"].isin(list(names))
    table[~gone].to_csv(path, index=False, float_format="%.6g")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*comparison().labels, WITHOUT, NO_PRIVACY]
    parser.add_argument("--only", nargs="+", choices=list(TRIVIAL), default=list(TRIVIAL), help="sets to run")
    parser.add_argument("--strategies", nargs="+", choices=names, default=names, help="strategies to run")
    parser.add_argument("--epsilons", nargs="+", type=float, help="budgets to run; all if not given")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds to run; all if not given")
    parser.add_argument("--again", nargs="+", choices=[*TRIVIAL, *names], default=[], help="forget these rows first")
    parser.add_argument("--left", action="store_true", help="run nothing; say what is missing")
    parser.add_argument("--csv", type=Path, default=RESULTS, help=f"the table (default {RESULTS.name} in results)")
    arguments = parser.parse_args()
    if arguments.again and not arguments.left:
        forget(arguments.csv, arguments.again)
    wanted = [
        piece
        for piece in pieces(comparison().cells)
        if piece.cell.problem in arguments.only
        and (piece.strategy in arguments.strategies or not piece.epsilon)
        and (arguments.epsilons is None or not piece.epsilon or piece.epsilon in arguments.epsilons)
        and (arguments.seeds is None or piece.cell.seed in arguments.seeds)
    ]
    left = missing(measured(arguments.csv), wanted)
    if arguments.left:
        print(*(_named(piece) for piece in left), f"{len(left)} of {len(wanted)} are missing", sep="\n")
        return
    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with bar:
        task = bar.add_task("", total=len(wanted), completed=len(wanted) - len(left))
        for piece in left:
            bar.update(task, description=_named(piece))
            row = piece.row()
            add(arguments.csv, row)
            told = row.get("error") or f"{row['metric']} {row['value']:.4f}"
            bar.console.print(f"{_named(piece)}: {told}, {row['seconds']:.0f} s")
            bar.advance(task)


def _named(piece: Piece) -> str:
    budget = f", epsilon {piece.epsilon:g}" if piece.epsilon else ""
    return f"{piece.cell.problem}: {piece.strategy}{budget}, seed {piece.cell.seed}"


if __name__ == "__main__":
    main()
