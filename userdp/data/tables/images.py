"""Samples that are pictures: a column of raw bytes, one for each pixel."""

from math import prod
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.cells import Rows, bytes_in
from userdp.data.tables.counts import WRONG_LENGTH, Counts
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.sample_kinds import SampleKind
from userdp.errors import BadInput


class Images(SampleKind):
    """A picture for each row."""

    told = "images"
    keys = frozenset({"images", "image_shape"})

    def __init__(self, declared: Declaration) -> None:
        column, shape = str(declared.images), declared.image_shape
        if shape is None:
            raise BadInput(f"image_shape is missing: declare how many bytes a cell of {column!r} has, such as [28, 28]")
        if not shape or min(shape) < 1:
            raise BadInput(f"image_shape = {shape}: must be whole numbers of at least 1, such as [28, 28]")
        self.columns, self.raw, self.pixels = [column], {column}, prod(shape)

    @property
    def shape(self) -> dict[str, Any]:
        return {"columns": self.pixels, "bound": 1.0, "feature_norm": float(self.pixels)}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32]:
        (column,) = self.columns
        features = pixels(table.cells[column], rows, self.pixels)
        unusable = np.isnan(features[:, 0])
        counts.unusable[column] = int(np.count_nonzero(unusable))
        if len(rows):
            counts.note_kind(column, WRONG_LENGTH if unusable.all() else None)
        return features


def pixels(cells: pa.LargeBinaryArray, rows: NDArray[np.int64], length: int) -> NDArray[np.float32]:
    """Return the pictures of the chosen rows (N,), bytes divided by 255: (N, length) in [0, 1].

    *Formal guarantee*: a row of the result depends on its own cell alone, to the last bit; IEEE 754 rounds quotients
    exactly. A cell that is missing or not ``length`` bytes long gives a row of NaN, which problems set aside.
    """
    chosen = cells.take(pa.array(rows))
    whole = pc.fill_null(pc.equal(pc.binary_length(chosen), length), False)
    features = np.full((len(rows), length), np.nan, dtype=np.float32)
    features[whole.to_numpy(zero_copy_only=False)] = bytes_in(chosen.filter(whole)).reshape(-1, length)
    features /= np.float32(255)
    return features
