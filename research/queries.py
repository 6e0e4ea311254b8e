"""Queries of a table: how often intervals of 95 % hold the truth, errors beside OpenDP's, and seconds.

Made-up people whose numbers are known for the whole population; each repetition draws other people and other noise.
``python research/queries.py --repetitions 300 --json research/results/queries.json``.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import opendp.prelude as dp

from simulations.engines.grids import LocalGrid
from strategies.core.public_facts import PublicFacts
from strategies.queries.statistics import Statistics
from userdp.accounting import Privacy
from userdp.accounting.costs import calibrate_noise
from userdp.data import Block, ColumnarFederation
from userdp.data.shape import Column, Shape
from userdp.nodes.node import Node
from userdp.queries.answers import Answer
from userdp.queries.table import TableQuery, TableSettings

LEVELS = ("north", "east", "south")
SHAPE = Shape(
    5,
    has_target=False,
    bound=1.0,
    named=(
        Column("age", (0,), (0.0, 100.0)),
        Column("visits", (1,), (0.0, 20.0), complete=True),
        Column("region", (2, 3, 4), levels=LEVELS),
    ),
)
BINS = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0]
ASKED: dict[str, list[dict[str, Any]]] = {
    "mean": [{"statistic": "mean", "of": "age"}],
    "mean, no missing cells": [{"statistic": "mean", "of": "visits"}],
    "mean of samples": [{"statistic": "mean", "of": "age", "per": "sample"}],
    "variance": [{"statistic": "variance", "of": "age"}],
    "histogram": [{"statistic": "histogram", "of": "visits", "bins": BINS}],
    "group means": [{"statistic": "group_means", "of": "age", "by": "region"}],
    "correlation": [{"statistic": "correlation", "of": ["age", "visits"]}],
    "quantiles": [{"statistic": "quantiles", "of": "age", "bins": np.linspace(0, 100, 1001).tolist()}],
}
MOST = 3


def people(rng: np.random.Generator, users: int, most: int) -> Block:
    """Return made-up users with 1 to ``most`` samples; one cell of age in ten is missing."""
    sizes = rng.integers(1, most + 1, users)
    owners, total = np.repeat(np.arange(users), sizes), int(sizes.sum())
    own = rng.normal(0, 12, users)
    age = np.clip(45 + own[owners] + rng.normal(0, 6, total), 0, 100)
    visits = np.minimum(rng.poisson(np.exp(1.0 + 0.02 * own))[owners], 20)
    region = rng.choice(4, total, p=[0.4, 0.3, 0.2, 0.1])
    features = np.zeros((total, 5), dtype=np.float32)
    features[:, 0] = np.where(rng.random(total) < 0.1, np.nan, age / 50 - 1)
    features[:, 1] = visits / 10 - 1
    features[region < 3, 2 + region[region < 3]] = 1
    return Block(features, np.concatenate([[0], np.cumsum(sizes)]))


def query(asked: list[dict[str, Any]], relation: str) -> TableQuery:
    """Return the query of these statistics."""
    section = {"kind": "table", "ask": asked, "relation": relation, "max_samples": MOST}
    made = TableSettings.model_validate(section).build(SHAPE, 0)
    assert isinstance(made, TableQuery)
    return made


def answered(problem: TableQuery, block: Block, privacy: Privacy, seed: int) -> list[Answer]:
    """Return the answers of one run."""
    facts = PublicFacts(users=block.users, max_samples=MOST)
    strategy = Statistics().strategy(problem, facts, privacy, seed=seed)
    node = Node(problem, ColumnarFederation(block), np.arange(block.users))
    with LocalGrid([node]) as grid:
        strategy.start(grid)
    return strategy.scheme.answers(strategy.state.released, strategy.memory)  # type: ignore[attr-defined,no-any-return]


def coverage(name: str, users: int, most: int, relation: str, repetitions: int) -> dict[str, Any]:
    """Return how often intervals hold the truth: the mean over answers, the least and the largest."""
    problem, privacy = query(ASKED[name], relation), Privacy(1.0, 1e-6)
    truth = np.array([one.estimate for one in true_answers(problem, most)])
    held = np.zeros(len(truth))
    for repetition in range(repetitions):
        block = people(np.random.default_rng([7, users, most, repetition]), users, most)
        found = answered(problem, block, privacy, sum(map(ord, name)) * 1000 + users + repetition)
        held += [one.low <= value <= one.high for one, value in zip(found, truth, strict=True)]
    held /= repetitions
    return {
        "asked": name,
        "users": users,
        "most_samples": most,
        "relation": relation,
        "mean": float(held.mean()),
        "least": float(held.min()),
        "largest": float(held.max()),
    }


def true_answers(problem: TableQuery, most: int) -> list[Answer]:
    """Return the answers for a population of half a million people, with next to no noise."""
    return answered(problem, people(np.random.default_rng(1), 500_000, most), Privacy(1e5, 1e-8), 0)


def errors(repetitions: int, users: int = 5000) -> list[dict[str, Any]]:
    """Compare root mean square errors about the table's own value with those of others at the same budget.

    The others are OpenDP's measurements, or where it has none a plain simulation: one Gaussian mechanism on the obvious
    sums of cells in [-1, 1]. No cell is missing, as OpenDP's mean of a public number of people asks.
    """
    dp.enable_features("contrib")
    privacy, grid = Privacy(1.0, 1e-6), np.linspace(0.0, 100.0, 4001)
    named = (Column("age", (0,), (0.0, 100.0), complete=True), *SHAPE.named[1:])
    shape = Shape(5, has_target=False, bound=1.0, named=named)
    missed: dict[tuple[str, str], list[Any]] = {}
    for repetition in range(repetitions):
        block = people(np.random.default_rng([5, repetition]), users, 1)
        cells = block.dense_features.copy()
        cells[:, 0] = np.nan_to_num(cells[:, 0], nan=0.0)
        others = references(cells.astype(float), grid, privacy, np.random.default_rng([6, repetition]))
        for place, (asked, other, truth, theirs) in enumerate(others):
            section = {"kind": "table", "ask": [asked], "max_samples": 1}
            problem = TableSettings.model_validate(section).build(shape, 0)
            assert isinstance(problem, TableQuery)
            found = answered(problem, Block(cells, block.offsets), privacy, 100 * repetition + place)
            ours = [one.estimate for one in found[: len(truth)]]
            name = asked["statistic"] + (" of samples" if asked.get("per") == "sample" else "")
            missed.setdefault((name, other), []).append([np.subtract(each, truth) for each in (ours, theirs)])
    rows = []
    for (name, other), pairs in missed.items():
        both = np.array(pairs)
        known = np.isfinite(both).all(axis=(1, 2))  # a ratio whose denominator drowns in noise is not estimated
        ours_off, theirs_off = np.sqrt(np.mean(np.square(both[known]), axis=(0, 2)))
        rows.append({"asked": name, "other": other, "ours": float(ours_off), "theirs": float(theirs_off)})
        rows[-1]["known"] = float(known.mean())
        rows[-1]["ratio"] = rows[-1]["ours"] / rows[-1]["theirs"]
    return rows


def references(
    cells: np.ndarray, grid: np.ndarray, privacy: Privacy, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], str, list[float], list[float]]]:
    """Yield what is asked, who else answers, the table's own values, and the other's answers."""
    age, seen, levels = cells[:, 0], cells[:, 1], cells[:, 2:5]
    years, visits, users = 50 * (age + 1), np.rint(10 * (seen + 1)), len(cells)
    counts = np.histogram(visits, BINS)[0]
    noise = calibrate_noise(privacy.epsilon, privacy.delta, 1)

    def plain(rows: np.ndarray, moved: float) -> np.ndarray:
        """Return noisy sums of rows, of which replacing a person moves them by ``moved``."""
        return rows.sum(axis=0) + rng.normal(0.0, noise * moved, rows.shape[1])

    mean = {"statistic": "mean", "of": "age"}
    yield mean, "OpenDP", [years.mean()], [opendp_mean(years, privacy)]
    total, count = plain(np.column_stack([age, np.ones(users)]), math.sqrt(5.0))
    yield mean | {"per": "sample"}, "plain", [years.mean()], [50 * (total / count + 1)]
    variance = {"statistic": "variance", "of": "age"}
    yield variance, "OpenDP", [years.var()], [opendp_variance(years, privacy)]
    first, second = plain(np.column_stack([age, age**2]), 2.0) / users
    yield variance, "plain", [years.var()], [2500 * (second - first**2)]
    histogram = {"statistic": "histogram", "of": "visits", "bins": BINS}
    yield histogram, "OpenDP", list(counts / users), list(opendp_counts(counts, privacy) / users)
    people_at = plain(levels, math.sqrt(2.0))
    yield {"statistic": "counts", "of": "region"}, "plain", list(levels.sum(axis=0)), list(people_at)
    means = [years[levels[:, k] > 0].mean() for k in range(3)]
    sums = plain(np.hstack([levels, levels * age[:, None]]), 2.0)
    asked = {"statistic": "group_means", "of": "age", "by": "region"}
    yield asked, "plain", means, list(50 * (sums[3:] / sums[:3] + 1))
    x, y, xx, yy, xy = plain(np.column_stack([age, seen, age**2, seen**2, age * seen]), math.sqrt(8.0)) / users
    rho = (xy - x * y) / math.sqrt((xx - x * x) * (yy - y * y))
    asked = {"statistic": "correlation", "of": ["age", "visits"]}
    yield asked, "plain", [float(np.corrcoef(age, seen)[0, 1])], [rho]
    asked = {"statistic": "quantiles", "of": "age", "at": [0.5], "bins": grid.tolist()}
    yield asked, "OpenDP", [float(np.median(years))], [opendp_median(years, grid)]


def opendp_mean(values: np.ndarray, privacy: Privacy) -> float:
    """Return OpenDP's mean of numbers in [0, 100], their number public, at the budget."""
    domain = dp.vector_domain(dp.atom_domain(bounds=(0.0, 100.0), nan=False), size=len(values))
    mean = (domain, dp.symmetric_distance()) >> dp.t.then_mean()
    made = _calibrated("mean", lambda scale: mean >> dp.m.then_gaussian(scale), 2, 100.0 / len(values), privacy)
    return float(made(values.tolist()))


