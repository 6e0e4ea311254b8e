"""Sequences of codes: every user's steps in order, in windows of one length; a step is a cell, character or token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Rows
from userdp.data.tables.codes import codes_of
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.texts import character_codes, separator, token_codes
from userdp.data.tables.unusable import MISSING, NO_LEVEL, Counts
from userdp.errors import BadInput

PADDING = -1
"""The code, in every channel, of a step after a sequence's end."""
_BLOCK_STEPS = 1 << 20
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Channel:
    """The codes of one channel.

    For single cells, ``ends`` is None and ``codes`` (N,) holds each row's code. Otherwise ``codes`` (S + 1,) holds
    those of every row's steps, cut by ``ends`` (N + 1,), and last that of a step beyond them.
    """

    codes: NDArray[np.integer[Any]]
    ends: Integers | None

    def steps(self, rows: Integers, places: Integers) -> NDArray[np.integer[Any]]:
        """Return the codes of steps, each given by its row and its place within the row."""
        if self.ends is None:
            return self.codes[rows]
        at = self.ends[rows] + places
        return self.codes[np.where(at < self.ends[rows + 1], at, len(self.codes) - 1)]


class Windows:
    """Every user's rows as windows.

    A user's rows, in their order, are steps one after the other: a row is one step, or one step per item of the
    predicted cell's list, or one per character of its text, with a newline between rows, or one per token of it, with
    the token that ends a text between rows. Windows are cut from the user's first step on; a user without any step has
    one window of padding.

    *Formal guarantee*: a user's windows depend only on that user's rows and their order in the file. Rows are sorted by
    user first and within a user by a stable sort; a cell's codes follow from that cell (`codes_of`, `character_codes`,
    `token_codes`); and a window takes steps between its user's first and last one alone. No cell is refused: one that
    is no level has the channel's last code, a row without a number in the order's column is sorted last.

    ``owner`` (N,) is the user 0..U-1 of each row; every user has one. ``sizes`` (U,) are the windows of each user, at
    least one. A column of lists beside a predicted one of single cells raises `BadInput`.
    """

    def __init__(self, table: Rows, form: SequenceColumns, owner: Integers, counts: Counts) -> None:
        self._form, self._counts, self._channels = form, counts, _channels(table, form, counts)
        keys = (owner,) if form.order is None else (table.numbers[form.order], owner)
        self._rows = np.lexsort(keys)
        users = owner[self._rows]
        last = np.append(users[1:] != users[:-1], True)
        steps = _row_steps(table, form, self._channels)[self._rows] - (last if form.text is not None else 0)
        self._starts = np.concatenate([[0], np.cumsum(steps)])
        self._ends = self._starts[np.flatnonzero(last) + 1]
        self._first_step = np.concatenate([[0], self._ends[:-1]])
        self.sizes: Integers = np.maximum(1, -(-(self._ends - self._first_step) // form.window))

    def features(self, windows: Integers) -> NDArray[np.int32]:
        """Return (n, L*C) codes of distinct windows (n,): step by step, channel by channel; `PADDING` after the end."""
        length, channels = self._form.window, list(self._channels.values())
        features = np.full((len(windows), length, len(channels)), PADDING, dtype=np.int32)
        first_window = np.cumsum(self.sizes) - self.sizes
        users = np.searchsorted(first_window, windows, side="right") - 1
        first_step = self._first_step[users] + length * (windows - first_window[users])
        at_once = max(1, _BLOCK_STEPS // length)
        for here in (slice(first, first + at_once) for first in range(0, len(windows), at_once)):
            every = first_step[here, None] + np.arange(length)
            there = every < self._ends[users[here], None]
            steps = every[there]
            rows = np.searchsorted(self._starts, steps, side="right") - 1  # the last to start there is not empty
            places = steps - self._starts[rows]
            for number, channel in enumerate(channels):
                features[here, :, number][there] = channel.steps(self._rows[rows], places)
        for number, (name, count) in enumerate(zip(self._channels, self._form.code_counts, strict=True)):
            codes = features[:, :, number]
            self._counts.steps[name] = int(np.count_nonzero(codes != PADDING))
            if not self._form.has_tokens(name):
                self._counts.unknown_levels[name] = int(np.count_nonzero(codes == count - 1))
        return features.reshape(len(windows), length * len(channels))


def _channels(table: Rows, form: SequenceColumns, counts: Counts) -> Mapping[str, _Channel]:
    channels = {}
    for name, levels in form.channels.items():
        if name == form.text:
            channels[name] = _text(table, name, form, counts)
            continue
        other = levels if isinstance(levels, int) else len(levels)
        codes = codes_of(table, name, levels, counts)
        codes = np.where(codes < 0, other, codes).astype(np.int32)
        lengths = table.lengths.get(name)
        if lengths is None:
            channels[name] = _Channel(codes, None)
        elif name != form.predict and form.predict not in table.lengths:
            raise BadInput(f"column {name!r} holds lists and {form.predicted!r} does not; predict a column of lists")
        else:
            channels[name] = _Channel(np.append(codes, np.int32(other)), np.concatenate([[0], np.cumsum(lengths)]))
    return channels


def _text(table: Rows, name: str, form: SequenceColumns, counts: Counts) -> _Channel:
    """Return the channel of a column's characters or tokens, with what joins rows beyond a row's last one."""
    if form.tokenizer is not None:
        codes, ends = token_codes(table.cells[name], form.tokenizer)
        counts.note_kind(name, None if len(codes) else MISSING)
        between = separator(form.tokenizer)
    else:
        alphabet = form.alphabet or ""
        codes, ends = character_codes(table.cells[name], alphabet)
        counts.note_kind(name, None if (codes < len(alphabet)).any() else NO_LEVEL if len(codes) else MISSING)
        newline = alphabet.find("\n")
        between = newline if newline >= 0 else len(alphabet)
    return _Channel(np.append(codes, codes.dtype.type(between)), ends)


def _row_steps(table: Rows, form: SequenceColumns, channels: Mapping[str, _Channel]) -> Integers:
    """Return the steps of each row (N,), for text including the newline after it."""
    if form.predict is not None:
        return table.lengths.get(form.predict, np.ones(table.count, dtype=np.int64))
    ends = channels[form.predicted].ends
    return np.diff(np.zeros(1, dtype=np.int64) if ends is None else ends) + 1
