"""Users' average gradients of a generalised linear model in float32, the type of stored samples, in one reading."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import can_compile
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.problems.bounds import targets_of
from userdp.problems.families import Family
from userdp.problems.segments import weighted_as_read

COMPILED_BYTES = 1 << 22
"""The least bytes of a block's features for the compiled loop; below, two products are as fast."""


def rough_gradients(family: Family, x: Vector, pull: Vector, block: Block) -> tuple[Array, NDArray[np.bool_]]:
    """Compute (U, p) average gradients plus ``pull`` (p,) from float32 features; also (U,) whether they are finite.

    About seven digits of a sum's largest terms. With one number more than features, the model x ends in an intercept.
    The block, the family and the installed packages determine the method.
    """
    features = cast("NDArray[np.float32]", block.dense_features)
    if family.kind is None or features.nbytes < COMPILED_BYTES or not can_compile():
        return _in_two_products(family, x, pull, block, features)
    from userdp.problems.one_pass import KINDS, average_gradients  # noqa: PLC0415 -- compiled, slow to load

    rows, finite = np.empty((block.users, len(x))), np.empty(block.users, dtype=np.bool_)
    targets, model = targets_of(block).astype(np.float32, copy=False), x.astype(np.float32)
    loss = (KINDS.index(family.kind), np.float32(family.parameter))
    average_gradients(np.ascontiguousarray(features), targets, block.offsets, model, pull, *loss, rows, finite)
    return rows, finite


def _in_two_products(
    family: Family, x: Vector, pull: Vector, block: Block, features: NDArray[np.float32]
) -> tuple[Array, NDArray[np.bool_]]:
    """Compute the same by matrix products, of pieces of samples that fit a processor's cache."""
    model, targets, slopes = x.astype(np.float32), targets_of(block), np.empty(block.samples, dtype=np.float32)
    columns = features.shape[1]

    def weigh(piece: NDArray[np.float32], samples: slice) -> NDArray[np.float32]:
        scores = piece @ model[:columns]
        if len(model) > columns:
            scores += model[columns]
        slopes[samples] = family.slopes(cast(Array, scores), targets[samples])
        return slopes[samples]

    sums = weighted_as_read(features, block.offsets, weigh)
    if len(model) > columns:
        of_intercept = np.add.reduceat(slopes, block.offsets[:-1], dtype=np.float64)
        sums = np.column_stack([sums, of_intercept.astype(np.float32)])
    finite = np.isfinite(np.vecdot(sums, sums))
    sums *= (1 / block.sizes).astype(np.float32)[:, None]
    rows = sums.astype(np.float64)
    rows += pull
    return rows, finite
