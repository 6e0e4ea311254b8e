"""Samples that are sequences of codes: windows of a user's steps, or the first tokens of texts with a target."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.shape import Sequence as SequenceShape
from userdp.data.tables.cells import Rows
from userdp.data.tables.counts import MISSING, Counts
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.sample_kinds import SampleKind
from userdp.data.tables.texts import text_rows
from userdp.errors import BadInput


class Steps(SampleKind):
    """Windows of a user's steps: `userdp.data.tables.windows.Windows` makes them of all rows of a user together."""

    told = "a sequence"
    keys = frozenset({"sequence"})
    number = np.int32
    batched = False

    def __init__(self, declared: Declaration) -> None:
        assert declared.sequence is not None
        self.form = self.windows = form = declared.sequence
        form.check()
        self.columns, self.text = form.columns, form.listed
        self.channels, self.raw = form.channels, {name for name in [form.text] if name is not None}

    @property
    def names(self) -> Sequence[str]:
        return list(self.channels)

    @property
    def shape(self) -> dict[str, Any]:
        steps, levels = self.form.window, self.form.code_counts
        sequence = SequenceShape(steps, levels)
        return {"columns": steps * len(levels), "sequence": sequence, "tokenizer": self.form.tokenizer}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
        raise BadInput(
            "data.sequence makes windows of a user's rows, so nothing is predicted row by row; evaluate other users"
        )


class LabelledTexts(Steps):
    """The first tokens of the text in each row, which has a target."""

    def __init__(self, declared: Declaration) -> None:
        super().__init__(declared)
        given, form, self.windows = f"target = {declared.target!r}", self.form, None
        if form.tokenizer is None:
            raise BadInput(
                f"{given}: a sequence predicts a column of its own; leave target out, or give sequence.tokenizer, so "
                "that each row is a text with a target"
            )
        for name, value in (("order", form.order), ("inputs", form.inputs)):
            if value:
                raise BadInput(f"{given} makes each row a sample of its own: leave sequence.{name} out")

    @property
    def shape(self) -> dict[str, Any]:
        steps, (tokens,) = self.form.window, self.form.code_counts
        return {"columns": steps, "code_levels": (tokens + 1,) * steps, "tokenizer": self.form.tokenizer}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
        form, name = self.form, self.form.predicted
        cells = table.cells[name].take(pa.array(rows))
        features, counts.clipped[name] = text_rows(cells, str(form.tokenizer), form.window)
        unusable = features[:, 0] < 0
        counts.unusable[name] = int(np.count_nonzero(unusable))
        if len(rows):
            counts.note_kind(name, MISSING if unusable.all() else None)
        return features
