"""The results of `auto` without a setting, on real tables and on populations, beside clipping tuned with the answers.

Tasks are the public tables, as simulations/configs declare them, and tables drawn here: columns whose scales span a
decade and a half inside one declared range, neighbours correlated, 20 or 100 of them, 2,000 or 10,000 users with 5
samples each; squares and logistic losses. One default for all of them. For every strategy, budget and seed
the table holds the loss on held-out users, of the model, of training without privacy, and of the best constant (which
says their mean target of everybody); reported is the share of the way from that constant to no privacy.

Beside `auto` stand clipping strategies as they come, and the same tuned with the answers (research/oracle.py): that
search is NOT private, and is only there to tell what tuning would be worth.

    python research/zero_tuning.py                        all that results/zero_tuning.csv does not have yet
    python research/zero_tuning.py --only auto defaults   no oracles
    python research/zero_tuning.py --check                measure nothing; medians and what was promised of them
    python research/zero_tuning.py --again auto           measure auto anew, after a change of it

Rows are added as they come, so it may be stopped at any time; docs/zero-tuning.md shows the table (docs/make.py).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from oracle import STRATEGIES, name_of, oracle_rows
from zero_tuning_tasks import Task, tasks

from simulations import compare

RESULTS = Path(__file__).resolve().parent / "results" / "zero_tuning.csv"
SEEDS, EPSILONS, DELTA = 5, (4.0, 1.0), 1e-5
DEFAULTS = ("dp_fed_sgd", "adaptive_clipping", "recentred_clipping")
EXPLAINED_FROM = 0.1
"""The least share of the loss that training without privacy must explain, or its share of the way says nothing."""
NOISE = 0.005
"""The share of the best constant's loss by which a model may be worse than the constant without harm."""
ORACLES = tuple(name_of(kind) for kind in STRATEGIES)
STAGES = {"auto": ("auto",), "defaults": DEFAULTS, "oracle": ORACLES}
COLUMNS = (
    *("task", "family", "users", "parameters", "epsilon", "strategy", "seed"),
    *("constant", "without_privacy", "value", "warned", "settings", "seconds", "code"),
)


