"""The cost of one private round, against the same mathematics in plain numpy.

1000 users with m samples of d features each, logistic regression. Three ways to do the SAME round, interleaved so that
a busy machine slows all of them alike:

- numpy: arrays in memory, a few lines, nothing else (float32 features and products, as fast as plain numpy gets);
- local: the strategy on `LocalGrid`: configure_train, send_and_receive, aggregate_train;
- ray: the same on `RayGrid` with two actors.

numpy is measured with one BLAS thread and with all; the faster of the two is what the ratios divide by. Start-up,
generating the data and warm-up rounds are not counted. Every round's step is compared with numpy's, so that nobody
wins by computing something else. Run it on an idle machine: ``python benchmarks/round.py --check``.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

from simulations.engines.grids import InMachineGrid, LocalGrid, shards, worthwhile_nodes
from simulations.engines.ray_grid import RayGrid
from strategies import DPFedSGD, PublicFacts, RobustRounds, UserLevelStrategy, model_record, model_vector
from userdp.accounting import Privacy
from userdp.arrays.types import Vector
from userdp.data import LogisticRegression, SyntheticFederation
from userdp.nodes.node import Node
from userdp.problems import Logistic

USERS, CLIP = 1000, 0.05
SIZES = ((10, 100), (100, 100), (10, 1000), (100, 1000))
"""Samples of each user, and features."""
SETTLE = 0.1
"""Seconds between rounds: the threads of the contestant before spin for a while after their work is done."""
LIMITS = {"local": 3.0, "ray": 5.0}


@dataclass(frozen=True)
class Row:
    """One line of the table: median seconds of a round, and ratios to numpy's."""

    strategy: str
    samples: int
    dimension: int
    numpy_one_thread: float
    numpy_all_threads: float
    local: float
    ray: float
    local_ratio: float
    ray_ratio: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15, help="measured rounds of each kind (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a dp_fed_sgd ratio exceeds {LIMITS}")
    arguments = parser.parse_args()
    rows = [row for m, d in SIZES for row in measure(m, d, arguments.repetitions)]
    print(table(rows))
    if arguments.json:
        report = {"users": USERS, "limits": LIMITS, "cores": os.cpu_count(), "rounds": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if arguments.check:
        sys.exit(1 if too_slow(rows) else 0)


def measure(samples: int, dimension: int, repetitions: int) -> list[Row]:
    """Rows of one size: the data are made once."""
    population = LogisticRegression(dimension=dimension)
    federation = SyntheticFederation(population, USERS, seed=1, samples_per_user=samples)
    problem = Logistic(dimension, feature_norm=population.feature_norm, radius=10.0, ridge=0.05)
    facts = PublicFacts(USERS, min_samples=samples, max_samples=samples)
    block = federation.block(np.arange(USERS))
    assert block.targets is not None
    floor = PlainNumpy(np.asarray(block.features), np.asarray(block.targets), samples, problem.ridge)
    blocks = shards(USERS, nodes=worthwhile_nodes(problem, federation))
    # Enough budget for the tests to pass: the cost of a round does not depend on it.
    privacy = Privacy(epsilon=500.0, delta=1e-4)
    rounds = repetitions + 2

    rows = []
    with ExitStack() as stack:
        local = stack.enter_context(LocalGrid([Node(problem, federation, users) for users in blocks]))
        ray = stack.enter_context(RayGrid(problem, federation, blocks, workers=2))
        for make in (fed_sgd, robust_rounds):
            contestants = {
                "numpy_one_thread": Contestant(make(problem, facts, privacy, rounds), floor.round, threads=1),
                "numpy_all_threads": Contestant(make(problem, facts, privacy, rounds), floor.round),
                "local": Contestant(make(problem, facts, privacy, rounds), on_grid(local)),
                "ray": Contestant(make(problem, facts, privacy, rounds), on_grid(ray)),
            }
            rows.append(compete(contestants, samples, dimension, repetitions))
    return rows


def fed_sgd(problem: Logistic, facts: PublicFacts, privacy: Privacy, rounds: int) -> UserLevelStrategy:
    """Clip each user, average, add noise."""
    return DPFedSGD(rounds=rounds, clip_norm=CLIP, learning_rate=1.0).strategy(problem, facts, privacy)


def robust_rounds(problem: Logistic, facts: PublicFacts, privacy: Privacy, rounds: int) -> UserLevelStrategy:
    """Score all pairs, test, winsorise, add noise."""
    return RobustRounds(rounds=rounds, epochs=rounds, learning_rate=1.0).strategy(problem, facts, privacy)


# Plain numpy --------------------------------------------------------------------------------------------------------


class PlainNumpy:
    """The same rounds by hand, on (U m, d) float32 features.

    Noise, radius and threshold are read off the strategy's public plan; everything else is computed here.
    """

    def __init__(self, features: NDArray[np.float32], targets: NDArray[np.float32], samples: int, ridge: float) -> None:
        self._features, self._targets, self._samples, self._ridge = features, targets, samples, ridge

    def round(self, strategy: UserLevelStrategy, x: Vector, server_round: int) -> Vector:
        """The next iterate after x."""
        gradients = self.user_gradients(x)
        aggregate = clipped_mean if isinstance(strategy.recipe, DPFedSGD) else robust_mean
        gradient = aggregate(gradients, strategy.plan.numbers)
        rng = np.random.default_rng(server_round)
        return x - (gradient + rng.normal(scale=float(strategy.plan.numbers["noise_deviation"]), size=len(x)))

    def user_gradients(self, x: Vector) -> NDArray[np.float32]:
        """(U, d) average gradients."""
        scores = self._features @ x.astype(np.float32)
        slopes = (expit(scores) - self._targets).reshape(USERS, 1, self._samples)
        sums = np.matmul(slopes, self._features.reshape(USERS, self._samples, -1))[:, 0]
        return np.asarray(sums / self._samples + self._ridge * x.astype(np.float32))


def clipped_mean(gradients: NDArray[np.float32], numbers: object) -> Vector:
    """Mean of rows clipped to l2 norm CLIP."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * np.minimum(1, CLIP / np.maximum(norms, 1e-30))
    return clipped.mean(axis=0, dtype=np.float64)


def robust_mean(gradients: NDArray[np.float32], numbers: dict[str, float]) -> Vector:
    """Ramp score of all pairs, then the mean of rows clipped to within 2 rho of their trimmed mean."""
    radius = numbers["radius"]
    score = sum(np.clip(2 - 2 * np.abs(gradients - row).max(axis=1) / radius, 0, 1).sum() for row in gradients)
    if score / USERS < numbers["threshold"]:
        raise SystemExit("the score of this data lies below the threshold: choose another radius")
    trim = USERS // 3 + 1
    centre = np.sort(gradients, axis=0)[trim : USERS - trim].mean(axis=0)
    return np.clip(gradients, centre - 2 * radius, centre + 2 * radius).mean(axis=0, dtype=np.float64)


# userdp -------------------------------------------------------------------------------------------------------------

Round = Callable[[UserLevelStrategy, Vector, int], Vector]


def on_grid(grid: InMachineGrid) -> Round:
    """A round of the real strategy."""

    def run(strategy: UserLevelStrategy, x: Vector, server_round: int) -> Vector:
        if strategy._roster.absent:
            strategy._roster.gather(grid, timeout=60)  # what `start` does once, before the first round
        messages = strategy.configure_train(server_round, model_record(x), ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages, timeout=600))
        assert arrays is not None
        return model_vector(arrays)

    return run


# The competition ----------------------------------------------------------------------------------------------------


class Contestant:
    """One way to do a round, and how long its rounds took."""

    def __init__(self, strategy: UserLevelStrategy, way: Round, threads: int | None = None) -> None:
        self.strategy, self._way, self._threads, self.seconds = strategy, way, threads, list[float]()

    def run(self, x: Vector, server_round: int) -> Vector:
        """Do one round from x; the first two are warm-up."""
        time.sleep(SETTLE)
        with threadpool_limits(limits=self._threads, user_api="blas"):  # setting it is not part of the time
            started = time.perf_counter()
            step = self._way(self.strategy, x, server_round)
            elapsed = time.perf_counter() - started
        if server_round > 2:
            self.seconds.append(elapsed)
        return step


def compete(contestants: dict[str, Contestant], samples: int, dimension: int, repetitions: int) -> Row:
    """All contestants, round by round, each from the same point."""
    x = np.zeros(dimension)
    for server_round in range(1, repetitions + 3):
        steps = {name: contestant.run(x, server_round) for name, contestant in contestants.items()}
        strategy = contestants["local"].strategy
        noise = float(strategy.plan.numbers["noise_deviation"])
        for name, step in steps.items():
            # Independent noises differ by sqrt(2) standard deviations a coordinate; seven of them is never.
            if np.abs(step - steps["local"]).max() > 10 * noise + 1e-6:
                raise SystemExit(f"{strategy.name}: {name} took another step than local, not the same mathematics")
        x = steps["local"]
    seconds = {name: statistics.median(contestant.seconds) for name, contestant in contestants.items()}
    floor = min(seconds["numpy_one_thread"], seconds["numpy_all_threads"])
    ratios = {"local_ratio": seconds["local"] / floor, "ray_ratio": seconds["ray"] / floor}
    return Row(contestants["local"].strategy.name, samples, dimension, **seconds, **ratios)


def table(rows: list[Row]) -> str:
    """The rows for people, in milliseconds."""
    names = ["strategy", "m", "d", "numpy 1 thread", "numpy threads", "local", "ray, 2 actors", "local x", "ray x"]
    lines = [f"{USERS} users, median milliseconds of a round, ratios to the faster numpy", " | ".join(names)]
    for row in rows:
        times = [row.numpy_one_thread, row.numpy_all_threads, row.local, row.ray]
        cells = [row.strategy, str(row.samples), str(row.dimension), *(f"{1e3 * value:.1f}" for value in times)]
        cells += [f"{row.local_ratio:.2f}", f"{row.ray_ratio:.2f}"]
        lines.append(" | ".join(cell.rjust(len(name)) for cell, name in zip(cells, names, strict=True)))
    return "\n".join(lines)


def too_slow(rows: list[Row]) -> bool:
    """True if a limit is exceeded, which is printed; RobustRounds is reported only, plain numpy being slow at it."""
    failed = False
    for row in rows:
        for name, ratio in (("local", row.local_ratio), ("ray", row.ray_ratio)):
            if row.strategy == DPFedSGD.about.name and ratio > LIMITS[name]:
                failed = True
                print(f"TOO SLOW: {name} at m = {row.samples}, d = {row.dimension}: {ratio:.2f} > {LIMITS[name]}")
    return failed


if __name__ == "__main__":
    main()
