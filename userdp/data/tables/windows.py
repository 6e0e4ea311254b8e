"""Sequences of codes: every user's steps in order, cut into windows of one length."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.characters import character_codes
from userdp.data.tables.counts import Counts
from userdp.data.tables.features import codes_of
from userdp.data.tables.reading import Rows
from userdp.data.tables.sequences import SequenceColumns
from userdp.errors import BadInput

PADDING = -1
"""In every channel of a step after a sequence's end."""
_BLOCK_STEPS = 1 << 20
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Channel:
    """The codes of one channel.

    Attributes:
        codes: of a column of single cells (N,), and every step of a row has its row's code. Otherwise (S + 1,) those of
            every row's own steps, row after row, and last the code of a step beyond them.
        ends: (N + 1,) where in ``codes`` rows begin and end; None for single cells.
    """

    codes: NDArray[np.integer[Any]]
    ends: Integers | None

    def steps(self, rows: Integers, places: Integers) -> NDArray[np.integer[Any]]:
        """The codes of steps, each given by its row and its place within the row."""
        if self.ends is None:
            return self.codes[rows]
        found = self.ends[rows] + places
        return self.codes[np.where(found < self.ends[rows + 1], found, len(self.codes) - 1)]


class Windows:
    """Every user's rows as windows.

    A user's rows, in their order, are steps one after the other: a row is one step, or as many as the predicted cell's
    list has items, or its text characters, with a newline between rows. Windows are cut from the user's first step on;
    whoever has no step at all has one window of padding.

    *Formal guarantee*: a user's windows depend on that user's rows and on how these lie to each other in the file, and
    on nothing else. Rows are sorted by user first and within a user by a stable sort; a cell's codes follow from that
    cell (`codes_of`, `character_codes`); steps are counted from the user's own first one; and each step is written to a
    place of its own window. No cell is refused: one that is no level has the channel's last code, a row without a
    number in the order's column is sorted last.

    Args:
        table: the file's N rows.
        form: what is declared of their columns.
        owner: (N,) the user 0..U-1 of each row; every user has one.
        counts: gets what is counted.

    Attributes:
        sizes: (U,) windows of each user, at least one.

    Raises:
        BadInput: a column of lists beside a predicted one of single cells.
    """

    def __init__(self, table: Rows, form: SequenceColumns, owner: Integers, counts: Counts) -> None:
        self._form, self._counts, self._channels = form, counts, _channels(table, form, counts)
        keys = (owner,) if form.order is None else (table.numbers[form.order], owner)
        self._rows = np.lexsort(keys)
        users = owner[self._rows]
        last = np.append(users[1:] != users[:-1], True)
        steps = _row_steps(table, form, self._channels)[self._rows] - (last if form.text is not None else 0)
        self._starts = np.concatenate([[0], np.cumsum(steps)])
        rows = np.flatnonzero(last) + 1
        ends = self._starts[rows]
        self._users, self._first_step = users, np.concatenate([[0], ends[:-1]])
        self.sizes: Integers = np.maximum(1, -(-(ends - self._first_step) // form.window))

    def features(self, windows: Integers) -> NDArray[np.int32]:
        """The chosen windows, numbered user after user.

        Args:
            windows: (n,) numbers, each once.

        Returns:
            (n, L*C) codes, step after step and within a step channel after channel; `PADDING` after the end.
        """
        length, channels = self._form.window, list(self._channels.values())
        made = np.full((len(windows), length, len(channels)), PADDING, dtype=np.int32)
        place_of = np.full(int(self.sizes.sum()), -1, dtype=np.int64)
        place_of[windows] = np.arange(len(windows))
        first_window = np.cumsum(self.sizes) - self.sizes
        for rows, places, steps in self._steps():
            users = self._users[rows]
            since = steps - self._first_step[users]
            window = place_of[first_window[users] + since // length]
            kept = window >= 0
            where, step = window[kept], since[kept] % length
            of, place = self._rows[rows[kept]], places[kept]
            for number, channel in enumerate(channels):
                made[where, step, number] = channel.steps(of, place)
        for number, (name, count) in enumerate(zip(self._channels, self._form.code_counts, strict=True)):
            codes = made[:, :, number]
            self._counts.steps[name] = int(np.count_nonzero(codes != PADDING))
            self._counts.unknown[name] = int(np.count_nonzero(codes == count - 1))
        return made.reshape(len(windows), length * len(channels))

    def _steps(self) -> Iterator[tuple[Integers, Integers, Integers]]:
        """All steps of all users, block after block: (position of the row, place within it, number of the step)."""
        starts, total = self._starts, int(self._starts[-1])
        for first in range(0, total, _BLOCK_STEPS):
            last = min(first + _BLOCK_STEPS, total)
            low, high = np.searchsorted(starts, [first, last - 1], side="right") - 1
            here = np.arange(low, high + 1)
            each = np.minimum(starts[here + 1], last) - np.maximum(starts[here], first)
            rows, steps = np.repeat(here, each), np.arange(first, last)
            yield rows, steps - starts[rows], steps


def _channels(table: Rows, form: SequenceColumns, counts: Counts) -> Mapping[str, _Channel]:
    """Column -> its channel, the predicted one last."""
    found = {}
    for name, levels in form.channels.items():
        if name == form.text:
            found[name] = _text(table, name, form.alphabet or "", counts)
            continue
        other = levels if isinstance(levels, int) else len(levels)
        codes = codes_of(table, name, levels, counts)
        codes = np.where(codes < 0, other, codes).astype(np.int32)
        lengths = table.lengths.get(name)
        if lengths is None:
            found[name] = _Channel(codes, None)
        elif name != form.predict and form.predict not in table.lengths:
            raise BadInput(f"column {name!r} holds lists and {form.predicted!r} does not; predict a column of lists")
        else:
            found[name] = _Channel(np.append(codes, np.int32(other)), np.concatenate([[0], np.cumsum(lengths)]))
    return found


def _text(table: Rows, name: str, alphabet: str, counts: Counts) -> _Channel:
    """Characters, and beyond a row's last one a newline."""
    codes, ends = character_codes(table.cells[name], alphabet)
    counts.note_levels(name, "sequence.alphabet", codes < len(alphabet))
    newline = alphabet.find("\n")
    return _Channel(np.append(codes, codes.dtype.type(newline if newline >= 0 else len(alphabet))), ends)


def _row_steps(table: Rows, form: SequenceColumns, channels: Mapping[str, _Channel]) -> Integers:
    """(N,) steps of each row, of text the newline after it included."""
    if form.predict is not None:
        return table.lengths.get(form.predict, np.ones(table.count, dtype=np.int64))
    ends = channels[form.predicted].ends
    return np.diff(np.zeros(1, dtype=np.int64) if ends is None else ends) + 1
