"""Declared bounds: arguments checked, samples clipped into the bounds and counted.

Certificates speak of data within the bounds EXACTLY, so bounds are rounded inwards to float32: no stored sample lies
outside by so much as a rounding error. Messages name columns and counts, never values of the data.
"""

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block, Features
from userdp.errors import BadInput
from userdp.problems.segments import float64_parts, parts
from userdp.sparse_rows import Sparse

Floats = NDArray[np.float32]
INWARDS = 1.0 - 2.0**-22
"""Two float32 roundings' worth: a row scaled by this much less stays inside the ball after rounding."""


def positive(field: str, value: float, *, infinite: bool = False) -> float:
    """``value`` if it is a positive number.

    Raises:
        BadInput: it is not, or it is infinite where that is not allowed.
    """
    if not (value > 0 and (infinite or math.isfinite(value))):
        raise BadInput(f"{field} = {value}: must be a positive {'number' if infinite else 'finite number'}")
    return float(value)


def not_negative(field: str, value: float) -> float:
    """``value`` if it is a finite number, zero or more.

    Raises:
        BadInput: it is not.
    """
    if not (value >= 0 and math.isfinite(value)):
        raise BadInput(f"{field} = {value}: must be a finite number, zero or more")
    return float(value)


def count(field: str, value: int) -> int:
    """``value`` if it is a whole number, one or more.

    Raises:
        BadInput: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise BadInput(f"{field} = {value}: must be a whole number, one or more")
    return int(value)


def interval(field: str, low: float, high: float) -> tuple[float, float]:
    """``(low, high)`` if ``low < high``; either may be infinite, which leaves that side without a bound.

    Raises:
        BadInput: they are not two rising numbers.
    """
    if not (low < high and low < math.inf and high > -math.inf):
        raise BadInput(f"{field} = [{low}, {high}]: must be two numbers, the lower one first")
    return float(low), float(high)


def check_columns(block: Block, columns: int, kind: type[np.floating] | type[np.integer] = np.floating) -> None:
    """Refuse a block whose features have another shape or kind than the problem declares.

    Raises:
        BadInput: another number of columns, values of another kind, or sparse rows.
    """
    check_width(block.dense_features, columns)
    if not np.issubdtype(block.features.dtype, kind):
        wanted = "integer codes" if kind is np.integer else "floating point values"
        raise BadInput(f"features have type {block.features.dtype}, the problem needs {wanted}")


def check_width(features: Features, columns: int) -> None:
    """Refuse features of another number of columns.

    Raises:
        BadInput: that.
    """
    found = features.shape[1]
    if found != columns:
        raise BadInput(f"samples have {found} feature columns, the problem needs {columns}; change data or problem")


def targets_of(block: Block) -> Floats:
    """The block's targets.

    Raises:
        BadInput: it has none.
    """
    if block.targets is None:
        raise BadInput("samples have no target, the problem needs one; name the target column in the data")
    return block.targets


def finite_range(block: Block) -> tuple[np.floating, np.floating]:
    """The smallest and the largest feature.

    Raises:
        BadInput: a feature is not finite; names the first bad column, with the number of its bad samples.
    """
    features = cast(Floats, block.dense_features)
    with np.errstate(invalid="ignore"):  # a NaN makes both NaN, and is reported below
        lowest, highest = features.min(), features.max()
    if np.isfinite(lowest) and np.isfinite(highest):
        return lowest, highest
    bad = np.zeros(features.shape[1], dtype=np.int64)
    for _, part in parts(block):
        bad += np.count_nonzero(~np.isfinite(cast(Floats, part.dense_features)), axis=0)
    raise _not_finite(np.repeat(np.arange(len(bad)), bad))


def check_sparse_finite(features: Sparse) -> None:
    """Refuse sparse features that are not all finite.

    Raises:
        BadInput: as `finite_range`.
    """
    finite = np.isfinite(features.data)
    if not finite.all():
        raise _not_finite(features.indices[~finite])


def _not_finite(columns: NDArray[np.integer]) -> BadInput:
    """What to say of features that are not finite, one entry of ``columns`` for each."""
    names, counts = np.unique(columns, return_counts=True)
    others = f" (as are values of {len(names) - 1} more columns)" if len(names) > 1 else ""
    return BadInput(
        f"feature column {names[0]} is NaN or infinite in {counts[0]} samples{others}; "
        "fill or remove them before training"
    )


def clip_features(block: Block, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Features clipped into ``[low, high]``, coordinate by coordinate.

    Returns:
        (N, k) features, the same array when nothing changed, and (N,) which samples changed.

    Raises:
        BadInput: a value that is not finite.
    """
    smallest, largest = finite_range(block)
    features = cast(Floats, block.dense_features)
    lowest, highest = _inside(low, high, features.dtype)
    if smallest >= lowest and largest <= highest:
        return features, np.zeros(block.samples, dtype=bool)
    changed = np.any((features < lowest) | (features > highest), axis=1)
    return np.clip(features, lowest, highest), changed


def scale_features(block: Block, norm: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Features scaled down into the l1 ball of radius ``norm``, sample by sample.

    Returns:
        (N, k) features, the same array when nothing changed, and (N,) which samples changed.

    Raises:
        BadInput: a value that is not finite.
    """
    finite_range(block)
    features = cast(Floats, block.dense_features)
    if math.isinf(norm):
        return features, np.zeros(block.samples, dtype=bool)
    ones = np.ones(features.shape[1])
    norms = np.concatenate([np.abs(values, out=values) @ ones for _, _, values in float64_parts(block)])
    changed = np.asarray(norms > norm)
    if not changed.any():
        return features, changed
    scaled = features.copy()
    scaled[changed] *= (norm * INWARDS / norms[changed]).astype(features.dtype)[:, None]
    return scaled, changed


def clip_targets(block: Block, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Targets clipped into ``[low, high]``.

    Returns:
        (N,) targets, the same array when nothing changed, and (N,) which samples changed.

    Raises:
        BadInput: no targets, or a value that is not finite.
    """
    targets = targets_of(block)
    if bad := int(np.count_nonzero(~np.isfinite(targets))):
        raise BadInput(f"the target is NaN or infinite in {bad} samples; fill or remove them before training")
    lowest, highest = _inside(low, high, targets.dtype)
    changed = np.asarray((targets < lowest) | (targets > highest))
    return (np.clip(targets, lowest, highest) if changed.any() else targets), changed


def rebuilt(block: Block, features: Features, targets: Floats | None) -> Block:
    """``block`` with these arrays; ``block`` itself when they are its own."""
    if features is block.features and targets is block.targets:
        return block
    return Block(features, block.offsets, targets)


def _inside(low: float, high: float, kind: np.dtype[np.floating]) -> tuple[np.floating, np.floating]:
    """The smallest and the largest value of a floating point ``kind`` within ``[low, high]``."""
    with np.errstate(over="ignore"):  # a bound beyond the largest float becomes infinite, then steps back inside
        lowest, highest = kind.type(low), kind.type(high)
    if float(lowest) < low:
        lowest = np.nextafter(lowest, kind.type(np.inf))
    if float(highest) > high:
        highest = np.nextafter(highest, kind.type(-np.inf))
    return lowest, highest
