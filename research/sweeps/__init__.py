"""What the papers' pages say of estimators and algorithms on arrays: a function for each table."""

from sweeps import (
    averaged_clipping,
    heavy_tailed,
    heavy_tailed_claims,
    high_dimensional,
    high_dimensional_sparse,
    sparse_descent,
    sparse_gradients,
)
from sweeps.sweep import Sweep

SWEEPS: dict[str, Sweep] = {
    **averaged_clipping.SWEEPS,
    **heavy_tailed.SWEEPS,
    **heavy_tailed_claims.SWEEPS,
    **high_dimensional.SWEEPS,
    **high_dimensional_sparse.SWEEPS,
    **sparse_gradients.SWEEPS,
    **sparse_descent.SWEEPS,
}
"""Name of a table -> how it is made."""
