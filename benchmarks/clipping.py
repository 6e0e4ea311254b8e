"""The cost of clipping every sample's gradient on a node, against the plain average gradient of the same users.

1000 users with m samples of d features each, logistic regression with ridge. Contestants, interleaved so that a busy
machine slows all of them alike:

- average: each user's average gradient, `Problem.user_gradients`;
- clipped: each user's sum of clipped per-sample gradients, `Problem.sample_clipped_sums`, by ghost clipping;
- materialised: the same sums from per-sample gradients, as problems without a formula for their norms do it;
- numpy: the average gradient in a few lines of float32, nothing else.

Processor time of one thread (a machine that is shared says little in wall time); ratios within a repetition, and their
medians. Every clipped sum is compared with the materialised one. ``python benchmarks/clipping.py --check``.
"""

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

from userdp.data import Block, LogisticRegression, SyntheticFederation
from userdp.problems import Logistic, Problem

USERS, CLIP, RIDGE = 1000, 0.01, 0.05
LIMIT = 2.0
"""The largest ratio of clipped to average, at m = 100 and d = 1000."""
LIMIT_MIB = 32.0
"""The most memory that clipped holds beyond its samples and its answer, the (users, d) sums."""


@dataclass(frozen=True)
class Row:
    """One line of the table: median milliseconds of each contestant, and medians of ratios."""

    samples: int
    dimension: int
    average: float
    clipped: float
    materialised: float
    numpy: float
    clipped_over_average: float
    clipped_over_numpy: float
    extra_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15, help="measured repetitions (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 above {LIMIT} times or {LIMIT_MIB} MiB")
    arguments = parser.parse_args()
    with threadpool_limits(limits=1):
        rows = [measure(100, d, arguments.repetitions) for d in (100, 1000)]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    if arguments.check:
        sys.exit(1 if too_slow(rows) else 0)


def measure(samples: int, dimension: int, repetitions: int) -> Row:
    """One size; the first repetition is warm-up."""
    population = LogisticRegression(dimension=dimension)
    problem = Logistic(dimension, feature_norm=population.feature_norm, radius=10.0, ridge=RIDGE)
    federation = SyntheticFederation(population, USERS, seed=1, samples_per_user=samples)
    block = problem.bound(federation.block(np.arange(USERS)))[0]
    x = 0.1 * np.random.default_rng(0).normal(size=dimension)
    contestants: dict[str, Callable[[], NDArray[np.floating]]] = {
        "average": lambda: problem.user_gradients(x, block),
        "clipped": lambda: problem.sample_clipped_sums(x, block, CLIP),
        "materialised": lambda: Problem.sample_clipped_sums(problem, x, block, CLIP),
        "numpy": lambda: plain_average(x, block, samples),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repetition in range(repetitions + 1):
        answers = {}
        for name, compute in contestants.items():
            started = time.process_time()
            answers[name] = compute()
            if repetition:
                seconds[name].append(time.process_time() - started)
        if not np.allclose(answers["clipped"], answers["materialised"], rtol=1e-8, atol=1e-12):
            raise SystemExit("ghost clipping gave other sums than clipping every sample")
    millis = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    ratios = {
        f"clipped_over_{other}": statistics.median(np.divide(seconds["clipped"], seconds[other]))
        for other in ("average", "numpy")
    }
    return Row(samples, dimension, **millis, **ratios, extra_mib=extra_memory(contestants["clipped"], dimension))


def plain_average(x: NDArray[np.float64], block: Block, samples: int) -> NDArray[np.floating]:
    """(U, d) average gradients, in float32 throughout."""
    assert block.targets is not None
    features, model = np.asarray(block.features), x.astype(np.float32)
    slopes = (expit(features @ model) - block.targets).reshape(USERS, 1, samples)
    return np.matmul(slopes, features.reshape(USERS, samples, -1))[:, 0] / samples + RIDGE * model


def extra_memory(compute: Callable[[], NDArray[np.floating]], dimension: int) -> float:
    """MiB at the peak of ``compute``, without its (U, d) answer."""
    tracemalloc.start()
    compute()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak - 8 * USERS * dimension) / 2**20


def table(rows: list[Row]) -> str:
    """The rows for people, in milliseconds."""
    names = ["m", "d", "average", "clipped", "materialised", "numpy", "x average", "x numpy", "extra MiB"]
    lines = [f"{USERS} users, median milliseconds of processor time, one thread", " | ".join(names)]
    for row in rows:
        cells = [str(row.samples), str(row.dimension)]
        cells += [f"{value:.1f}" for value in (row.average, row.clipped, row.materialised, row.numpy)]
        cells += [f"{row.clipped_over_average:.2f}", f"{row.clipped_over_numpy:.2f}", f"{row.extra_mib:.1f}"]
        lines.append(" | ".join(cell.rjust(len(name)) for cell, name in zip(cells, names, strict=True)))
    return "\n".join(lines)


def too_slow(rows: list[Row]) -> bool:
    """True if a limit is exceeded, which is printed."""
    failed = False
    for row in rows:
        if row.dimension == 1000 and row.clipped_over_average > LIMIT:
            failed = True
            print(f"TOO SLOW: d = {row.dimension}: {row.clipped_over_average:.2f} > {LIMIT} times the average gradient")
        if row.extra_mib > LIMIT_MIB:
            failed = True
            print(f"TOO LARGE: d = {row.dimension}: {row.extra_mib:.1f} > {LIMIT_MIB} MiB")
    return failed


if __name__ == "__main__":
    main()
