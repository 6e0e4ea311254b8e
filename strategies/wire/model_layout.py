"""A model as ordinary Flower apps send it, of several arrays, and the one vector that strategies work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies.wire.untrusted import read_array, untrusted
from userdp.arrays.types import Vector
from userdp.errors import BadInput


@dataclass(frozen=True)
class _Part:
    """One trained array: where its numbers are in the vector."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    where: slice
    nonnegative: bool


class ModelLayout:
    """Which arrays of a model are trained, and where each is in the vector.

    Float arrays are trained, but for frozen ones. Those and arrays of integers or booleans (counters of batch
    normalisation) keep the value that they have at the start.

    Args:
        initial: the model at the start.
        frozen: patterns (as of file names) of arrays that are not trained.
        nonnegative: patterns of arrays whose entries `record` raises to zero, such as variances, which noise could make
            negative. It is done after the noise and costs no privacy.

    Raises:
        BadInput: an array holds something else than finite numbers, nothing is trained, or a pattern of ``frozen`` is
            that of no array.
    """

    def __init__(self, initial: ArrayRecord, frozen: Sequence[str] = (), nonnegative: Sequence[str] = ()) -> None:
        if idle := [pattern for pattern in frozen if not any(fnmatchcase(name, pattern) for name in initial)]:
            raise BadInput(f"frozen = {idle[0]!r} is the name of no array; there are {', '.join(initial)}")
        self._initial = dict(initial)
        self._parts: dict[str, _Part] = {}
        end = 0
        for name, array in initial.items():
            values = _decoded(name, array)
            if values.dtype.kind in "iub" or any(fnmatchcase(name, pattern) for pattern in frozen):
                continue
            if not np.isfinite(values).all():
                raise BadInput(f"initial_arrays[{name!r}] holds a number that is not finite")
            where = slice(end, end + values.size)
            floored = any(fnmatchcase(name, pattern) for pattern in nonnegative)
            self._parts[name] = _Part(values.shape, values.dtype, where, floored)
            end = where.stop
        if end == 0:
            raise BadInput("initial_arrays holds no float array to train")
        self.dimension = end

    def vector(self, arrays: ArrayRecord) -> Vector:
        """(p,) the trained arrays one after the other, in float64; whatever float or integer type they come in.

        Raises:
            BadInput: other names or shapes than at the start, or an array that cannot be read.
        """
        if set(arrays) != set(self._initial):
            raise BadInput("its arrays have other names than the model's")
        x = np.empty(self.dimension)
        for name, part in self._parts.items():
            values = _decoded(name, arrays[name], part.shape)
            with np.errstate(over="ignore"):  # what does not fit into float64 becomes infinite
                x[part.where] = values.reshape(-1)
        return x

    def record(self, x: Vector) -> ArrayRecord:
        """The model of a vector, of names, types and shapes as at the start; what is too large for a type is cut."""
        arrays = ArrayRecord()
        for name, array in self._initial.items():
            part = self._parts.get(name)
            if part is None:
                arrays[name] = array
                continue
            largest = float(np.finfo(part.dtype).max)
            values = np.clip(x[part.where], 0.0 if part.nonnegative else -largest, largest)
            arrays[name] = Array(values.astype(part.dtype).reshape(part.shape))
        return arrays


def _decoded(name: str, array: Array, shape: tuple[int, ...] | None = None) -> NDArray[np.generic]:
    """The numbers of an array, which must have that shape; it may be read-only."""
    with untrusted(f"its array {name!r} cannot be used: send plain numbers, in the shape of the model's"):
        return read_array(array, "it", "fiub", shape)