@dataclass(frozen=True)
class Piece:
    """One job: some seeds of a stage, for a task at some budgets."""

    task: Task
    epsilons: tuple[float, ...]
    stage: str
    seeds: tuple[int, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Run it, and give the rows of the table."""
        with TemporaryDirectory(prefix="zero-tuning-") as folder:
            root = Path(folder)
            comparison = {
                "name": "zero-tuning",
                "seeds": list(self.seeds),
                **self.task.sections(root),
                "privacy": {"delta": DELTA},
                "output": {"evaluate_every": 10_000},
                # One node with everybody: the same sums with fewer messages.
                "engine": {"users_per_node": 10_000},
            }
            if self.stage == "oracle":
                found = list(oracle_rows(comparison, self.epsilons, root / "runs"))
            else:
                comparison["grid"] = {"privacy.epsilon": list(self.epsilons)}
                comparison["strategy"] = [{"kind": kind} for kind in STAGES[self.stage]]
                found = compare(comparison, directory=root / "runs", workers=0).table.to_dict("records")
            return [self._row(one, root / "runs") for one in found]

    def _row(self, one: dict[str, Any], runs: Path) -> dict[str, Any]:
        """A row of the table from one of a comparison; without a value where the run failed."""
        plan, result = (_stored(runs / str(one["directory"]) / name) for name in ("plan.json", "result.json"))
        return {
            "task": self.task.name,
            "family": self.task.family,
            "users": plan.get("users"),
            "parameters": result.get("dimension"),
            "epsilon": one["epsilon"],
            "strategy": one["strategy"],
            "seed": one["seed"],
            # A location problem has no constant but its initial model.
            "constant": _number(one["initial"] if pd.isna(one["constant"]) else one["constant"]),
            "without_privacy": _number(one["reference_private"]),
            "value": _number(one["value"]),
            "warned": bool(plan.get("warnings")),
            "settings": one.get("settings", ""),
            "seconds": _number(one["seconds"]),
            "code": _code(),
        }


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _stored(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def _code() -> str:
    """The commit that was measured, so that nobody takes old numbers for those of new code."""
    asked = ["git", "describe", "--always", "--exclude", "*"]
    told = subprocess.run(asked, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def measured(path: Path) -> pd.DataFrame:
    """The rows that there are."""
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=list(COLUMNS))


def missing(table: pd.DataFrame, stages: Sequence[str], seeds: int, chosen: Sequence[Task]) -> Iterator[Piece]:
    """The pieces left to run, stage by stage: those that count most come first."""
    there = set(zip(table["task"], table["epsilon"], table["strategy"], table["seed"], strict=True))
    for stage in stages:
        for task in chosen:
            # Budgets that lack the same seeds share a run without privacy.
            groups: dict[tuple[int, ...], list[float]] = {}
            for epsilon in EPSILONS:
                names = STAGES[stage]
                left = (
                    seed for seed in range(seeds) if any((task.name, epsilon, one, seed) not in there for one in names)
                )
                groups.setdefault(tuple(left), []).append(epsilon)
            for left, epsilons in groups.items():
                if left:
                    yield Piece(task, tuple(epsilons), stage, left)


def run_piece(piece: Piece) -> list[dict[str, Any]]:
    """In a process of its own, if there are several."""
    return piece.rows()


def add(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows at the end of the table, those that are there already left out."""
    table = measured(path)
    there = set(zip(table["task"], table["epsilon"], table["strategy"], table["seed"], strict=True))
    new = [one for one in rows if (one["task"], one["epsilon"], one["strategy"], one["seed"]) not in there]
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(new, columns=list(COLUMNS))
    frame.to_csv(path, mode="a", header=not path.is_file(), index=False, float_format="%.6g")


def shared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with two more columns: each row's share of the way, from the best constant to training without privacy.

    And what part of the constant's loss is explained without privacy.
    """
    way = table["constant"] - table["without_privacy"]
    free = 1 - table["without_privacy"] / table["constant"]
    return table.assign(share=(table["constant"] - table["value"]) / way, explained=free)


def medians(table: pd.DataFrame) -> pd.DataFrame:
    """Median share over seeds: one row a task and budget, one column a strategy."""
    return shared(table).pivot_table(
        index=["family", "task", "epsilon"], columns="strategy", values="share", aggfunc="median"
    )


@dataclass(frozen=True)
class Promise:
    """Something that `auto` should reach, and what it did."""

    told: str
    found: str
    held: bool | None

    def __str__(self) -> str:
        verdict = "not measured" if self.held is None else "holds" if self.held else "FAILS"
        return f"{verdict:>12}  {self.told}: {self.found}"


def promises(table: pd.DataFrame) -> list[Promise]:
    """The results that `auto` should reach with one default for all data."""
    auto = shared(table)
    auto = auto[auto["strategy"] == "auto"]
    cells = auto.groupby(["family", "task", "epsilon"])
    middle, warned = cells["share"].median(), cells["warned"].any()
    told_apart = cells["explained"].median() > EXPLAINED_FROM
    found = []
    for family, epsilon, least in (("table", 4.0, 0.9), ("table", 1.0, 0.7), ("population", 4.0, 0.8)):
        own = middle[(middle.index.get_level_values(0) == family) & (middle.index.get_level_values(2) == epsilon)]
        own = own[told_apart[own.index]]
        own = own[~warned[own.index]] if family == "table" else own
        told = f"median over {family}s at epsilon {epsilon:g} at least {least:.0%}"
        told += ", where no plan warned" if family == "table" else ""
        value = own.median()
        found.append(Promise(told, f"{value:.1%} of {len(own)}", None if own.empty else bool(value >= least)))
        below = [f"{task} {share:.1%}" for (_, task, _), share in own.items() if share < least]
        found.append(Promise(f"... and each of them (epsilon {epsilon:g})", "; ".join(below) or "all", not below))
    able = auto[auto["explained"] > 0]  # else no model of the loss is better than the constant, without privacy either
    worse = able[able["value"] > (1 + NOISE) * able["constant"]]
    seeds = [f"{one.task} epsilon {one.epsilon:g} seed {one.seed}" for one in worse.itertuples()]
    told = f"at most one run in twenty worse than the best constant by more than {NOISE:.1%}"
    found.append(Promise(told, ", ".join(seeds) or "none", bool(len(worse) <= 0.05 * len(able))))
    return [*found, *_beside_oracles(table)]


def _beside_oracles(table: pd.DataFrame) -> list[Promise]:
    """`auto` against the best of what was tuned with the answers, where that was measured."""
    told_apart = shared(table).query("explained > @EXPLAINED_FROM")
    shares = medians(told_apart).reindex(columns=["auto", *ORACLES])
    tuned = shares[list(ORACLES)].max(axis=1)
    ahead = (shares["auto"] - tuned).dropna()
    if ahead.empty:
        return [Promise("beside the oracle", "no cell", None)]
    won = (ahead > 0).mean()
    return [
        Promise(
            "at most 5 points behind the best oracle in the median", f"{ahead.median():+.1%}", ahead.median() >= -0.05
        ),
        Promise("ahead of it in a third of the cells", f"{won:.0%} of {len(ahead)}", bool(won >= 1 / 3)),
    ]


def show(table: pd.DataFrame) -> bool:
    """Print medians and promises; whether none of them fails."""
    with pd.option_context("display.width", 200, "display.max_rows", None, "display.float_format", "{:.3f}".format):
        print(medians(table).to_string())
    told = promises(table)
    print("\n", *told, sep="\n")
    return all(one.held is not False for one in told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STAGES), default=list(STAGES), help="stages to run")
    parser.add_argument("--tasks", nargs="+", metavar="NAME", help="tasks to run; all if not given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds of each (default {SEEDS})")
    parser.add_argument("--quick", action="store_true", help="one seed, and none of the large tables")
    parser.add_argument("--again", nargs="+", choices=list(STAGES), default=[], help="forget these stages first")
    parser.add_argument("--processes", type=int, default=1, help="pieces run side by side (default 1)")
    parser.add_argument("--check", action="store_true", help="run nothing; exit with 1 where a promise fails")
    parser.add_argument("--csv", type=Path, default=RESULTS, help=f"the table (default {RESULTS.name} in results)")
    arguments = parser.parse_args()
    if not arguments.check:
        measure(arguments)
    held = show(measured(arguments.csv))
    sys.exit(1 if arguments.check and not held else 0)


def measure(arguments: argparse.Namespace) -> None:
    """Run what is missing, and add its rows."""
    chosen = [one for one in tasks() if arguments.tasks is None or one.name in arguments.tasks]
    if arguments.quick:
        chosen = [one for one in chosen if one.users <= 2_000 and one.columns <= 20]
    if arguments.again:
        table = measured(arguments.csv)
        gone = {(name, task.name) for stage in arguments.again for name in STAGES[stage] for task in chosen}
        kept = [pair not in gone for pair in zip(table["strategy"], table["task"], strict=True)]
        table[kept].to_csv(arguments.csv, index=False)
    seeds = 1 if arguments.quick else arguments.seeds
    pieces = list(missing(measured(arguments.csv), arguments.only, seeds, chosen))
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        work = {pool.submit(run_piece, piece): piece for piece in pieces}
        for number, done in enumerate(as_completed(work), 1):
            piece = work[done]
            add(arguments.csv, done.result())
            told = f"{piece.task.name}, epsilon {', '.join(f'{one:g}' for one in piece.epsilons)}, {piece.stage}"
            print(f"{time.strftime('%H:%M:%S')} {number} of {len(pieces)}: {told}", flush=True)


if __name__ == "__main__":
    main()
