"""Declared bounds: argument checks, clipping of samples into the bounds, and setting aside of unusable samples.

Certificates cover data within the bounds EXACTLY, so bounds are rounded inwards to float32: no stored sample lies
outside, not even by a rounding error.

A clipped sample is a function of that sample and of declared facts alone, defined for EVERY sample: no user's data
raise here. Otherwise one user's data would silence all users of a node, which no sensitivity accounts for. Errors are
about declared facts of a whole block: its columns, its types. A sample that is not finite, or has no place within the
bounds, is set aside: marked as unusable, with zeros in place of its values. `userdp.nodes.row_maker` gives it no
weight.
"""

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import bytes_of, over_rows, row_of_entry, sparse_rows
from userdp.data.block import Block, Features
from userdp.errors import BadInput
from userdp.problems.segments import float64_parts, parts

Floats = NDArray[np.float32]
INWARDS = 1.0 - 2.0**-22
"""One minus two float32 roundings: a row scaled by this factor stays inside the ball after rounding."""


def positive(field: str, value: float, *, infinite: bool = False) -> float:
    """Return ``value``; raise `BadInput` unless it is positive, and finite unless ``infinite`` allows infinity."""
    if not (value > 0 and (infinite or math.isfinite(value))):
        raise BadInput(f"{field} = {value}: must be a positive {'number' if infinite else 'finite number'}")
    return float(value)


def not_negative(field: str, value: float) -> float:
    """Return ``value``; raise `BadInput` unless it is a finite number, zero or more."""
    if not (value >= 0 and math.isfinite(value)):
        raise BadInput(f"{field} = {value}: must be a finite number, zero or more")
    return float(value)


def count(field: str, value: int) -> int:
    """Return ``value``; raise `BadInput` unless it is a whole number, one or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise BadInput(f"{field} = {value!r}: must be a whole number, one or more")
    return int(value)


def interval(field: str, low: float, high: float) -> tuple[float, float]:
    """Return ``(low, high)``; raise `BadInput` unless ``low < high``. An infinite side has no bound."""
    if not low < high:
        raise BadInput(f"{field} = [{low}, {high}]: must be two numbers, the lower one first")
    return float(low), float(high)


def check_columns(block: Block, columns: int, kind: type[np.floating] | type[np.integer] = np.floating) -> None:
    """Raise `BadInput` if a block's features are sparse, or have another width or type than the problem declares."""
    check_width(block.dense_features, columns)
    if not np.issubdtype(block.features.dtype, kind):
        wanted = "integer codes" if kind is np.integer else "floating point values"
        raise BadInput(f"features have type {block.features.dtype}, the problem needs {wanted}")


def check_width(features: Features, columns: int) -> None:
    """Raise `BadInput` if features have another number of columns."""
    found = features.shape[1]
    if found != columns:
        raise BadInput(f"samples have {found} feature columns, the problem needs {columns}; change data or problem")


def targets_of(block: Block) -> Floats:
    """Return the block's targets; raise `BadInput` if it has none."""
    if block.targets is None:
        raise BadInput("samples have no target, the problem needs one; name the target column in the data")
    return block.targets


def terms_of(block: Block) -> Floats:
    """Return the block's known terms of scores; raise `BadInput` if it has none."""
    if block.terms is None:
        raise BadInput("samples have no known term of their score: name the column in data.exposure or data.offset")
    return block.terms


def set_aside(block: Block, unusable: NDArray[np.bool_]) -> Block:
    """Mark the samples ``unusable`` (N,) and set their values to zero; return ``block`` itself if there are none."""
    if not unusable.any():
        return block
    targets = None if block.targets is None else np.where(unusable, np.float32(0), block.targets)
    if isinstance(block.features, csr_array):
        own = block.features
        data = np.where(unusable[row_of_entry(own)], own.dtype.type(0), own.data)
        features: Features = sparse_rows(data, own.indices, own.indptr, own.shape[1])
    else:
        features = np.where(unusable[:, None], block.features.dtype.type(0), block.features)
    usable = ~unusable if block.usable is None else block.usable & ~unusable
    terms = None if block.terms is None else np.where(unusable, np.float32(0), block.terms)
    return Block(features, block.offsets, targets, usable, terms)


def set_aside_not_finite(block: Block, *, targets: bool = True) -> Block:
    """Set aside samples with a NaN or an infinity in a feature, a known term, or in the target if it is used."""
    unusable = _not_finite_features(block)
    if block.terms is not None:
        unusable = unusable | ~np.isfinite(block.terms)
    return set_aside(block, unusable | ~np.isfinite(targets_of(block)) if targets else unusable)


