"""Robust statistics of a batch of users' rows beside numpy's and scipy's: processor seconds of one thread.

Median and trimmed mean of each of 1000 coordinates of 1000 rows; the concentration score of 2000 rows in 1000
dimensions, with the exponential kernel (every pair) and with the ramp (undecided pairs alone), beside scipy's distances
of all pairs and their exponentials. Medians of ratios within a repetition. ``python benchmarks/robust.py``.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from scipy.stats import trim_mean
from threadpoolctl import threadpool_limits

from userdp.estimators.concentration import ExpKernel, RampKernel, concentration_score
from userdp.estimators.robust import coordinate_median, smallest_trim, trimmed_mean

Rows = NDArray[np.float64]
TRIM = smallest_trim(1000)
PAIRS: dict[str, tuple[tuple[int, int], Callable[[Rows], Any], Callable[[Rows], Any], str]] = {
    "median": ((1000, 1000), coordinate_median, lambda rows: np.median(rows, axis=0), "np.median"),
    "trimmed mean": (
        (1000, 1000),
        lambda rows: trimmed_mean(rows, TRIM),
        lambda rows: trim_mean(rows, TRIM / len(rows), axis=0),
        "scipy.stats.trim_mean",
    ),
    "score, exponential": (
        (2000, 1000),
        lambda rows: concentration_score(rows, ExpKernel(1.0)),
        lambda rows: 1 + 2 * np.exp(-pdist(rows, "chebyshev")).sum() / len(rows),
        "scipy pdist and exp",
    ),
    "score, ramp": (
        (2000, 1000),
        lambda rows: concentration_score(rows, RampKernel(2.0)),
        lambda rows: 1 + 2 * np.clip(2 - pdist(rows, "chebyshev"), 0, 1).sum() / len(rows),
        "scipy pdist and a ramp",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9, help="measured repetitions (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    arguments = parser.parse_args()
    rows = []
    for name, (shape, ours, theirs, rival) in PAIRS.items():
        data = np.random.default_rng(1).normal(size=shape) * 0.1
        np.testing.assert_allclose(ours(data), theirs(data), rtol=1e-6, atol=1e-12)
        with threadpool_limits(limits=1):
            times = [(spent(ours, data), spent(theirs, data)) for _ in range(arguments.repetitions)]
        row: dict[str, Any] = {"what": name, "rows": shape[0], "columns": shape[1], "rival": rival}
        row |= {"ours_ms": 1e3 * statistics.median(mine for mine, _ in times)}
        row |= {"rival_ms": 1e3 * statistics.median(other for _, other in times)}
        row |= {"ratio": statistics.median(other / mine for mine, other in times)}
        print(f"{name:>20}: {row['ours_ms']:8.2f} ms, {rival} {row['rival_ms']:8.2f} ms, {row['ratio']:.2f} times")
        rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


def spent(work: Callable[[Rows], Any], data: Rows) -> float:
    """Processor seconds of one call."""
    started = time.process_time()
    work(data)
    return time.process_time() - started


if __name__ == "__main__":
    main()
