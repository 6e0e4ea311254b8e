"""Facts that a run declares, found privately in a table: ranges, levels, the most samples of a user."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simulations.account.entering import accounts_at
from simulations.finding import grids
from simulations.finding.plan import FindPlan
from simulations.finding.settings import FindConfig
from userdp.accounting.costs import Cost, together
from userdp.accounting.guarantee import Guarantee
from userdp.accounting.ledger import check_drawn
from userdp.data.tables.cells import cell_number, numbers_of, texts_of
from userdp.data.tables.date_cells import MICROSECONDS_A_DAY, moments_of
from userdp.data.tables.ids import doubtful_ids, ids_of
from userdp.data.tables.reading import form_of, read_cells
from userdp.data.tables.tabular import owners_of
from userdp.errors import BadInput, PopulationTooSmall
from userdp.mechanisms.set_union import own_keys
from userdp.mechanisms.user_quantile import Grid
from userdp.noise import NoiseSource, rounding_slack
from userdp.randomness import stream
from userdp.streams import Streams

log = logging.getLogger("userdp")

Values = NDArray[np.float64]
COSTS = (
    "These facts were found in the table itself, and this cost adds to that of every run on the same people, which "
    "must have the same neighbouring relation: epsilons add up, and so do deltas."
)
_FINDING = 1 << 30  # The label of its streams, beside the rounds of runs with the same seed.


@dataclass(frozen=True)
class Found:
    """Facts found privately.

    Attributes:
        settings: keys of [data] -> their values, as a run declares them and as `userdp.train` takes them.
        guarantee: the promise for all facts together. It adds to that of every run on the same people.
        notes: sentences on facts that are less than was asked for.
        numbers: public numbers of the search: shares beyond the ends, users that a level needs.
    """

    settings: Mapping[str, Any]
    guarantee: Guarantee
    notes: tuple[str, ...]
    numbers: Mapping[str, float]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """(fact, column, value) of each fact, as text for people."""
        return [
            (name, column, ", ".join(map(str, one)) if isinstance(one, list) else str(one))
            for name, value in self.settings.items()
            for column, one in (value.items() if isinstance(value, Mapping) else [("", value)])
        ]

    def __repr__(self) -> str:
        table = pd.DataFrame(self.rows, columns=["fact", "column", "value"]).to_string(index=False)
        return "\n".join([table, f"Guarantee: {self.guarantee}", f"  {COSTS}", *(f"Note: {one}" for one in self.notes)])


def find_facts(config: FindConfig) -> Found:
    """Enter the search into its account, read the table, and release its facts, which alone leave this function.

    Raises `BadInput` for a file or column that cannot be used, another number of users than declared
    (`PopulationTooSmall` for fewer; under replace_one, for which it is public), a budget that is too small, or
    one that is more than the account has left.
    """
    plan, path, privacy = FindPlan(config), Path(config.data.path), config.privacy
    if privacy.account is not None and path.is_file():  # without a table there is nothing to pay for
        accounts_at(privacy.accounts).enter(privacy.account, plan.entry)
    search = _Search(plan, read_cells(path, config.columns, config.data.csv))
    settings = _declared(search)
    check_drawn(search.spent, plan.releases.cost)
    return Found(settings, plan.guarantee, tuple(_notes(plan, settings)), plan.numbers)


class _Search:
    """The releases, each made once, with noise of its own."""

    def __init__(self, plan: FindPlan, table: pa.Table) -> None:
        self.plan, self._table, self._opened, self.spent = plan, table, 0, Cost()
        self._streams = Streams(secure=plan.config.privacy.noise == "secure")
        user, users = plan.config.data.user, plan.config.data.all_users
        labels, self._owner = owners_of(ids_of(table[user], user), user)
        if plan.config.privacy.relation == "replace_one" and len(labels) != users:
            problem = PopulationTooSmall if len(labels) < users else BadInput
            remedy = doubtful_ids(labels, user) or "correct data.all_users, or rows that are of no person"
            raise problem(f"data.all_users = {users}, but the data have {len(labels)} users in all: {remedy}")
        self._labels = labels

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The range of each column of numbers."""
        data, names = self.plan.config.data, self.plan.config.find.numbers
        form = form_of(Path(data.path), data.csv)
        cells = {name: numbers_of(self._table[name], name, form.number) for name in names}
        for name in (name for name in names if np.isnan(cells[name]).all()):
            log.warning("no cell of column %s holds a number, so its range means nothing: see what csv declares", name)
        return {name: grids.outwards(*self._ends("numbers", cells[name], grids.numbers())) for name in names}

    @cached_property
    def dates(self) -> dict[str, list[str]]:
        """The first and the last day of each column of dates."""
        grid, formats, found = grids.years(), self.plan.config.data.date_formats, {}
        for name in self.plan.config.find.dates:
            moments = moments_of(self._table[name], name, formats.get(name))
            days = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / MICROSECONDS_A_DAY)
            found[name] = [*grids.outward_years(*np.clip(self._ends("dates", days, grid), *grid.edges[[0, -1]]))]
        return found

    @cached_property
    def levels(self) -> dict[str, list[str]]:
        """The levels of each column of words: numbers by their size, then words in alphabetical order."""
        found = {}
        for name in self.plan.config.find.words:
            names, items, keys = self.votes(name)
            noise = self._noise()
            chosen = self.plan.levels.release(self._owner, items, keys, noise)
            self.spent = together(self.spent, noise.spent)
            found[name] = sorted((names[number] for number in chosen), key=_place)
        return found

    def votes(self, name: str) -> tuple[NDArray[np.object_], NDArray[np.int64], NDArray[np.uint64]]:
        """Return the (K,) sorted words of a column, and each row's (N,) number among them, -1 for none, and key."""
        texts = texts_of(self._table[name], name)
        names, ranks = np.unique(np.array(texts.distinct, dtype=object), return_inverse=True)
        items = np.where(names == "", -1, np.arange(len(names)))[ranks][texts.positions]
        return names, items, own_keys(self._seed_of(name), self._owner, self._labels, items, names)

    @cached_property
    def max_samples(self) -> int | None:
        """The most samples of a user; None if they are not asked for."""
        if not self.plan.config.find.max_samples:
            return None
        samples = np.bincount(self._owner).astype(np.float64)
        least = self._low("max_samples", np.arange(len(samples)), -samples, grids.counts().turned())
        return max(1, int(-least))

    def _ends(self, facts: str, values: Values, grid: Grid) -> tuple[float, float]:
        """Return the range of a column, stretched to the share that the file asks for."""
        low, high = self._low(facts, self._owner, values, grid), -self._low(facts, self._owner, -values, grid.turned())
        return grids.stretched(low, high, self.plan.shares[facts], self.plan.config.find.share)

    def _low(self, facts: str, owner: NDArray[np.int64], values: Values, grid: Grid) -> float:
        """Return the lower edge of a bin that holds the low quantile."""
        noise = self._noise()
        chosen = self.plan.quantile(facts).choose(owner, values, grid, noise)
        self.spent = together(self.spent, noise.spent)
        return float(grid.edges[chosen])

    def _noise(self) -> NoiseSource:
        """Open the noise of the next release."""
        self._opened += 1
        config = self.plan.config
        return self._streams.open(config.seed, _FINDING, self._opened, rounding_slack(config.data.all_users))

    def _seed_of(self, name: str) -> int:
        """Return the seed by which users choose among their words in a column; it need not be secret."""
        place = self.plan.config.find.words.index(name)
        return int(stream(self.plan.config.seed, "sampling", _FINDING, place).integers(2**63))


