"""Robust statistics of a batch of users' rows beside numpy's and scipy's: processor seconds, and seconds on the clock.

Median and trimmed mean of each of 1000 coordinates of 1000 rows; the concentration score of 2000 rows in 1000
dimensions, with the exponential kernel (every pair) and with the ramp (undecided pairs alone), beside scipy's distances
of all pairs and their exponentials. Once with one thread, once with one a core, by the clock (numpy and scipy do all of
this with one). Medians of ratios within a repetition. ``python benchmarks/robust.py``.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
        row: dict[str, Any] = {"what": name, "rows": shape[0], "columns": shape[1], "rival": rival}
        cores = os.cpu_count() or 1
        for threads, clock, end in ((1, time.process_time, ""), (cores, time.perf_counter, "_on_the_clock")):
            with limited(threads):
                times = [(spent(ours, data, clock), spent(theirs, data, clock)) for _ in range(arguments.repetitions)]
            mine, other = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
            ratio = statistics.median(theirs_took / took for took, theirs_took in times)
            row |= {f"ours_ms{end}": mine, f"rival_ms{end}": other, f"ratio{end}": ratio}
            print(f"{name:>20}, threads: {threads}: {mine:8.2f} ms, {rival} {other:8.2f} ms, {ratio:.2f} times")
        rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": cores, "rows": rows}, indent=2) + "\n")


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Mathematics with so many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    with threadpool_limits(limits=threads):
        yield


def spent(work: Callable[[Rows], Any], data: Rows, clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    started = clock()
    work(data)
    return clock() - started


if __name__ == "__main__":
    main()
