"""The tasks of research/zero_tuning.py: public tables of real users, and tables drawn here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

DECADES, CORRELATION, LARGEST, SAMPLES = 1.5, 0.5, 0.3, 5
"""Drawn columns: decades between scales, correlation of neighbours, largest deviation; and samples per user."""
HELD_OUT = {2_000: 0.5, 10_000: 0.2}
"""The share of a drawn table's users that is held out: enough to measure with."""


@dataclass(frozen=True)
class Task:
    """A problem and the data to learn it from.

    Attributes:
        name: in the table.
        family: "table", of real users, or "population", drawn here.
        problem: section of a run.
        data: section of a run; of a drawn table without its path.
        columns: features of a drawn table.
        users: training users of a drawn table.
    """

    name: str
    family: str
    problem: dict[str, Any]
    data: dict[str, Any]
    columns: int = 0
    users: int = 0

    def sections(self, folder: Path) -> dict[str, Any]:
        """[problem] and [data]; a table that has to be drawn is written into the folder."""
        if self.family == "table":
            return {"problem": self.problem, "data": self.data}
        path = folder / f"{self.name}.parquet"
        if not path.is_file():
            drawn_table(self).to_parquet(path, index=False)
        return {"problem": self.problem, "data": {**self.data, "path": str(path)}}


def real_tasks() -> list[Task]:
    """The public sets."""
    squares = {"kind": "squared", "radius": 5.0, "intercept": True}
    logistic = squares | {"kind": "logistic"}
    films = {"codes": ["movieId", "genres"], "buckets": 2_000, "max_samples": 20, "samples": 10_740}
    found = {
        "InstEval": (squares, {"name": "insteval"}),
        "Chem97": (squares, {"name": "chem97"}),
        "Males": (logistic, {"name": "males"}),
        "MovieLens genres": (squares, {"name": "movielens"}),
        "MovieLens films": ({"kind": "sparse_squared", "radius": 1.0}, {"name": "movielens", **films}),
    }
    return [
        Task(name, "table", problem, {"kind": "public", "test_fraction": 0.2, **data})
        for name, (problem, data) in found.items()
    ]


def population(loss: str, columns: int, users: int) -> Task:
    """Squares or a logistic loss on drawn columns."""
    names = [f"x{number}" for number in range(columns)]
    data: dict[str, Any] = {
        "kind": "table",
        "user": "user",
        "features": names,
        # One range for all: whoever declares it knows no scale.
        "ranges": {name: [-1.0, 1.0] for name in names},
        "target": "y",
        "test_fraction": HELD_OUT[users],
        **({"target_range": [-2.0, 2.0]} if loss == "squared" else {"positive": 1}),
    }
    problem = {"kind": loss, "radius": 100.0, "intercept": True}
    return Task(f"{loss} p={columns} n={users}", "population", problem, data, columns, users)


def drawn_table(task: Task) -> pd.DataFrame:
    """The users of a population, those to be held out included; the same at every call."""
    total = round(task.users / (1 - HELD_OUT[task.users]))
    rng = np.random.default_rng([task.columns, task.users, task.problem["kind"] == "squared"])
    place = np.arange(task.columns)
    root = np.linalg.cholesky(CORRELATION ** np.abs(np.subtract.outer(place, place)))
    scales = LARGEST * rng.permutation(np.geomspace(10**-DECADES, 1.0, task.columns))
    standard = rng.normal(size=(total * SAMPLES, task.columns)) @ root.T
    weights = rng.normal(size=task.columns)
    weights /= np.linalg.norm(root.T @ weights)
    # Users differ: each has a level of its own.
    scores = standard @ weights + 0.3 * np.repeat(rng.normal(size=total), SAMPLES)
    if task.problem["kind"] == "squared":
        targets = 0.5 * scores + 0.5 * rng.normal(size=len(scores))
    else:
        targets = (rng.random(len(scores)) < expit(2 * scores)).astype(float)
    frame = pd.DataFrame(standard * scales, columns=task.data["features"])
    return frame.assign(user=np.repeat(np.arange(total), SAMPLES), y=targets)


def tasks() -> list[Task]:
    """All of them, those that count most first."""
    sizes = [(columns, users) for users in HELD_OUT for columns in (20, 100)]
    return [*real_tasks(), *(population(loss, *size) for size in sizes for loss in ("squared", "logistic"))]
