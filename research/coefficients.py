"""The coverage and the width of intervals of `auto`'s coefficients, and the results on real tables.

Made-up users have 1 to 200 samples, with errors that are alike within a user; features are correlated, and half of
their variance is between users. The true coefficients are known. Widths stand beside those of a fit without privacy
whose errors are robust to clusters, by statsmodels (`pip install statsmodels`).

    python research/coefficients.py                         what results/coefficients.csv does not have yet (hours)
    python research/coefficients.py --repetitions 10 --kind logistic --dimension 5
    python research/coefficients.py --tables                four tables of real people, against statsmodels

Each finished setting is written at once, so that the command can be stopped and started again.
"""

import argparse
import csv
import itertools
import math
import warnings
from collections.abc import Mapping
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from rich.progress import track
from scipy import stats
from scipy.special import expit

import userdp
from simulations.engines.grids import LocalGrid
from strategies import Auto, PublicFacts
from userdp.accounting import Privacy
from userdp.arrays.types import Array, Vector
from userdp.data import Block, ColumnarFederation
from userdp.data.tables.tabular import read_table
from userdp.nodes.node import Node
from userdp.problems import Logistic, Poisson, Problem, Squared

RESULTS = Path(__file__).resolve().parent / "results"
KINDS, DIMENSIONS, USERS, EPSILONS = ("squared", "logistic", "poisson"), (5, 20), (2_000, 10_000), (1.0, 4.0)
REPETITIONS, DELTA, SHARE, ALIKE, RANGE, REACH = 300, 1e-6, 0.5, 0.3, 3.0, 6.0
FITTED = 3  # Repetitions that are also fitted without privacy, for the widths
FAMILIES = {"squared": sm.families.Gaussian, "logistic": sm.families.Binomial, "poisson": sm.families.Poisson}
FIELDS = ("kind", "dimension", "users", "epsilon", "repetitions", "given", "covered", "width")


def truth(kind: str, dimension: int) -> Vector:
    """Return the (p,) coefficients of features in [-1, 1], and the intercept."""
    size = (0.65 if kind == "poisson" else 1.3) / math.sqrt(dimension)
    slopes = np.where(np.arange(dimension) % 2, -size, size)
    found = np.append(slopes * RANGE, {"squared": 0.3, "logistic": -0.7, "poisson": 0.5}[kind])
    return found / REACH if kind == "squared" else found


def users_of(kind: str, dimension: int, count: int, seed: int) -> Block:
    """Draw users; a uniform number that is alike within a user keeps each sample's own law as the model has it."""
    rng = np.random.default_rng([seed, dimension, count, KINDS.index(kind)])
    sizes = np.exp(rng.uniform(0, math.log(201), count)).astype(int).clip(1, 200)
    owners, total = np.repeat(np.arange(count), sizes), int(sizes.sum())
    places = np.arange(dimension)
    root = np.linalg.cholesky(0.3 ** np.abs(np.subtract.outer(places, places)))
    raw = rng.normal(size=(count, dimension))[owners] + rng.normal(size=(total, dimension))
    features = np.clip(raw @ root.T / math.sqrt(2), -RANGE, RANGE) / RANGE
    scores = np.column_stack([features, np.ones(total)]) @ truth(kind, dimension)
    errors = math.sqrt(ALIKE) * rng.normal(size=count)[owners] + math.sqrt(1 - ALIKE) * rng.normal(size=total)
    if kind == "squared":
        targets = scores + errors / REACH
    elif kind == "logistic":
        targets = stats.norm.cdf(errors) < expit(scores)
    else:
        targets = stats.poisson.ppf(stats.norm.cdf(errors), np.exp(scores))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Block(features.astype(np.float32), offsets, np.asarray(targets, dtype=np.float32))


def problem_of(kind: str, dimension: int) -> Problem:
    """Return the loss, without a bound that matters."""
    if kind == "squared":
        return Squared(dimension, math.inf, 10.0, low=-1.0, high=1.0, feature_bound=1.0, intercept=True)
    if kind == "logistic":
        return Logistic(dimension, math.inf, 10.0, feature_bound=1.0, intercept=True)
    return Poisson(dimension, math.inf, 10.0, count_bound=60.0, feature_bound=1.0, intercept=True)


def repetition(kind: str, dimension: int, count: int, epsilon: float, seed: int) -> tuple[Array, float]:
    """Return ((3, p) whether each error is given, holds the truth, and its size; those over errors without privacy)."""
    block, problem = users_of(kind, dimension, count, seed), problem_of(kind, dimension)
    method = Auto(coefficients=SHARE).strategy(problem, PublicFacts(count), Privacy(epsilon, DELTA), seed=seed)
    with LocalGrid([Node(problem, ColumnarFederation(block), np.arange(count))]) as grid:
        method.start(grid)
    found = method.memory.inference
    holds = np.abs(found.estimate - truth(kind, dimension)) <= stats.norm.ppf(0.975) * found.error
    wider = math.nan
    if seed < FITTED:
        wider = float(np.median(found.error / fitted(kind, block)[1]))
    return np.stack([found.trusted, holds, found.error]), wider


