"""Monte Carlo of the privacy loss of secret cohorts when a user is replaced, to hold prices against.

Each row is one of 100 settings: the epsilon that the true losses have at delta, as an interval (four standard errors).
Nothing of the accounting is used. ``python research/replaced_users.py`` writes research/results/replaced_users.csv.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Vector = NDArray[np.float64]

TABLE = Path(__file__).parent / "results" / "replaced_users.csv"
_NORMALS = 16_000_000  # Random numbers a setting, about
_MORE, _WIDE = 64, 1.03  # So many times as many, where the interval's ends differ by more than this
_ERRORS = 4.0  # Standard errors on either side
_DELTAS = (1e-4, 1e-5, 1e-6, 1e-8)


def settings() -> Iterator[dict[str, Any]]:
    """Draw 60 settings of Poisson cohorts and 40 of allocated rounds; ``noise`` is noise over the clip."""
    rng = np.random.default_rng(0)
    for number in range(60):
        rate, rounds = 10 ** rng.uniform(-3, -0.1), int(10 ** rng.uniform(0, 2.8))
        noise = max(0.5, rng.uniform(0.3, 3) * rate * math.sqrt(rounds), rng.uniform(0.5, 2))
        yield {"kind": "poisson", "noise": noise, "rate": rate, "rounds": rounds, "delta": _DELTAS[number % 4]}
    for number in range(40):
        size, times = int(10 ** rng.uniform(0.4, 2.5)), (1, 1, 2, int(10 ** rng.uniform(0.3, 1.4)))[number % 4]
        rounds = size * times + int(rng.integers(times)) * (size < 30)
        noise = max(0.6, rng.uniform(0.5, 2) * math.sqrt(times / size), rng.uniform(0.6, 1.5))
        yield {
            **{"kind": "allocation", "noise": noise, "rounds": rounds, "participations": times},
            "delta": _DELTAS[number // 4 % 4],
        }


def poisson_losses(rng: np.random.Generator, one: dict[str, Any], times: int) -> tuple[Vector, Vector]:
    """Draw (losses, logarithms of their weights) of all rounds, tilted so that losses beyond delta are common.

    ``times`` multiplies the number of draws.
    """
    s, q, rounds = 1 / one["noise"], one["rate"], one["rounds"]
    x = np.linspace(-12 - s, 12 + s, 48_001)  # a fine grid is as good as the line
    right, left = (np.logaddexp(math.log1p(-q), math.log(q) + sign * s * x - s**2 / 2) for sign in (1, -1))
    loss, logarithm = right - left, right - x**2 / 2
    logarithm -= scipy.special.logsumexp(logarithm)

    def beyond(tilt: float) -> float:
        """Logarithm of the probability that this tilt makes common, about, over delta."""
        tilted = logarithm + tilt * loss
        total = scipy.special.logsumexp(tilted)
        return float(rounds * (total - tilt * (np.exp(tilted - total) @ loss)) - math.log(one["delta"]))

    high = 1.0
    while beyond(high) > 0 and high < 1e4:
        high *= 2
    tilt = scipy.optimize.brentq(beyond, 0.0, high, xtol=1e-3) if beyond(high) < 0 else high
    tilted = logarithm + tilt * loss
    total = scipy.special.logsumexp(tilted)
    summed = np.cumsum(np.exp(tilted - total))
    count = times * min(200_000, _NORMALS // rounds)
    losses = np.zeros(count)
    for _ in range(rounds):
        losses += loss[np.minimum(np.searchsorted(summed, rng.random(count)), len(x) - 1)]
    return losses, rounds * total - tilt * losses


def allocation_losses(rng: np.random.Generator, one: dict[str, Any], times: int) -> tuple[Vector, Vector]:
    """Draw losses and weights of random blocks, as `poisson_losses`, from a mixture of shifts towards large losses.

    A shift moves the round of a block that the user is in, all other rounds, or both.
    """
    s, rounds, blocks = 1 / one["noise"], one["rounds"], one["participations"]
    size, larger = divmod(rounds, blocks)
    sizes = np.array([size] * (blocks - larger) + [size + 1] * larger)
    count = times * min(400_000, _NORMALS // rounds)
    starts = np.cumsum(sizes) - sizes
    directions = []
    for angle in np.linspace(0, 1, 4) * math.pi / 2:
        direction = np.full(rounds, math.sin(angle) / math.sqrt(max(1, rounds - blocks)))
        direction[starts] = math.cos(angle) / math.sqrt(blocks)
        directions.append(direction)
    shifts = np.array([np.zeros(rounds), *(far * each for far in (1.5, 3.0, 4.5, 6.0) for each in directions)])
    own = np.zeros(rounds)
    own[starts] = s
    losses, weights = [], []
    for done in range(0, count, 20_000):
        drawn = shifts[rng.integers(len(shifts), size=min(20_000, count - done))]
        moved = rng.standard_normal(drawn.shape) + drawn
        mixture = scipy.special.logsumexp(moved @ shifts.T - (shifts**2).sum(axis=1) / 2, axis=1)
        weights.append(math.log(len(shifts)) - mixture)
        z = s * (moved + own)
        sums = (np.log(np.add.reduceat(np.exp(sign * z), starts, axis=1)).sum(axis=1) for sign in (1, -1))
        losses.append(np.subtract(*sums))
    return np.concatenate(losses), np.concatenate(weights)


def interval(losses: Vector, weights: Vector, delta: float) -> tuple[float, float]:
    """Return the epsilons at which the divergence, less or more its error, is ``delta``."""
    order = np.argsort(-losses)
    losses, weights = losses[order], np.exp(weights[order])
    # Moments of the terms of all losses above one: with them an epsilon costs one look-up.
    sums = [np.cumsum(weights**a * np.exp(-b * losses)) for a, b in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2))]

    def excess(epsilon: float, sign: float) -> float:
        above = int(np.searchsorted(-losses, -epsilon))
        if not above:
            return -delta
        first, one, second, two, three = (float(each[above - 1]) for each in sums)
        mean = (first - math.exp(epsilon) * one) / len(losses)
        square = (second - 2 * math.exp(epsilon) * two + math.exp(2 * epsilon) * three) / len(losses)
        return mean + sign * _ERRORS * math.sqrt(max(0.0, square - mean**2) / len(losses)) - delta

    def root(sign: float) -> float:
        # From above: tilted draws say little about small losses.
        high = low = float(losses[0])
        while low > 1e-9 and excess(low, sign) <= 0:
            high, low = low, low * 0.99
        return low if low <= 1e-9 else float(scipy.optimize.brentq(excess, low, high, (sign,), xtol=1e-9))

    return root(-1.0), root(1.0)


_LOSSES: dict[str, Callable[[np.random.Generator, dict[str, Any], int], tuple[Vector, Vector]]] = {
    "poisson": poisson_losses,
    "allocation": allocation_losses,
}


def main() -> None:
    """Write the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for number, one in enumerate(settings()):
        low = high = 0.0
        for times in (1, _MORE):
            if times == 1 or high > _WIDE * low:
                draws = _LOSSES[one["kind"]](np.random.default_rng([times, number]), one, times)
                low, high = interval(*draws, one["delta"])
        rows.append({"rate": "", "participations": "", **one, "low": low, "high": high})
        print(number, one, low, high, flush=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted({name for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
