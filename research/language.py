"""A small language model fine-tuned on people's texts with user-level privacy: which part of it, and whose clip.

Every cell trains a model of `pretrain.py`, and measures bits a byte on a held-out twentieth of the people, all of
them with at most two windows of 128 bytes. ``roles`` are those of GerDraCor's plays; ``chats`` are what people wrote in
the Ubuntu channel (`chats.py` makes the table), with the same settings. It trains low-rank adapters, the whole model,
or the same architecture from random weights, by one of three strategies:

    uls      clips each role's gradient (dp_fed_sgd, secret cohorts)
    els      clips each window's gradient (poisson_sample_sgd with unit = "user")
    uls_sgd  is uls with plain steps in place of Adam's, as els has them
    uls_replaced  is uls for replacing a role

Beside them stand the frequencies of bytes (trivial), the model before fine-tuning, and adapters without privacy. Both
clips promise (epsilon, 1e-5) for adding or removing a person with all windows. els needs the number of all windows,
which is counted here and taken as public.

Cells run one after the other, those that count most first, and each adds a row to results/language.csv: it may be
stopped at any time, and goes on where it stood. A cell takes eight minutes on a processor core. All rows of a seed
begin at one base: made again on another machine, a base differs in last digits, and the seed's rows have to be measured
anew.

    python research/pretrain.py base
    USERDP_DATA=folder python research/language.py --base base      all that the table does not have yet
    python research/language.py --base base --epsilons 8 --seeds 0  these cells
    python research/language.py --left                              run nothing; say what is missing
    python research/language.py --base other --chats chats.csv      the same for chats

`python docs/make.py` puts the table into docs/language.md.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from neural_trivial import character_rates
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.config.run_config import RunConfig, parse_config, read_toml
from simulations.records.environment import versions
from simulations.runs.build import load_datasets, starting_problem
from simulations.runs.run import run
from userdp.accounting.composition import add_or_remove_to_replace_one
from userdp.data.source import Datasets
from userdp.errors import UserdpError

HERE = Path(__file__).resolve().parent
FILE = HERE.parent / "simulations" / "configs" / "language.toml"
RESULTS = HERE / "results" / "language.csv"
TRIVIAL, NO_PRIVACY = "trivial", "non_private"
MODELS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"adapter": None},
    "scratch": {"adapter": None, "pretrained": False},
}
"""The models to train: changes of the configuration's problem."""
STRATEGIES: dict[str, dict[str, Any]] = {
    NO_PRIVACY: {"kind": "non_private", "cohort": 200, "rounds": 60, "learning_rate": 0.01},
    "uls": {},
    "els": {"kind": "poisson_sample_sgd", "batch": 350, "rounds": 60, "output": "last"},
    "uls_sgd": {"server_optimiser": "sgd"},
    "uls_replaced": {"relation": "replace_one"},
}
"""Whole strategies, or changes of the configuration's."""
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("full", "uls"): {"learning_rate": 3e-3},
    ("scratch", "uls"): {"learning_rate": 3e-3},
    ("lora", "uls_sgd"): {"learning_rate": 5.0},
    ("lora", "els"): {"learning_rate": 5.0, "clip_norm": 0.3},
    ("full", "els"): {"learning_rate": 0.5, "clip_norm": 0.3},
    ("scratch", "els"): {"learning_rate": 1.0, "clip_norm": 0.3},
}
"""(model, strategy) -> its clip and step, where they are not the configuration's."""
EPSILONS, SEEDS = (8.0, 2.0, 1.0, 4.0), (0, 1, 2)
KEY = ("data", "model", "strategy", "epsilon", "seed")
COLUMNS = (
    *KEY,
    *("bits", "initial", "error", "users", "held_out", "parameters"),
    *("relation", "spent_epsilon", "delta", "replace_one_epsilon", "replace_one_delta"),
    *("rounds", "cohort", "noise_multiplier", "settings", "seconds", "python", "torch", "userdp", "code"),
)


