"""Tables larger than memory: a Parquet file is read in batches, twice, and its samples go to a temporary file.

First the user column alone: who owns each row, and so where its sample belongs. Then all columns, batch by batch, by
the functions that read a table in memory. What a row becomes depends on its own cells alone, so where a batch ends
changes no bit. Memory holds some numbers a row, which say whose it is, and a few blocks of samples.

Rows may come in any order of users. Samples of a batch are written into their part of the file, 16 MiB long, in the
order of the table; once all are there, each part is put in order in memory. So the disk sees long pieces only.
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
from userdp.data.tables.cells import Texts
from userdp.data.tables.columns import Columns
from userdp.data.tables.counts import Counts
from userdp.data.tables.features import features_of
from userdp.data.tables.reading import Rows, row_batches
from userdp.data.tables.shapes import shape_of
from userdp.data.tables.targets import targets_of
from userdp.errors import BadInput

log = logging.getLogger("userdp")
MEMORY_MIB = 512
"""Samples of a Parquet file that are kept in memory unless told otherwise; reading them takes some five times that."""
_OWNER_ROWS = 1 << 18
_SECONDS_A_LINE = 30.0


def outgrows(path: Path, columns: Columns, memory: int) -> bool:
    """Whether the samples of a file, one a row, would take more than ``memory`` MiB and can be read in batches.

    So it is for Parquet, by the number of rows that the file says, but for sequences, which need all rows of a user
    together, and hashed codes, whose samples differ in size.
    """
    if path.suffix.lower() != ".parquet" or columns.sequence is not None or columns.buckets is not None:
        return False
    try:
        rows = int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return False  # whoever reads the file says what is wrong with it
    return rows * 4 * (shape_of(columns).columns + (columns.target is not None)) > memory << 20


def read_owners(path: Path, columns: Columns) -> Rows:
    """The columns that say whose each row is and who is held out, and no others.

    Raises:
        BadInput: see `userdp.data.tables.reading.read_columns`.
    """
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
    """Users whose samples are made batch by batch and put into a temporary file.

    *Formal guarantee*: the same samples, bit for bit, and the same counts as of the table read in memory: each is made
    of its own row's cells by `features_of` and `targets_of`, and lies where ``rows`` says.

    Args:
        path: a Parquet file.
        columns: what is declared of it.
        count: its rows, as `read_owners` found.
        rows: (S,) the row that each sample is made of, user after user.
        offsets: (n + 1,) user u owns samples ``offsets[u]:offsets[u + 1]``.
        counts: where cells are counted.

    Raises:
        BadInput: a file or column that cannot be used, a file that has changed since, or too little room in the
            temporary folder.
    """
    shape, kind = shape_of(columns), np.int32 if columns.codes is not None else np.float32
    file = SampleFile(len(rows), shape.columns, kind, columns.target is not None)
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
    pa.default_memory_pool().release_unused()  # what batches were read into; rounds need it
    return StoredFederation(file, offsets)


def _samples_by_part(
    path: Path, columns: Columns, count: int, rows: NDArray[np.int64], length: int, counts: Counts
) -> Iterator[tuple[NDArray[np.int32], Samples]]:
    """The samples of each batch of rows, by the part of the file that they belong to, then by row.

    Yields:
        ((N,) numbers of parts, which rise; N samples)

    Raises:
        BadInput: the file cannot be read, or has no longer ``count`` rows.
    """
    parts = np.full(count, -1, dtype=np.int32)
    parts[rows] = np.arange(len(rows)) // length
    names = list(dict.fromkeys([*columns.inputs, *([] if columns.target is None else [columns.target])]))
    wide = max(8 * len(names), 4 * shape_of(columns).columns)
    start, told = 0, time.monotonic()
    for batch in row_batches(path, columns, names, max(1, BLOCK_BYTES // wide)):
        here, own = parts[start : start + batch.count], Counts()
        chosen = np.argsort(here, kind="stable")[np.count_nonzero(here < 0) :]
        features = cast("NDArray[np.generic]", features_of(batch, columns, chosen, own))
        yield here[chosen], (features, targets_of(batch, columns, chosen, own))
        counts.add(own)
        start += batch.count
        if time.monotonic() > told + _SECONDS_A_LINE:
            told = time.monotonic()
            log.info("%d of the table's %d rows are read", start, count)
    if start != count:
        raise BadInput(f"the data file {path} changed while it was read; begin anew once it is complete")


def _cut(samples: Samples, where: slice | NDArray[np.int64]) -> Samples:
    features, targets = samples
    return features[where], None if targets is None else targets[where]
