"""Follow-up of people as periods at risk: the rows of a model of hazards by period, as many for everybody."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.coefficients import CoefficientMap
from userdp.data.tables.cells import Rows, cell_text
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.numeric import Numeric
from userdp.data.tables.unusable import MISSING, NOT_POSITIVE, Counts
from userdp.errors import BadInput

Integers = NDArray[np.int64]


class AtRisk(Numeric):
    """Features of columns, then K numbers of which one, the period's, is 1, and a last one: 1 in a period at risk."""

    told = "periods of follow-up"
    keys = Numeric.keys | {"survival"}
    batched = False

    def __init__(self, declared: Declaration) -> None:
        super().__init__(declared)
        assert declared.survival is not None
        self.follow_up = form = declared.survival
        form.check()
        if taken := sorted({*form.columns} & {*self.inputs}):
            raise BadInput(
                f"survival names {taken[0]!r}, and a feature is made of it, which would reveal a person's end"
            )
        if self._term is not None:
            raise BadInput("exposure and offset have no meaning for survival: leave them out")
        self.text = self.text | {form.event}
        self.largest_norm += 2.0

    @property
    def shape(self) -> dict[str, Any]:
        first = len(self.names)
        last = first + self.follow_up.count
        return {**super().shape, "columns": last + 1, "periods": (first, last)}

    def coefficients(self, intercept: bool) -> CoefficientMap:
        """See `Numeric.coefficients`: in the intercept's place is one level for each period."""
        plain, k, count = super().coefficients(intercept=True), len(self.names), self.follow_up.count
        own = len(plain.names) - 1
        of_model, model_of = np.zeros((own + count, k + count + 1)), np.zeros((k + count + 1, own + count))
        of_model[:own, :k], of_model[own:, :k] = plain.of_model[:-1, :k], plain.of_model[-1, :k]
        model_of[:k, :own], model_of[k:-1, :own] = plain.model_of[:-1, :-1], plain.model_of[-1, :-1]
        of_model[own:, k:-1] = model_of[k:-1, own:] = np.eye(count)
        of_model[own:, -1] = 1.0
        edges = [f"{edge:g}" for edge in self.follow_up.periods]
        return CoefficientMap(
            (*plain.names[:-1], *(f"period {one} to {other}" for one, other in pairwise(edges))),
            (*plain.units[:-1], *plain.units[-1:] * count),
            np.append(plain.spans[:-1], np.zeros(count)),
            of_model,
            model_of,
            np.zeros(own + count),
        )

    def features(self, table: Rows, rows: Integers, counts: Counts) -> NDArray[np.float32]:
        """See `SampleKind`; of no period, for predictions of a whole follow-up."""
        made = super().features(table, rows, counts)
        empty = np.zeros((len(rows), self.follow_up.count), np.float32)
        return np.hstack([made, empty, np.ones((len(rows), 1), np.float32)])


class Periods:
    """Every user's K samples: those of periods at risk, and others of zeros, which add nothing to sums and gradients.

    *Formal guarantees.* *Claim.* A user's samples depend on that user's rows and their order alone, are K whatever they
    hold, and a user's average over them is the sum over its periods at risk over the public K. *Why.* Rows are sorted
    within their user; K is declared; a sample of zeros has the score 0 at every model, and a gradient of zero.

    *Why not the user's own average.* The number of periods at risk depends on the outcome. With a constant hazard h and
    K = 2 the mean of own averages is ``h (3 - h) / 2``: half as much again for small h. Over K, the mean slope at the
    true hazards is zero, as each period's event less its hazard has mean zero given what came before.

    A period without a usable feature counts like one that is not at risk; a user without any usable period has none.
    ``owner`` (N,) is the user 0..U-1 of each row; every user has one.
    """

    def __init__(self, table: Rows, kind: AtRisk, owner: Integers, counts: Counts) -> None:
        self._table, self._kind, self._counts, form = table, kind, counts, kind.follow_up
        time, event = table.numbers[form.time], table.texts[form.event]
        begin = None if form.start is None else table.numbers[form.start]
        wanted = cell_text(form.happened)
        meanings = np.array([-1 if text == "" else text == wanted for text in event.distinct])[event.positions]
        for column in (form.time, form.start):
            if column is not None:
                counts.note_kind(column, table.kinds.get(column))
                counts.unusable[column] = int(np.count_nonzero(np.isnan(table.numbers[column])))
        other = NOT_POSITIVE if any(event.distinct) else MISSING
        counts.note_kind(form.event, None if wanted and wanted in event.distinct else other)
        counts.unusable[form.event] = int(np.count_nonzero(meanings < 0))
        self._row, self._event = form.at_risk(owner, begin, time, meanings)
        self.sizes: Integers = np.full(len(self._row), form.count)

    def samples(self, chosen: Integers) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (S, k + K + 1) features and (S,) targets of samples; sample k of user u is ``u K + k``."""
        users, place = np.divmod(chosen, self._row.shape[1])
        rows = self._row[users, place]
        own, of_own = np.unique(rows[rows >= 0], return_inverse=True)
        made = self._kind.features(self._table, own, self._counts)
        good = np.full(rows.shape, False)
        good[rows >= 0] = np.asarray(np.isfinite(made).all(axis=1))[of_own]
        features = np.zeros((len(chosen), made.shape[1]), dtype=np.float32)
        features[good] = made[np.searchsorted(own, rows[good])]
        features[np.flatnonzero(good), len(self._kind.names) + place[good]] = 1.0
        targets = np.where(good, self._event[users, place], False).astype(np.float32)
        nobody = np.bincount(users, good)[users] == 0
        features[nobody], targets[nobody] = np.nan, np.nan
        return features, targets
