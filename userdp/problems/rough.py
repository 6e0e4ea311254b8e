"""Users' average gradients of a generalised linear model in float32, in which samples are stored, each read once."""

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
"""Of a block's features, from which on a compiled loop goes through them: with fewer, two products are as fast."""


def rough_gradients(family: Family, x: Vector, pull: Vector, block: Block) -> tuple[Array, NDArray[np.bool_]]:
    """(U, p) average gradients of users with float32 features, plus ``pull`` (p,); (U,) whether they are numbers.

    About seven digits of a sum's largest terms. Which way is taken follows from the block, the family and what is
    installed.

    Args:
        family: of the loss.
        x: (p,) the model; with one number more than features, the last is an intercept.
        pull: (p,) gradient of what does not depend on samples.
        block: whose samples.
    """
    features = cast("NDArray[np.float32]", block.dense_features)
    if family.kind is None or features.nbytes < COMPILED_BYTES or not can_compile():
        return _in_two_products(family, x, pull, block, features)
    from userdp.problems.one_pass import average_gradients  # noqa: PLC0415 -- compiled: only who has many samples waits

    rows, finite = np.empty((block.users, len(x))), np.empty(block.users, dtype=np.bool_)
    targets, model = targets_of(block).astype(np.float32, copy=False), x.astype(np.float32)
    loss = (family.kind, np.float32(family.parameter))
    average_gradients(np.ascontiguousarray(features), targets, block.offsets, model, pull, *loss, rows, finite)
    return rows, finite


def _in_two_products(
    family: Family, x: Vector, pull: Vector, block: Block, features: NDArray[np.float32]
) -> tuple[Array, NDArray[np.bool_]]:
    """The same, by matrix products of pieces of samples that a processor's cache holds."""
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
