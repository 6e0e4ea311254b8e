"""Robust statistics of a batch of users' rows beside numpy's and scipy's: processor seconds, and seconds on the clock.

Median, trimmed mean and winsorised mean of each of 1000 coordinates of 1000 rows; the concentration score of 2000 rows
in 1000 dimensions, with the exponential kernel (every pair) and with the ramp (undecided pairs alone), beside scipy's
distances of all pairs and their exponentials. Once with one thread, once with one a core, by the clock (numpy and scipy
do all of this with one). Medians of ratios within a repetition. ``python research/robust.py``.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from scipy.stats import trim_mean
from threadpoolctl import threadpool_limits

from userdp.estimators.concentration import ExpKernel, RampKernel, concentration_score
from userdp.estimators.robust import Winsorized, coordinate_median, smallest_trim, trimmed_mean

Rows = NDArray[np.float64]
TRIM = smallest_trim(1000)


def numpy_median(rows: Rows) -> Rows:
    """Numpy's median: our medians and trimmed means must be faster."""
    return np.median(rows, axis=0)


def scipy_trimmed(rows: Rows) -> Rows:
    """Trimmed means by partitions."""
    return trim_mean(rows, TRIM / len(rows), axis=0)


def scipy_exponential(rows: Rows) -> float:
    """The score from distances of all pairs."""
    return 1 + 2 * np.exp(-pdist(rows, "chebyshev")).sum() / len(rows)


def scipy_ramp(rows: Rows) -> float:
    """The score from distances of all pairs."""
    return 1 + 2 * np.clip(2 - pdist(rows, "chebyshev"), 0, 1).sum() / len(rows)


def winsorised(rows: Rows) -> Rows:
    """The mean of values clipped to within 0.2 of their trimmed mean."""
    centre = scipy_trimmed(rows)
    return np.clip(rows, centre - 0.2, centre + 0.2).mean(axis=0)


@dataclass(frozen=True)
class Pair:
    """A statistic of ours beside another tool's.

    Attributes:
        what: its name.
        shape: rows and columns.
        ours: of rows.
        theirs: what is timed beside it.
        rival: whose that is.
        least: times faster that ours is meant to be, in processor time.
        equals: what ours is compared with; None for ``theirs``.
    """

    what: str
    shape: tuple[int, int]
    ours: Callable[[Rows], Any]
    theirs: Callable[[Rows], Any]
    rival: str
    least: float | None = None
    equals: Callable[[Rows], Any] | None = None


PAIRS = (
    Pair("median", (1000, 1000), coordinate_median, numpy_median, "np.median", 3),
    Pair(
        "trimmed mean",
        (1000, 1000),
        lambda rows: trimmed_mean(rows, TRIM),
        numpy_median,
        "np.median",
        3,
        equals=scipy_trimmed,
    ),
    Pair("trimmed mean", (1000, 1000), lambda rows: trimmed_mean(rows, TRIM), scipy_trimmed, "scipy.stats.trim_mean"),
    Pair("winsorised mean", (1000, 1000), Winsorized(0.1), numpy_median, "np.median", equals=winsorised),
    Pair(
        "score, exponential",
        (2000, 1000),
        lambda rows: concentration_score(rows, ExpKernel(1.0)),
        scipy_exponential,
        "scipy pdist and exp",
        4,
    ),
    Pair(
        "score, ramp",
        (2000, 1000),
        lambda rows: concentration_score(rows, RampKernel(2.0)),
        scipy_ramp,
        "scipy pdist and a ramp",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15, help="measured repetitions (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless every promised ratio is kept")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    rows = [measured(pair, cores, arguments.repetitions) for pair in PAIRS]
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": cores, "rows": rows}, indent=2) + "\n")
    slow = [pair for pair, row in zip(PAIRS, rows, strict=True) if pair.least is not None and row["ratio"] < pair.least]
    print("".join(f"{pair.what}: not {pair.least} times as fast as {pair.rival}\n" for pair in slow), end="")
    sys.exit(1 if arguments.check and slow else 0)


def measured(pair: Pair, cores: int, repetitions: int) -> dict[str, Any]:
    """A row of the table; the first calls, which compile, are not counted."""
    data = np.random.default_rng(1).normal(size=pair.shape) * 0.1
    np.testing.assert_allclose(pair.ours(data), (pair.equals or pair.theirs)(data), rtol=1e-6, atol=1e-12)
    row: dict[str, Any] = {"what": pair.what, "rows": pair.shape[0], "columns": pair.shape[1], "rival": pair.rival}
    for threads, clock, end in ((1, time.process_time, ""), (cores, time.perf_counter, "_on_the_clock")):
        with limited(threads):
            times = [(spent(pair.ours, data, clock), spent(pair.theirs, data, clock)) for _ in range(repetitions)]
        mine, other = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
        ratio = statistics.median(theirs_took / took for took, theirs_took in times)
        row |= {f"ours_ms{end}": mine, f"rival_ms{end}": other, f"ratio{end}": ratio}
        print(f"{pair.what:>20}, threads: {threads}: {mine:8.2f} ms, {pair.rival} {other:8.2f} ms, {ratio:.2f} times")
    return row


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
