"""Models of ordinary Flower apps, of several arrays, as the one vector that strategies work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from strategies.wire.untrusted import read_array, untrusted
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput

_NEAR_ZERO = 1 / 4  # Of the length of the model sent: so short a reply is an update, and no model


@dataclass(frozen=True)
class _Part:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    where: slice
    nonnegative: bool


class ModelLayout:
    """The trained arrays of a model, and the place of each in the vector.

    Float arrays are trained, except frozen ones. Those and arrays of integers or booleans (counters of batch
    normalisation) keep their value in ``initial``. ``frozen`` has patterns (as of file names) of arrays, and
    ``nonnegative`` those of arrays whose entries `record` raises to zero, such as variances, which noise could make
    negative: post-processing. Raises `BadInput` for numbers that are not finite, nothing to train, or a pattern of
    ``frozen`` that matches no array.
    """

    def __init__(self, initial: ArrayRecord, frozen: Sequence[str] = (), nonnegative: Sequence[str] = ()) -> None:
        if idle := [pattern for pattern in frozen if not any(fnmatchcase(name, pattern) for name in initial)]:
            raise BadInput(f"frozen = {idle[0]!r} matches no array: choose from {', '.join(initial)}")
        self._initial, self.frozen = dict(initial), tuple(frozen)
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
        """Return (p,) the trained arrays one after the other, in float64; they may be of any float or integer type.

        Raises `BadInput` if names or shapes differ from the start, or an array cannot be read.
        """
        if set(arrays) != set(self._initial):
            raise BadInput("its arrays have other names than the model's")
        x = np.empty(self.dimension)
        for name, part in self._parts.items():
            values = _decoded(name, arrays[name], part.shape)
            with np.errstate(over="ignore"):  # what does not fit into float64 becomes infinite
                x[part.where] = values.reshape(-1)
        return x

    def update(self, reply: Message, sent: Vector, name: str) -> Rows:
        """Return (1, p): the model of a client's reply minus the one sent (p,), for the computation of that name.

        Strategies of gradients get the negative update for one. It may hold numbers that are not finite, and does if
        the reply is near zero against the model sent. Raises `BadInput` if the reply holds no such model.
        """
        with untrusted("it did not reply with a model"):
            records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise BadInput(f"it replied with {len(records)} ArrayRecords: send the trained model in one")
        with np.errstate(over="ignore", invalid="ignore"):
            model = self.vector(records[0])
            update = model - sent
            if np.linalg.norm(model) < _NEAR_ZERO * np.linalg.norm(sent):
                update[:] = np.nan
        return (update if name == "local_update" else -update)[None]

    def record(self, x: Vector) -> ArrayRecord:
        """Return the model of a vector, with the initial names, types and shapes, clipped to what a type holds."""
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
    with untrusted(f"its array {name!r} cannot be used: send plain numbers, in the shape of the model's"):
        return read_array(array, "it", "fiub", shape)