def opendp_variance(values: np.ndarray, privacy: Privacy) -> float:
    """Return OpenDP's variance of numbers in [0, 100], their number public, at the budget."""
    domain = dp.vector_domain(dp.atom_domain(bounds=(0.0, 100.0), nan=False), size=len(values))
    variance = (domain, dp.symmetric_distance()) >> dp.t.then_variance(ddof=0)
    made = _calibrated("variance", lambda scale: variance >> dp.m.then_gaussian(scale), 2, 1e4 / len(values), privacy)
    return float(made(values.tolist()))


def opendp_counts(counts: np.ndarray, privacy: Privacy) -> np.ndarray:
    """Return OpenDP's noisy counts, of which replacing a person moves two by one."""
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False), len(counts)), dp.l2_distance(T=float)
    moved = float(np.sqrt(2))
    made = _calibrated("counts", lambda scale: space >> dp.m.then_gaussian(scale), moved, moved, privacy)
    return np.array(made(counts.astype(float).tolist()))


def opendp_median(values: np.ndarray, grid: np.ndarray) -> float:
    """Return OpenDP's median among candidates at epsilon = 1; a replaced person is one removed and one added."""
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(values))
    space = domain, dp.symmetric_distance()

    def make(scale: float) -> Any:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), grid.tolist(), 0.5, scale)

    if "median" not in _SCALES:
        _SCALES["median"] = dp.binary_search_param(make, 2, 1.0)
    return float(make(_SCALES["median"])(values.tolist()))