def fitted(kind: str, block: Block) -> tuple[Vector, Vector]:
    """Fit without privacy, each user with the same weight; return coefficients and errors robust to clusters."""
    owners = np.repeat(np.arange(block.users), block.sizes)
    rows = np.column_stack([block.dense_features.astype(float), np.ones(block.samples)])
    values, covariance = _clustered(kind, block.targets, rows, 1.0 / block.sizes[owners], owners)
    return values, np.sqrt(np.diag(covariance))


def _clustered(kind: str, targets: Array, rows: Array, weights: Vector, owners: Array) -> tuple[Vector, Array]:
    model = sm.GLM(targets, rows, family=FAMILIES[kind](), var_weights=weights)
    with warnings.catch_warnings():
        # It warns that weights are not fully supported; the sandwich from them agrees with the formula by hand.
        warnings.simplefilter("ignore")
        fit = model.fit(cov_type="cluster", cov_kwds={"groups": owners})
    return fit.params, fit.cov_params()


def setting(pool: Any, kind: str, dimension: int, count: int, epsilon: float, repetitions: int) -> dict[str, Any]:
    """Return the row of a setting."""
    once = partial(repetition, kind, dimension, count, epsilon)
    made = list(track(pool.imap(once, range(repetitions)), f"{kind} {dimension} {count} {epsilon:g}", repetitions))
    given, holds, _ = np.stack([each for each, _ in made], axis=1)
    covered = holds[given > 0].mean() if given.any() else math.nan
    values = (kind, dimension, count, epsilon, repetitions, given.mean(), covered, np.nanmean([w for _, w in made]))
    return dict(zip(FIELDS, values, strict=True))


def main() -> None:
    """Measure what is missing, or the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--dimension", type=int, choices=DIMENSIONS)
    parser.add_argument("--users", type=int, choices=USERS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    if asked.tables:
        _write("coefficients_tables.csv", [row for name in TABLES for row in on_table(name)])
        return
    file = RESULTS / "coefficients.csv"
    rows = pd.read_csv(file).to_dict("records") if file.is_file() else []
    with Pool(asked.workers) as pool:
        for kind, dimension, count, epsilon in itertools.product(KINDS, DIMENSIONS, USERS, EPSILONS):
            wanted = zip((asked.kind, asked.dimension, asked.users), (kind, dimension, count), strict=True)
            if any(one is not None and one != this for one, this in wanted):
                continue
            key = (kind, dimension, count, epsilon)
            done = [row for row in rows if tuple(row[name] for name in FIELDS[:4]) == key]
            if done and done[0]["repetitions"] >= asked.repetitions:
                continue
            rows = [row for row in rows if row not in done]
            rows.append(setting(pool, *key, asked.repetitions))
            _write(file.name, sorted(rows, key=lambda row: tuple(row[name] for name in FIELDS[:4])))


TABLES: Mapping[str, Mapping[str, Any]] = {
    "chem97": {"problem": "squared"},
    "insteval": {"problem": "squared"},
    "males": {"problem": "logistic"},
    "assistments2015": {
        "problem": "logistic",
        "columns": {"features": ["position"], "ranges": {"position": [0, 200]}, "target": "correct"},
    },
}


def on_table(name: str) -> list[dict[str, Any]]:
    """Return one row a coefficient of a public table at epsilon 1 and 4: ours and the fit without privacy."""
    kind = TABLES[name]["problem"]
    rows = []
    for epsilon in EPSILONS:
        model = userdp.train(
            {
                "name": name,
                "data": {"kind": "public", "name": name, "test_fraction": 0.0, **TABLES[name].get("columns", {})},
                "problem": {"kind": kind},
                "privacy": {"epsilon": epsilon, "delta": DELTA},
                "strategy": {"kind": "auto", "coefficients": SHARE},
                "output": {"reference": False},
            },
            progress=False,
        )
        declared = model.config.data.declarations
        reading = model.config.data.columns.samples.coefficients(intercept=True)
        table = read_table(model.config.data.file, **declared, seed=model.config.seed)
        block = table.federation.block(np.arange(table.federation.users))
        theirs, errors = _plain(kind, block, reading.kept)
        exact = reading.of_model[:, reading.kept]
        for place, (coefficient, ours) in enumerate(model.coefficients().iterrows()):
            values = (name, epsilon, coefficient, ours["estimate"], ours["standard_error"])
            other = float(exact[place] @ theirs + reading.offset[place])
            error = math.sqrt(float(exact[place] @ errors @ exact[place]))
            rows.append(
                dict(zip(("table", "epsilon", "coefficient", "estimate", "error"), values, strict=True))
                | {"without_privacy": other, "its_error": error}
            )
    return rows


def _plain(kind: str, block: Block, kept: Array) -> tuple[Vector, Array]:
    """Return coefficients of the kept columns in the data's own scale, and their covariance robust to clusters."""
    owners = np.repeat(np.arange(block.users), block.sizes)
    rows = np.column_stack([block.dense_features.astype(float), np.ones(block.samples)])[:, kept]
    usable = np.isfinite(rows).all(axis=1) & np.isfinite(block.targets)
    weights = (1.0 / block.sizes[owners])[usable]
    return _clustered(kind, block.targets[usable], rows[usable], weights, owners[usable])


def _write(name: str, rows: list[dict[str, Any]]) -> None:
    with (RESULTS / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([{key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()} for row in rows])


if __name__ == "__main__":
    main()
