"""Small configurations and tables that several test files use."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from simulations.cli import app
from simulations.config.run_config import RunConfig
from userdp.accounting.guarantee import ONE_GAUSSIAN, Guarantee
from userdp.data import read_table
from userdp.data.tables.columns import Columns
from userdp.data.tables.tabular import read_features
from userdp.nodes.node import Node

BASE: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "problem": {"kind": "quadratic", "bound": 5.0},
    "data": {
        "kind": "synthetic",
        "population": "gaussian",
        "dimension": 3,
        "users": 400,
        "test_users": 50,
        "samples_per_user": 6,
    },
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "strategy": {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 3},
}
"""A run of a tenth of a second."""
ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {path.stem: path for part in ("simulations", "strategies/**") for path in ROOT.glob(f"{part}/configs/*.toml")}
"""Name -> every configuration that is in the repository, those of the papers' rooms included."""
GUARANTEE = Guarantee(
    unit="user",
    relation="replace_one",
    epsilon=2.0,
    delta=1e-5,
    accountant=f"{ONE_GAUSSIAN}, composed over participations",
    adversary="against <everybody> else",
    assumptions=("n is public", "nodes clip as requested"),
    holds=True,
)
COMPARISON: dict[str, Any] = {
    "name": "small",
    "seeds": 2,
    "problem": {"kind": "quadratic", "bound": 5.0},
    "data": BASE["data"] | {"users": 300, "test_users": 0, "samples_per_user": 4},
    "privacy": {"delta": 1e-5},
    "strategy": [
        {"kind": "dp_fed_sgd", "rounds": 2},
        {"kind": "dp_fed_sgd", "label": "poisson", "rounds": 2, "cohort": 50, "sampling": "poisson"},
        # Cannot be planned.
        {"kind": "localized_robust_sgd", "label": "too-few", "batch": 5000},
    ],
    "grid": {"privacy.epsilon": [1.0, 4.0]},
}
"""Twelve runs of two strategies that can be run and of one that cannot."""


def changed(**settings: Any) -> dict[str, Any]:
    """BASE with ``section__key=value`` set, or removed where the value is None; ``section=...`` replaces a section."""
    raw = copy.deepcopy(BASE)
    for name, value in settings.items():
        section, _, key = name.partition("__")
        table = raw.setdefault(section, {}) if key else raw
        if value is None:
            table.pop(key or section)
        else:
            table[key or section] = value
    return raw


def altered(config: RunConfig, **settings: Any) -> RunConfig:
    """The configuration with ``section__key=value`` set."""
    for name, value in settings.items():
        section, _, key = name.partition("__")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={key: value})})
    return config


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def broken(monkeypatch: pytest.MonkeyPatch, when: Callable[[Node, Any], Any] = lambda node, x: True) -> None:
    """Makes nodes fail when they are asked, by an error that quotes somebody's data."""
    compute = Node.compute

    def fails(self, x, users, computation):
        if when(self, x):
            raise OSError("secret data of user 34")
        return compute(self, x, users, computation)

    monkeypatch.setattr(Node, "compute", fails)


def write_table(path: Path, users: int = 60, rows: int = 4) -> Path:
    """A CSV file: who, height (numeric), team (three levels), passed (yes or no), count (0..9)."""
    rng = np.random.default_rng(0)
    total = users * rows
    pd.DataFrame(
        {
            "who": np.repeat([f"user{i}" for i in range(users)], rows),
            "height": rng.uniform(150, 200, total).round(1),
            "team": rng.choice(["red", "green", "blue"], total),
            "passed": rng.choice(["yes", "no"], total),
            "count": rng.integers(0, 10, total),
        }
    ).to_csv(path, index=False)
    return path


DECLARED: dict[str, Any] = {
    "user": "who",
    "features": ["height"],
    "ranges": {"height": [150.0, 200.0]},
    "categorical": {"team": ["red", "green", "blue"]},
    "target": "passed",
    "positive": "yes",
}
"""The declaration of `write_table`'s columns, with a binary target."""
ASKED = DECLARED | {"problem": "logistic", "users": 48, "epsilon": 8.0, "delta": 1e-3}
ASKED |= {"strategy": {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 2}}
"""The settings given in Python beside that table."""


def rows_of_table(folder: Path, people: dict[str, Any], form: dict[str, Any], suffix: str = "csv"):
    """(rows of features in the table's order, the names of the features, the report) of a table declared so."""
    path, frame = folder / f"table.{suffix}", pd.DataFrame(people)
    if suffix == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    loaded = read_table(path, **form)
    return read_features(path, Columns(**form))[0], loaded.feature_names, loaded.report


def write_clinic(path: Path) -> Path:
    """The table of simulations/configs/robust-table.toml: eight visits of each of 1,200 people; pressure makes ill."""
    rng, visits = np.random.default_rng(0), 1200 * 8
    pressure, smokes = rng.uniform(90, 190, visits), rng.integers(0, 2, visits)
    ill = rng.random(visits) < 1 / (1 + np.exp(0.5 - smokes - (pressure - 140) / 15))
    columns = {"person": np.repeat(np.arange(1200), 8), "pressure": pressure, "weight": rng.uniform(45, 140, visits)}
    pd.DataFrame(columns | {"smokes": smokes, "ill": ill.astype(int)}).to_csv(path, index=False)
    return path


def table_section(path: Path, **settings: Any) -> dict[str, Any]:
    """A [data] section for `write_table`, with a binary target; without what is None."""
    section = {"kind": "table", "path": str(path), **DECLARED, **settings}
    return {key: value for key, value in section.items() if value is not None}


def columns_section(path: Path, ranges: dict[str, list[float]], user: str = "who", **settings: Any) -> dict[str, Any]:
    return {"kind": "table", "path": str(path), "user": user, "features": [*ranges], "ranges": ranges, **settings}
