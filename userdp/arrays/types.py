"""Names for arrays; docstrings say what their axes mean."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]  # Numbers of any shape.
Vector: TypeAlias = NDArray[np.float64]  # (d,) numbers: a model, a gradient, a mean.
Rows: TypeAlias = NDArray[np.float64]  # (n, d): a vector for each user, or for each sample.
Indices: TypeAlias = NDArray[np.int64]  # (n,) positions of users or samples.
