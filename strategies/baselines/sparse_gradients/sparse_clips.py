"""Settings of strategies that clip users' gradients in both norms, for sparse gradients of samples."""

from pydantic import Field

from strategies import Given
from strategies.baselines.declared_bounds import declared_sparsity
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.clipping import ClippedOptions


class SparselyClippedOptions(ClippedOptions, restates={"clip_norm", "learning_rate"}):
    """The l2 clip L, the step, and the sparsity s from which the l1 clip L sqrt(s) follows."""

    clip_norm: float = Field(
        1.0, gt=0, description="L: l2 norm that each user's average gradient is clipped to; its l1 norm to L sqrt(s)."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; 1 / smoothness, or 0.5, or 0.1 for adam.")
    sparsity: int | None = Field(
        None, ge=1, description="s: most non-zeros of a sample's gradient; the problem's certificate if not given."
    )

    def members(self, given: Given) -> SparseVectors:
        """Return what gradients are clipped to; `BadInput` if s is neither set nor certified."""
        return SparseVectors(declared_sparsity(given, self.sparsity), self.clip_norm)
