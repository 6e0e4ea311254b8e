"""Names for arrays, defined once: what their axes are is said where they are used."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
"""(d,) numbers: a model, a gradient, a mean."""

Rows: TypeAlias = NDArray[np.float64]
"""(n, d): a vector for each user, or for each sample."""

Array: TypeAlias = NDArray[np.float64]
"""Numbers of any shape."""

Indices: TypeAlias = NDArray[np.int64]
"""(n,) positions of users or samples."""