def _place(text: str) -> tuple[bool, float, str]:
    number = cell_number(text)
    return math.isnan(number), 0.0 if math.isnan(number) else number, text


def _declared(search: _Search) -> dict[str, Any]:
    """Return the keys of [data] that the facts fill, those that are empty left out."""
    config, target = search.plan.config, search.plan.config.find.target or ""
    ranges = {name: [*ends] for name, ends in search.ranges.items()}
    levels = {name: found for name, found in search.levels.items() if len(found) > (name == target)}
    settings = {
        "user": config.data.user,
        "all_users": config.data.all_users,
        "target": target if target in (*ranges, *levels) else None,
        "target_range": ranges.pop(target, None),
        "target_levels": levels.pop(target, None),
        "features": [*ranges],
        "ranges": ranges,
        "dates": dict(search.dates),
        "date_formats": dict(config.data.date_formats),
        "csv": None if config.data.csv is None else config.data.csv.model_dump(exclude_unset=True),
        "categorical": levels,
        "max_samples": search.max_samples,
    }
    return {name: value for name, value in settings.items() if value not in (None, [], {})}


def _notes(plan: FindPlan, settings: Mapping[str, Any]) -> Iterator[str]:
    find = plan.config.find
    for name in find.words:
        found = settings.get("target_levels") if name == find.target else settings.get("categorical", {}).get(name)
        if len(found or ()) < (2 if name == find.target else 1):
            yield (
                f"too few users share the levels of {name!r}: about {plan.levels.users_needed(1)} must hold one, or "
                f"more if they hold several; raise epsilon, or declare its levels"
            )
    for facts in ("numbers", "dates"):
        if (share := plan.shares.get(facts, 0.0)) > find.share:
            yield (
                f"noise hides a share of {find.share:g}: ranges of {facts} were found at {share:.2g} on each side, and "
                "stretched as those of normal numbers"
            )