_SCALES: dict[str, float] = {}
"""Scales that were searched, each for one number of people."""


def _calibrated(name: str, make: Any, distance: Any, sensitivity: float, privacy: Privacy) -> Any:
    def approximate(scale: float) -> Any:
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(make(scale)), privacy.delta)

    if name not in _SCALES:
        bounds, budget = (0.5 * sensitivity, 100 * sensitivity), (privacy.epsilon, privacy.delta)
        _SCALES[name] = dp.binary_search_param(approximate, distance, budget, bounds=bounds)
    return make(_SCALES[name])


def seconds(users: int = 100_000) -> float:
    """Return the seconds of ten statistics over so many users, from samples in memory."""
    everything = [one for several in ASKED.values() for one in several]
    asked = [*everything, {"statistic": "counts", "of": "region"}, {"statistic": "variance", "of": "visits"}]
    problem, block = query(asked, "replace_one"), people(np.random.default_rng(0), users, MOST)
    started = time.perf_counter()
    answered(problem, block, Privacy(1.0, 1e-7), 0)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=300)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"seconds": seconds(), "coverage": []}
    print(f"ten statistics of 100,000 users: {found['seconds']:.1f} s")
    cases = [(name, users, 1, "replace_one") for name in ASKED for users in (1000, 10_000)]
    cases += [(name, 10_000, MOST, "replace_one") for name in ASKED]
    cases += [(name, 10_000, 1, "add_or_remove") for name in ASKED]
    for case in cases:
        row = coverage(*case, given.repetitions)
        found["coverage"].append(row)
        print(
            "{asked:24} {users:6} users, {most_samples} samples, {relation:14} {mean:.3f} ({least:.3f} to "
            "{largest:.3f})".format(**row),
            flush=True,
        )
    found["errors"] = errors(10 * given.repetitions)
    for row in found["errors"]:
        print("{asked:16} error {ours:.4g}, {other} {theirs:.4g}: {ratio:.3f}".format(**row))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
