"""The coverage of the intervals of private evaluation: fresh held-out users and fresh noise about one model.

Made-up users hold 1 to 19 samples of two classes, alike within a user. All questions are asked about one model as a run
asks them, without its rounds; the truth is that of 200,000 users.

    python research/evaluation.py --repetitions 4000 --csv research/results/evaluation.csv
"""

import argparse
import csv
import itertools
import math
from pathlib import Path

import numpy as np
from rich.progress import track

from strategies import DPFedSGD
from strategies.core.public_facts import PublicFacts
from strategies.core.testers import Testers
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.nodes.measured import Estimate
from userdp.noise import SeededNoise
from userdp.problems import Logistic, Problem
from userdp.randomness import stream

USERS, EPSILONS, METRICS = (500, 5_000), (1.0, 4.0), ("log_loss", "accuracy", "auc")
MODEL = np.array([1.5, -0.5, 0.2])


def people(rng: np.random.Generator, users: int) -> Block:
    """Draw held-out users."""
    sizes = rng.integers(1, 20, users)
    own = np.repeat(rng.normal(0, 0.7, users), sizes)
    features = rng.uniform(-1, 1, (sizes.sum(), 2)).astype(np.float32)
    targets = rng.random(len(features)) < 1 / (1 + np.exp(-3 * features[:, 0] - own))
    return Block(features, np.concatenate([[0], np.cumsum(sizes)]), targets.astype(np.float32))


def truth(problem: Problem) -> dict[str, float]:
    """Return the metrics of the model over very many users."""
    whole = problem.bound(people(np.random.default_rng(1), 200_000))[0]
    exact = {name: float(values.mean()) for name, values in problem.metrics(MODEL, whole).items()}
    exact["log_loss"] = float(np.minimum(problem.metrics(MODEL, whole)["log_loss"], 2 * math.log(2)).mean())
    return exact | {"auc": _area(problem.predict(MODEL, whole)["probability"], whole)}


def _area(scores: Vector, block: Block) -> float:
    weights, order = np.repeat(1 / block.sizes, block.sizes), np.argsort(scores)
    ones, zeros = (weights * block.targets)[order], (weights * (1 - block.targets))[order]
    return float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / (ones.sum() * zeros.sum()))


def testers(problem: Problem, users: int, epsilon: float) -> Testers:
    """Return the held-out users of a run of eight rounds."""
    strategy = DPFedSGD(rounds=8).strategy(problem, PublicFacts(100), Privacy(epsilon, 1e-5), held_out=users)
    assert strategy.testers is not None
    return strategy.testers


def ask(asked: Testers, problem: Problem, block: Block, seed: int, questions: tuple[str, ...]) -> list[Array]:
    """Ask questions about the model; return the noisy sums that are released, one after the other."""
    bounded, released = problem.bound(block)[0], []

    class Listening(SeededNoise):
        def gaussian(self, value: Array, scale: float) -> Array:
            released.append(super().gaussian(value, scale))
            return released[-1]

    for place, name in enumerate(questions):
        computation = asked.request(name, problem.initial(), constant=False).computation
        rows = computation.function.rows(problem, MODEL, bounded, **computation.parameters, **computation.arrays)
        noise = Listening(stream(seed, "noise", place, 0))
        asked.release(9, name, MODEL, computation, Gathered(rows.sum(axis=0), 0, 0), noise)
    return released


def coverage(users: int, epsilon: float, repetitions: int) -> dict[str, float]:
    """Return, for each metric, the share of repetitions whose interval of 95 % holds the truth."""
    problem = Logistic(2, 2.0, 5.0)
    exact, rng, inside = truth(problem), np.random.default_rng(users), dict.fromkeys(METRICS, 0)
    for repetition in track(range(repetitions), f"{users} held-out users, epsilon {epsilon:g}"):
        asked = testers(problem, users, epsilon)
        ask(asked, problem, people(rng, users), repetition, ("ranking", "answers"))
        for name in METRICS:
            found: Estimate = asked.found[name]
            inside[name] += found.interval[0] <= exact[name] <= found.interval[1]
    return {name: count / repetitions for name, count in inside.items()}


def main() -> None:
    """Measure all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    rows = []
    for users, epsilon in itertools.product(USERS, EPSILONS):
        rows.append({"users": users, "epsilon": epsilon, "repetitions": given.repetitions})
        rows[-1] |= coverage(users, epsilon, given.repetitions)
        print(rows[-1], flush=True)
    if given.csv is not None:
        with given.csv.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
