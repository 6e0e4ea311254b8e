"""Models of ordinary Flower apps, of several arrays, as the one vector that strategies work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from strategies.wire.untrusted import read_array, untrusted
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput
from userdp.nodes.statistics import octaves

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
    negative: post-processing.

    With ``ties``, trained arrays of one type and shape that are equal at the start, and not constant, are one array, as
    those of a ``state_dict`` that share their storage: one place in the vector, and one value in every model.

    Raises `BadInput` for numbers that are not finite, a type that is no plain number, nothing to train, or a pattern of
    ``frozen`` that matches no array.
    """

    def __init__(
        self, initial: ArrayRecord, frozen: Sequence[str] = (), nonnegative: Sequence[str] = (), *, ties: bool = True
    ) -> None:
        if idle := [pattern for pattern in frozen if not any(fnmatchcase(name, pattern) for name in initial)]:
            raise BadInput(f"frozen = {idle[0]!r} matches no array: choose from {', '.join(initial)}")
        self._initial = dict(initial)
        self._parts: dict[str, _Part] = {}
        self._tied: dict[str, str] = {}  # name -> that of the array, further up, which it is
        end, first = 0, dict[tuple[object, ...], str]()
        for name, array in initial.items():
            try:
                values = _decoded(name, array)
            except BadInput as error:
                raise BadInput(
                    f"initial_arrays[{name!r}] is of type {array.dtype}: give plain numbers, as by .astype('float32') "
                    f"({error})"
                ) from None
            if values.dtype.kind in "iub" or any(fnmatchcase(name, pattern) for pattern in frozen):
                continue
            if not np.isfinite(values).all():
                raise BadInput(f"initial_arrays[{name!r}] holds a number that is not finite")
            key = (values.dtype, values.shape, sha256(values.tobytes()).digest())
            if ties and values.size and (values != values.flat[0]).any() and first.setdefault(key, name) != name:
                self._tied[name] = first[key]
                continue
            where = slice(end, end + values.size)
            floored = any(fnmatchcase(name, pattern) for pattern in nonnegative)
            self._parts[name] = _Part(values.shape, values.dtype, where, floored)
            end = where.stop
        if end == 0:
            types = ", ".join(f"{name!r} of {array.dtype}" for name, array in islice(initial.items(), 5))
            raise BadInput(
                f"initial_arrays holds no float array to train ({types or 'no array'}): make those that clients train "
                "floats, as by .astype('float32'), and leave them out of frozen"
            )
        self.dimension = end
        self.frozen = (*frozen, *map(escape, self._tied))  # for a node, which takes its part from the first of a tie

    def vector(self, arrays: ArrayRecord) -> Vector:
        """Return (p,) the trained arrays one after the other, in float64; they may be of any float or integer type.

        Raises `BadInput` if names or shapes differ from the start, an array cannot be read, or tied arrays differ.
        """
        if set(arrays) != set(self._initial):
            raise BadInput("its arrays have other names than the model's")
        x = np.empty(self.dimension)
        for name, part in self._parts.items():
            values = _decoded(name, arrays[name], part.shape)
            with np.errstate(over="ignore"):  # what does not fit into float64 becomes infinite
                x[part.where] = values.reshape(-1)
        for name, first in self._tied.items():
            shape = self._parts[first].shape
            one, other = (_decoded(each, arrays[each], shape) for each in (first, name))
            if not np.array_equal(one, other, equal_nan=True):
                raise BadInput(
                    f"its arrays {first!r} and {name!r} differ, which are equal in initial_arrays, as one array under "
                    "two names is: start two arrays from different values, or tie them in the clients"
                )
        return x

    def update(self, reply: Message, sent: Vector, name: str) -> Rows:
        """Return (1, p): the model of a client's reply minus the one sent (p,), for the computation of that name.

        Strategies of gradients get the negative update for one, and a search for a clip its `octaves` (1, OCTAVES). It
        may hold numbers that are not finite, and does if the reply is near zero against the model sent.
        Raises `BadInput` if the reply holds no such model.
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
        if name == "update_octaves":
            return octaves(update[None])
        return (update if name == "local_update" else -update)[None]

    def record(self, x: Vector) -> ArrayRecord:
        """Return the model of a vector, with the initial names, types and shapes, clipped to what a type holds."""
        arrays = ArrayRecord()
        for name, array in self._initial.items():
            part = self._parts.get(name)
            if part is None:
                arrays[name] = arrays[self._tied[name]] if name in self._tied else array
                continue
            largest = float(np.finfo(part.dtype).max)
            values = np.clip(x[part.where], 0.0 if part.nonnegative else -largest, largest)
            arrays[name] = Array(values.astype(part.dtype).reshape(part.shape))
        return arrays

    def moved(self, sent: Vector, by: Vector) -> ArrayRecord:
        """Return the model of ``sent + by`` for a model sent, with no entry further from there than by so much.

        Where a type would round it further away, it rounds it back.
        """
        arrays = self.record(sent + by)
        for name, part in self._parts.items():
            start, rounded = sent[part.where], arrays[name].numpy().reshape(-1)
            further = np.abs(rounded.astype(np.float64) - start) > np.abs(by[part.where])
            back = np.nextafter(rounded, start.astype(part.dtype))
            arrays[name] = Array(np.where(further, back, rounded).reshape(part.shape))
        return arrays


def _decoded(name: str, array: Array, shape: tuple[int, ...] | None = None) -> NDArray[np.generic]:
    with untrusted(f"its array {name!r} cannot be used: send plain numbers, in the shape of the model's"):
        return read_array(array, "it", "fiub", shape)
