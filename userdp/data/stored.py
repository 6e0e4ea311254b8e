"""Users whose samples lie in a temporary file, for tables larger than memory; blocks are read on demand.

The file has no name: nobody else can open it, and the system removes it when its last holder ends, even by a crash, so
that no copy of people's data stays behind. It is read by position, not mapped: mappings count towards address limits.
"""

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from userdp.data.block import Block
from userdp.data.federation import BLOCK_BYTES, Federation, checked_users
from userdp.errors import BadInput

_KEY_BYTES = 16
_GAP_BYTES = 1 << 16
"""A gap of at most this size between two users is read too: copying it takes as long as another call."""
Samples = tuple[NDArray[np.generic], NDArray[np.float32] | None]
"""(N, k) features, and (N,) targets or None."""


class SampleFile:
    """Samples in a file without a name: all features, all targets, and a key that identifies the file.

    A copy by pickle reads the same file in another process of this machine, as long as the first holder lives. Too
    little room in the temporary folder, or a failure of the disk, raises `BadInput`.
    """

    def __init__(self, samples: int, columns: int, kind: DTypeLike, targets: bool) -> None:
        self.samples, self.columns, self.kind, self.targets = samples, columns, np.dtype(kind), targets
        self._row_bytes = columns * self.kind.itemsize
        self._targets_start, self.sample_bytes = samples * self._row_bytes, self._row_bytes + 4 * targets
        self._key, self._path = secrets.token_bytes(_KEY_BYTES), ""
        self._file: IO[bytes] | None = None
        self._folder = "the temporary folder"
        try:
            self._folder = tempfile.gettempdir()
            free = shutil.disk_usage(self._folder).free
            self._hold(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 -- open while self lives
        except OSError as error:
            raise BadInput(f"{self._advice}: it cannot be written ({type(error).__name__})") from None
        needed = samples * self.sample_bytes + _KEY_BYTES
        if needed > free:
            raise BadInput(f"{self._advice}: samples take {needed >> 20} MiB, and {free >> 20} MiB are free there")
        self._move(samples * self.sample_bytes, np.frombuffer(self._key, dtype=np.uint8), write=True)

    def write(self, start: int, samples: Samples) -> None:
        """Write samples from position ``start`` on."""
        features, targets = samples
        self._move(start * self._row_bytes, features, write=True)
        if targets is not None:
            self._move(self._targets_start + start * 4, targets, write=True)

    def read(self, start: int, stop: int) -> Samples:
        """Read samples ``start:stop``."""
        features = np.empty((stop - start, self.columns), dtype=self.kind)
        targets = np.empty(stop - start, dtype=np.float32) if self.targets else None
        self.read_into(start, (features, targets))
        return features, targets

    def read_into(self, start: int, samples: Samples) -> None:
        """Fill ``samples`` with the samples from ``start`` on."""
        features, targets = samples
        self._move(start * self._row_bytes, features, write=False)
        if targets is not None:
            self._move(self._targets_start + start * 4, targets, write=False)

    @property
    def _advice(self) -> str:
        return (
            f"the table is larger than data.memory, so its samples go to a temporary file in {self._folder} (set "
            "TMPDIR to a folder with more room, or raise data.memory)"
        )

    def _move(self, position: int, values: NDArray[np.generic], *, write: bool) -> None:
        """Write a contiguous array, or fill it, from this position of the file on, without a copy."""
        left, doing = values.reshape(-1).view(np.uint8).data, "writing" if write else "reading"
        while len(left):
            try:
                file = self._handle()
                done = os.pwrite(file, left, position) if write else os.preadv(file, [left], position)
            except OSError as error:
                raise BadInput(f"{self._advice}: {doing} fails ({error.strerror})") from None
            if not done:
                raise BadInput(f"{self._advice}: {doing} fails (it is cut short)")
            left, position = left[done:], position + done

    def _handle(self) -> int:
        """Return the open file; a copy opens it on first use, unless its first holder is gone or remote."""
        if self._file is None:
            try:
                there = self._hold(Path(self._path).open("rb", buffering=0))  # noqa: SIM115 -- open while self lives
                key = os.pread(there, _KEY_BYTES + 1, self.samples * self.sample_bytes)
            except OSError:
                key = b""
            if key != self._key:
                self._file = None
                raise BadInput(
                    "the table is larger than data.memory, so its samples lie in a temporary file of the process that "
                    "read it, which this process cannot open: use engine.kind = 'local', or actors on the same Linux "
                    "machine, or raise data.memory"
                )
            return there
        return self._file.fileno()

    def _hold(self, file: IO[bytes]) -> int:
        weakref.finalize(self, file.close)
        self._file = file
        return file.fileno()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None, "_path": self._path or f"/proc/{os.getpid()}/fd/{self._handle()}"}


class StoredFederation(Federation):
    """Users whose samples lie in a file; user u owns samples ``offsets[u]:offsets[u + 1]``, ``offsets`` (n + 1,)."""

    stored = True

    def __init__(self, file: SampleFile, offsets: NDArray[np.int64]) -> None:
        self._file, self._offsets = file, offsets
        self.sizes = np.diff(offsets)
        self.columns, self.sample_bytes = file.columns, file.sample_bytes

    def block(self, users: NDArray[np.int64]) -> Block:
        """See `Federation.block`; samples are read in pieces of 16 MiB or one user, adjacent users together."""
        users = checked_users(users, self.users)
        sizes, starts = self.sizes[users], self._offsets[users]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        features = np.empty((offsets[-1], self.columns), dtype=self._file.kind)
        targets = np.empty(offsets[-1], dtype=np.float32) if self._file.targets else None
        for first, last in self._pieces(starts, starts + sizes):
            here = slice(offsets[first], offsets[last])
            low, high = int(starts[first]), int(starts[last - 1] + sizes[last - 1])
            own = features[here], None if targets is None else targets[here]
            if high - low == len(own[0]):
                self._file.read_into(low, own)
                continue
            # Within the piece: a sample's place among the requested ones, plus the skipped samples before it.
            skipped = starts[first:last] - low - (offsets[first:last] - offsets[first])
            rows = np.arange(len(own[0])) + np.repeat(skipped, sizes[first:last])
            read = self._file.read(low, high)
            own[0][:] = read[0][rows]
            if own[1] is not None and read[1] is not None:
                own[1][:] = read[1][rows]
        return Block(features, offsets, targets)

    def _pieces(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield runs ``first:last`` of users that are read together, from their positions in the file."""
        gaps = (starts[1:] - ends[:-1]) * self.sample_bytes
        runs = np.flatnonzero((gaps < 0) | (gaps > _GAP_BYTES)) + 1
        most, first = max(1, BLOCK_BYTES // self.sample_bytes), 0
        for stop in [*runs.tolist(), len(starts)]:
            while first < stop:
                last = first + int(np.searchsorted(ends[first:stop], starts[first] + most, side="right"))
                last = max(first + 1, last)
                yield first, last
                first = last
