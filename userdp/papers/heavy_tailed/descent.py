"""Private stochastic convex optimisation with heavy-tailed gradients, on arrays.

Source: Zhao, Wu, Liu, Wang, Fan, Li, "Differential Private Stochastic Optimization with Heavy-tailed Data: Towards
Optimal Rates", Algorithm 1 with Algorithms 2 and 3. All n samples are used in every step; relation: one sample is
replaced; n is public.
"""

import math


def whole_rounds(wanted: float, most: int | None = None) -> int:
    """T as a whole number, rounded up, at least 1 and at most ``most``."""
    return max(1, min(math.ceil(wanted), most if most is not None else math.ceil(wanted)))


def wanted_rounds(samples: int, dimension: int, rho: float, clip_norm: float, slope: float = 1.0) -> float:
    """T for which the noise of one round has power ``2 slope^2``: ``rho n^2 slope^2 / (d R^2)``.

    Args:
        samples: n.
        dimension: d.
        rho: of the run, on the mean of all samples.
        clip_norm: R.
        slope: smoothness times diameter; the paper silently takes 1.
    """
    return rho * (samples * slope / clip_norm) ** 2 / dimension
