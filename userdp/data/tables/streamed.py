"""Tables larger than memory: a Parquet file is read in batches, twice, and its samples go to a temporary file.

The first pass reads the user column, which determines the place of each row's sample. The second reads all columns in
batches, as a table in memory is read. A batch's samples are appended to their part of the file, 16 MiB long; finally
each part is sorted in memory, so that the disk sees long pieces only.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.federation import BLOCK_BYTES
from userdp.data.stored import SampleFile, Samples, StoredFederation
from userdp.data.tables.cells import Rows, Texts
from userdp.data.tables.columns import Columns
from userdp.data.tables.reading import row_batches
from userdp.data.tables.targets import targets_of
from userdp.data.tables.unusable import Counts
from userdp.errors import BadInput

log = logging.getLogger("userdp")
MEMORY_MIB = 512
"""Default limit on a Parquet file's samples in memory; reading them takes about five times that."""
_OWNER_ROWS = 1 << 18
_SECONDS_A_LINE = 30.0


def outgrows(path: Path, columns: Columns, memory: int) -> bool:
    """Return whether a Parquet file's samples, one a row, take more than ``memory`` MiB and can be read in batches."""
    if path.suffix.lower() != ".parquet" or not columns.samples.batched or columns.term is not None:
        return False
    try:
        rows = int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return False  # reading the file raises the error
    return rows * 4 * (columns.shape.columns + (columns.target is not None)) > memory << 20


def read_owners(path: Path, columns: Columns) -> Rows:
    """Read the user column and the split column alone; raise as `userdp.data.tables.reading.read_columns` does."""
    names = [name for name in (columns.user, columns.split_column) if name is not None]
    numbers: dict[str, dict[str, int]] = {name: {} for name in names}
    parts: dict[str, list[NDArray[np.int32]]] = {name: [] for name in names}
    for batch in row_batches(path, columns, names, _OWNER_ROWS):
        for name, texts in batch.texts.items():
            known = numbers[name]
            own = texts.mapped(known.setdefault(text, len(known)) for text in texts.distinct)
            parts[name].append(own.astype(np.int32))
    whole = {name: Texts(list(numbers[name]), np.concatenate(parts[name], dtype=np.int64)) for name in names}
    return Rows(len(whole[columns.user].positions), whole, {}, {}, {})


def stored_federation(
    path: Path, columns: Columns, count: int, rows: NDArray[np.int64], offsets: NDArray[np.int64], counts: Counts
) -> StoredFederation:
    """Make users' samples batch by batch and put them into a temporary file.

    *Formal guarantee*: the samples, bit for bit, and the counts are those of the table read in memory: each sample is
    made of its own row's cells by `SampleKind.features` and `targets_of`, and lies at its place in ``rows``.

    The file has ``count`` rows, by `read_owners`; ``rows`` (S,) are those of the samples, user after user, cut by
    ``offsets`` (n + 1,).

    Raises `BadInput` for a file or column that cannot be used, a file that has changed since, or too little room in the
    temporary folder.
    """
    file = SampleFile(len(rows), columns.shape.columns, columns.samples.number, columns.target is not None)
    log.info("the samples of %s go to a temporary file, for they are larger than data.memory", path.name)
    length = max(1, BLOCK_BYTES // file.sample_bytes)
    ends = np.arange(0, len(rows), length)
    for parts, samples in _samples_by_part(path, columns, count, rows, length, counts):
        touched, starts = np.unique(parts, return_index=True)
        borders = [*starts.tolist(), len(parts)]
        for part, first, last in zip(touched.tolist(), borders, borders[1:], strict=False):
            file.write(int(ends[part]), _cut(samples, slice(first, last)))
            ends[part] += last - first
    for start in range(0, len(rows), length):
        here = rows[start : start + length]
        order = np.empty(len(here), dtype=np.int64)
        order[np.argsort(here)] = np.arange(len(here))
        file.write(start, _cut(file.read(start, start + len(here)), order))
    pa.default_memory_pool().release_unused()  # memory of the batches, which rounds need
    return StoredFederation(file, offsets)


def _samples_by_part(
    path: Path, columns: Columns, count: int, rows: NDArray[np.int64], length: int, counts: Counts
) -> Iterator[tuple[NDArray[np.int32], Samples]]:
    """Yield, for each batch, the rising numbers (N,) of the samples' parts of the file, and the N samples."""
    parts = np.full(count, -1, dtype=np.int32)
    parts[rows] = np.arange(len(rows)) // length
    names = list(dict.fromkeys([*columns.inputs, *([] if columns.target is None else [columns.target])]))
    wide = max(8 * len(names), 4 * columns.shape.columns)
    start, logged = 0, time.monotonic()
    for batch in row_batches(path, columns, names, max(1, BLOCK_BYTES // wide)):
        here, own = parts[start : start + batch.count], Counts()
        chosen = np.argsort(here, kind="stable")[np.count_nonzero(here < 0) :]
        features = cast("NDArray[np.generic]", columns.samples.features(batch, chosen, own))
        yield here[chosen], (features, targets_of(batch, columns, chosen, own))
        counts.add(own)
        start += batch.count
        if time.monotonic() > logged + _SECONDS_A_LINE:
            logged = time.monotonic()
            log.info("%d of the table's %d rows are read", start, count)
    if start != count:
        raise BadInput(f"the data file {path} changed while it was read; start again once it is complete")


def _cut(samples: Samples, where: slice | NDArray[np.int64]) -> Samples:
    features, targets = samples
    return features[where], None if targets is None else targets[where]