@dataclass(frozen=True)
class Material:
    """A pretrained model, and the people that it is tuned for: the writers of chats, or roles where there are none."""

    base: Path
    chats: Path | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of adapters for them, as it stands in a file."""
        raw = read_toml(FILE)
        raw |= {"problem": raw["problem"] | {"model": f"hf:{self.base.resolve()}"}}
        raw |= {"engine": {"users_per_node": 100_000}}
        raw |= {"output": {"evaluate_every": 10_000, "reference": False, "anyway": True}}
        if self.chats is None:
            return raw
        table = {"kind": "table", "path": str(self.chats), "user": "person", "all_users": people(self.chats)}
        return raw | {"data": {name: value for name, value in raw["data"].items() if name != "name"} | table}


@dataclass(frozen=True)
class Cell:
    """One row of the table; epsilon is 0 without privacy."""

    data: str
    model: str
    strategy: str
    epsilon: float
    seed: int

    def __str__(self) -> str:
        budget = f", epsilon {self.epsilon:g}" if self.epsilon else ""
        return f"{self.data}: {self.model} {self.strategy}{budget}, seed {self.seed}"

    def config(self, material: Material, samples: int | None = None) -> RunConfig:
        """The run of the cell, given the number of windows; of the trivial model a run of adapters."""
        raw = material.config
        changed = raw["problem"] | MODELS.get(self.model, {})
        own = STRATEGIES.get(self.strategy, {})
        strategy = (own if "kind" in own else raw["strategy"] | own) | SETTINGS.get((self.model, self.strategy), {})
        return parse_config(
            raw
            | {
                "seed": self.seed,
                "problem": {name: value for name, value in changed.items() if value is not None},
                "data": raw["data"] | ({"samples": samples} if self.strategy == "els" else {}),
                "privacy": raw["privacy"] | ({"epsilon": self.epsilon} if self.epsilon else {}),
                "strategy": strategy,
            }
        )

    def row(self, material: Material) -> dict[str, Any]:
        """Run it, and return its row, or the reason why it failed."""
        began, datasets = time.perf_counter(), datasets_of(self.seed, material)
        config = self.config(material, datasets.users.samples)
        found = trivial(config, datasets) if self.strategy == TRIVIAL else trained(config, datasets)
        about = {name: versions()[name] for name in ("python", "torch", "userdp")}
        measured = {"held_out": datasets.test.users if datasets.test else 0, "seconds": time.perf_counter() - began}
        return {name: getattr(self, name) for name in KEY} | found | measured | about | {"code": _code()}


def trivial(config: RunConfig, datasets: Datasets) -> dict[str, Any]:
    """The frequencies of bytes in the training roles."""
    problem, _ = starting_problem(config), datasets.users
    blocks = []
    for federation in (datasets.users, datasets.test):
        assert federation is not None
        usable = problem.bound(federation.block(np.arange(federation.users)))[0].usable_part()[1]
        assert usable is not None
        blocks.append(usable)
    tokens = config.data.sample_shape.sequence.levels[0]
    return {"bits": character_rates(*blocks, tokens), "users": datasets.users.users}


def trained(config: RunConfig, datasets: Datasets) -> dict[str, Any]:
    """A run."""
    settings = config.strategy.model_dump(exclude_defaults=True, exclude={"kind"})
    row: dict[str, Any] = {"settings": json.dumps(settings)}
    with TemporaryDirectory(prefix="language-") as folder:
        try:
            outcome = run(config, datasets=datasets, directory=Path(folder) / "run", report=False, checkpoint=False)
        except UserdpError as error:
            return row | {"error": str(error)}
    plan, result, guarantee = outcome.plan, outcome.result, outcome.guarantee
    row |= {"bits": result["metrics"]["bits"], "initial": result["reference"]["initial"]["bits"]}
    row |= {"users": plan.users, "parameters": result["dimension"], "rounds": plan.rounds, "cohort": plan.cohort}
    if not guarantee.holds:
        return row
    pair = guarantee.epsilon, guarantee.delta
    replaced = pair if guarantee.relation == "replace_one" else add_or_remove_to_replace_one(*pair)
    return row | {
        **{"relation": guarantee.relation, "spent_epsilon": pair[0], "delta": pair[1]},
        **{"replace_one_epsilon": replaced[0], "replace_one_delta": replaced[1]},
        "noise_multiplier": plan.numbers["noise_multiplier"],
    }


@cache
def people(chats: Path) -> int:
    """The number of people in the table."""
    return int(pd.read_csv(chats, usecols=["person"], keep_default_na=False)["person"].nunique())


@lru_cache(maxsize=1)
def datasets_of(seed: int, material: Material) -> Datasets:
    """The people of a seed, read once for many cells."""
    return load_datasets(parse_config(material.config | {"seed": seed}))


@cache
def _code() -> str:
    """The commit that was measured, so that nobody takes old numbers for those of new code."""
    asked = ["git", "describe", "--always", "--exclude", "*"]
    return subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def cells(data: str) -> list[Cell]:
    """All cells of a data set, by what they count: first everything at epsilon 8, then budgets, then seeds.

    Cells of one seed stand together, whose data are read once. Of chats there are adapters alone.
    """
    found = []
    models = {"roles": MODELS, "chats": ["lora"]}[data]
    for seed in SEEDS:
        found += [Cell(data, TRIVIAL, TRIVIAL, 0.0, seed), Cell(data, "lora", NO_PRIVACY, 0.0, seed)]
        for epsilon in EPSILONS:
            found += [Cell(data, model, strategy, epsilon, seed) for strategy in ("uls", "els") for model in models]
            found += [Cell(data, "lora", strategy, epsilon, seed) for strategy in ("uls_sgd", "uls_replaced")]
    return found


def measured(path: Path = RESULTS) -> pd.DataFrame:
    """The rows that there are."""
    return pd.read_csv(path, dtype={"code": str}) if path.is_file() else pd.DataFrame(columns=list(COLUMNS))


def missing(table: pd.DataFrame, wanted: Sequence[Cell]) -> list[Cell]:
    """The cells that are not there, or failed."""
    there = set(table[table["error"].isna()][list(KEY)].itertuples(index=False, name=None))
    return [cell for cell in wanted if astuple(cell) not in there]


def add(path: Path, row: dict[str, Any]) -> None:
    """Put a row into the table, in the place of the one that is there; written whole, so that a stop leaves no half."""
    table = measured(path)
    kept = table[~(table[list(KEY)] == [row[name] for name in KEY]).all(axis=1)]
    new = pd.DataFrame([row], columns=list(COLUMNS))
    frame = new if kept.empty else pd.concat([kept, new], ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    frame.sort_values(list(KEY)).to_csv(partial, index=False, float_format="%.6g")
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="folder of the model, as pretrain.py writes it")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], help="models to run")
    parser.add_argument("--strategies", nargs="+", choices=[*STRATEGIES], default=[*STRATEGIES], help="strategies")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[*EPSILONS], help="budgets to run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS], help="seeds to run")
    parser.add_argument("--chats", type=Path, help="the table that chats.py writes, in place of the roles")
    parser.add_argument("--left", action="store_true", help="run nothing; say what is missing")
    parser.add_argument("--csv", type=Path, default=RESULTS, help=f"the table (default {RESULTS.name} in results)")
    arguments = parser.parse_args()
    table = measured(arguments.csv)
    wanted = [
        cell
        for cell in cells("roles" if arguments.chats is None else "chats")
        if cell.model in (TRIVIAL, *arguments.models)
        and cell.strategy in (TRIVIAL, *arguments.strategies)
        and cell.epsilon in (0.0, *arguments.epsilons)
        and cell.seed in arguments.seeds
    ]
    left = missing(table, wanted)
    if arguments.left:
        print(*left, f"{len(left)} of {len(wanted)} are missing", sep="\n")
        return
    if arguments.base is None:
        parser.error("--base is missing: the folder that `python research/pretrain.py FOLDER` made")
    measure(left, Material(arguments.base, arguments.chats), arguments.csv, done=len(wanted) - len(left))


def measure(left: Iterable[Cell], material: Material, path: Path, done: int) -> None:
    """Run the cells that are left, and add their rows."""
    left = list(left)
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=done + len(left), completed=done)
        for cell in left:
            bar.update(task, description=str(cell))
            row = cell.row(material)
            add(path, row)
            reached = row.get("error") or f"{row['bits']:.4f} bits a byte"
            bar.console.print(f"{cell}: {reached}, {row['seconds']:.0f} s")
            bar.advance(task)


if __name__ == "__main__":
    main()