def _not_finite_features(block: Block) -> NDArray[np.bool_]:
    features = block.features
    if isinstance(features, csr_array):
        return over_rows(np.maximum, (~np.isfinite(features.data)).astype(np.float64), features) > 0
    if np.issubdtype(features.dtype, np.integer):
        return np.zeros(block.samples, dtype=bool)
    with np.errstate(invalid="ignore"):  # a NaN makes both NaN
        lowest, highest = cast(Floats, features).min(), cast(Floats, features).max()
    if np.isfinite(lowest) and np.isfinite(highest):
        return np.zeros(block.samples, dtype=bool)
    return np.concatenate([~np.isfinite(cast(Floats, part.features)).all(axis=1) for _, part in parts(block)])


def coded(block: Block, columns: int, levels: int | NDArray[np.int64]) -> Block:
    """Set aside samples with a code outside 0 to ``levels`` - 1, of all columns or of each; `BadInput` for no codes."""
    check_columns(block, columns, np.integer)
    codes = cast(NDArray[np.int32], block.dense_features)
    return set_aside(block, np.any((codes < 0) | (codes >= levels), axis=1))


def without_class(block: Block, classes: int) -> NDArray[np.bool_]:
    """Return which samples (N,) have a target that is none of 0 to ``classes`` - 1; `BadInput` without targets."""
    targets = targets_of(block)
    return np.asarray((targets < 0) | (targets >= classes) | (targets != np.floor(targets)))


def counted(block: Block, changed: NDArray[np.bool_]) -> int:
    """Return how many of the usable samples ``changed`` (N,)."""
    return int(np.count_nonzero(changed if block.usable is None else changed & block.usable))


def clip_features(block: Block, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Clip finite features into ``[low, high]``; return them (the same array if unchanged), and (N,) which changed."""
    features = cast(Floats, block.dense_features)
    lowest, highest = _inside(low, high, features.dtype)
    clipped, changed, stop = features, np.zeros(block.samples, dtype=bool), 0
    for _, part in parts(block, 4 * bytes_of(features[:1])):
        own, start, stop = cast(Floats, part.features), stop, stop + part.samples
        places = np.flatnonzero((own < lowest) | (own > highest))
        if len(places):
            clipped = features.copy() if clipped is features else clipped
            clipped[start:stop].ravel()[places] = np.clip(own.ravel()[places], lowest, highest)
            changed[start + places // own.shape[1]] = True
    return clipped, changed


def scale_features(block: Block, norm: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Scale finite samples into the l1 ball of radius ``norm``, one by one; return the same as `clip_features`."""
    features = cast(Floats, block.dense_features)
    if math.isinf(norm):
        return features, np.zeros(block.samples, dtype=bool)
    # Not a matrix product, which rounds a row's sum by how many rows there are: others' samples would move it.
    norms = np.concatenate([np.abs(values, out=values).sum(axis=1) for _, _, values in float64_parts(block)])
    changed = np.asarray(norms > norm)
    if not changed.any():
        return features, changed
    scaled = features.copy()
    scaled[changed] *= (norm * INWARDS / norms[changed]).astype(features.dtype)[:, None]
    return scaled, changed


def clip_targets(block: Block, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Clip finite targets into ``[low, high]``; return the same as `clip_features`. Raises `BadInput` if absent."""
    return clip_numbers(targets_of(block), low, high)


def clip_numbers(numbers: Floats, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Clip (N,) finite numbers into ``[low, high]``; return the same as `clip_features`."""
    lowest, highest = _inside(low, high, numbers.dtype)
    changed = np.asarray((numbers < lowest) | (numbers > highest))
    return (np.clip(numbers, lowest, highest) if changed.any() else numbers), changed


def rebuilt(block: Block, features: Features, targets: Floats | None) -> Block:
    """Return ``block`` with these arrays; ``block`` itself if it already holds them."""
    if features is block.features and targets is block.targets:
        return block
    return Block(features, block.offsets, targets, block.usable, block.terms)


def _inside(low: float, high: float, kind: np.dtype[np.floating]) -> tuple[np.floating, np.floating]:
    """Return the smallest and the largest value of a floating point ``kind`` within ``[low, high]``."""
    with np.errstate(over="ignore"):  # a bound beyond the largest float becomes infinite, then steps back inside
        lowest, highest = kind.type(low), kind.type(high)
    if float(lowest) < low:
        lowest = np.nextafter(lowest, kind.type(np.inf))
    if float(highest) > high:
        highest = np.nextafter(highest, kind.type(-np.inf))
    return lowest, highest
