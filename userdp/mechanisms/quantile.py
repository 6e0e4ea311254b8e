"""A private quantile over a public grid, by the exponential mechanism (Smith 2011, on a finite grid)."""

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.costs import Cost
from userdp.errors import BadInput
from userdp.noise import NoiseSource


def private_quantile(
    values: NDArray[np.floating],
    quantile: float,
    epsilon: float,
    grid: NDArray[np.floating],
    noise: NoiseSource,
) -> tuple[float, Cost]:
    """A point of ``grid`` with about ``quantile * n`` of the n values below it, and what it cost.

    Chooses g with probability proportional to ``exp(epsilon u(g) / 2)``, ``u(g) = -|#{values < g} - quantile n|``,
    sampled by Gumbel noise.

    *Formal guarantees.* (epsilon, 0)-DP for replacing one user, where each user gives ONE value and n and the grid
    are public: replacing a value changes each count by at most 1 and u by at most 1, so numerator and normaliser
    each change by at most a factor ``exp(epsilon / 2)`` (McSherry, Talwar 2007).

    Args:
        values: (n,) one value a user.
        quantile: in [0, 1].
        epsilon: > 0.
        grid: (G,) candidates in rising order, chosen without looking at the data.
        noise: where its noise comes from.

    Raises:
        BadInput: empty or non-finite values or grid, a grid that does not rise, a parameter out of range.
    """
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise BadInput("the values of a private quantile must be one finite number a user, from at least one user")
    if grid.ndim != 1 or grid.size == 0 or not np.isfinite(grid).all() or np.any(np.diff(grid) <= 0):
        raise BadInput("the grid of a private quantile must be finite numbers that rise strictly")
    if not 0 <= quantile <= 1:
        raise BadInput(f"quantile = {quantile}: must lie in [0, 1]")
    if not 0 < epsilon < np.inf:
        raise BadInput(f"epsilon = {epsilon}: must be a positive number")
    below = np.searchsorted(np.sort(values), grid, side="left")
    utility = -np.abs(below - quantile * values.size)
    chosen = int(noise.choose(utility[None], epsilon)[0])
    return float(grid[chosen]), Cost(pure_epsilon=epsilon)
