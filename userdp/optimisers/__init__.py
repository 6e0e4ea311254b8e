"""Private optimisers on arrays: samples' gradients in, a model out; the strategies do the same in a federation."""

from userdp.optimisers.heavy_tailed import Descent, dp_sco_clip, dp_sco_iterative, iterative_descent, simple_descent

__all__ = ["Descent", "dp_sco_clip", "dp_sco_iterative", "iterative_descent", "simple_descent"]
