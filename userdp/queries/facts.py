"""Public facts about the columns of a query, and the conditions that a statistic's samples fit."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from userdp.data.block import Block
from userdp.data.shape import Column, Shape
from userdp.data.tables.cells import cell_text
from userdp.data.tables.declaration import Cell
from userdp.data.tables.declared import did_you_mean, scaled
from userdp.errors import BadInput
from userdp.queries.votes import Pairs, level_codes
from userdp.settings import shown


def _one_or_two(given: object) -> object:
    if isinstance(given, str) or (isinstance(given, list) and [type(one) for one in given] == [str, str]):
        return given
    raise PydanticCustomError("columns", "Input should be a column, or a list of two")


OneOrTwo = Annotated[str | list[str], PlainValidator(_one_or_two)]
"""A column of levels; or two, of which pairs of levels count."""
Where = dict[str, Cell]
"""Conditions on samples: column = a level or a list of some, or [low, high] of numbers, in the table's units."""


class Facts:
    """The public facts that rows and answers follow from: the declared columns, and what else is declared.

    Args:
        shape: of samples.
        most: most samples of a user; None if not declared.
        users_known: whether the number of users is public, as for neighbours that replace one.
    """

    def __init__(self, shape: Shape, most: int | None, *, users_known: bool) -> None:
        self.columns, self.most = {column.name: column for column in shape.named}, most
        self.users_known = users_known

    def column(self, where: str, name: str | list[str], *, numbers: bool) -> Column:
        """Return a column of numbers, or of levels; raise `BadInput`, naming the key ``where``, if it is none.

        The levels of two columns are their pairs.
        """
        if not isinstance(name, str):
            if len(set(name)) < len(name):
                raise BadInput(f"{where} = {name}: a column is listed twice; leave one out")
            return Pairs.of([self.column(where, one, numbers=False) for one in name])
        declared = "data.features with a range in data.ranges" if numbers else "data.categorical with its levels"
        if name not in self.columns:
            hint = did_you_mean(name, self.columns) or f"; declare it under {declared}"
            raise BadInput(f"{where} = {name!r}: there is no such column{hint}")
        column = self.columns[name]
        if (column.range is not None) != numbers:
            is_now, other = ("levels", "counts") if numbers else ("numbers", "histogram")
            remedy = f"ask statistic = {other!r} for it, or " if where == "ask.of" else ""
            raise BadInput(f"{where} = {name!r}: the column holds {is_now}; {remedy}declare it under {declared}")
        return column


def fitting(block: Block, where: Where, facts: Facts) -> NDArray[np.bool_]:
    """Return which samples (N,) fit all conditions, each by its own cells; a missing cell fits none.

    Raises `BadInput`: a condition names a column or a level that is not declared, or no part of a declared range.
    """
    found = np.ones(block.samples, dtype=bool)
    for name, wanted in where.items():
        column = _column(name, facts)
        if column.range is None:
            found &= np.isin(level_codes(block, column), wanted_levels(wanted, column))
        else:
            cells = block.dense_features[:, column.places[0]]
            # Scaled like cells, so that one equal to an end fits.
            low, high = scaled(_ends(name, wanted, column), column.range, column.least, 1.0)[0]
            found &= (cells >= low) & (cells <= high)
    return found


def told(where: Where, facts: Facts) -> str | None:
    """Return conditions in words, such as "sex = f, age in [65, 98]"; None for no condition."""
    words = []
    for name, wanted in where.items():
        several = wanted if isinstance(wanted, list) else [wanted]
        if facts.columns[name].range is None:
            words.append(f"{name} = {' or '.join(map(str, several))}")
        else:
            words.append(f"{name} in [{', '.join(f'{one:.12g}' for one in several)}]")
    return ", ".join(words) or None


def _column(name: str, facts: Facts) -> Column:
    if name not in facts.columns:
        hint = did_you_mean(name, facts.columns) or "; declare it in data.features or data.categorical"
        raise BadInput(f"ask.where.{name}: there is no such column{hint}")
    return facts.columns[name]


def wanted_levels(wanted: object, column: Column) -> list[int]:
    """Return the numbers of the levels that a condition wants; raise `BadInput` if there are none."""
    name, given = column.name, wanted if isinstance(wanted, list) else [wanted]
    if not given or any(one is None or isinstance(one, list | Mapping) for one in given):
        raise BadInput(f"ask.where.{name} = {shown(wanted)}: must be a level or a list of them, or leave {name} out")
    return [level_number(f"ask.where.{name}", one, column) for one in given]


def level_number(key: str, wanted: object, column: Column) -> int:
    """Return the number of a declared level, such as True, 1 or "1"; raise `BadInput`, naming the key, for no level."""
    found = _numbers(column.levels).get(cell_text(wanted))
    if found is None:
        text = str(wanted)
        hint = did_you_mean(text, column.levels) or f"; there are {', '.join(column.levels)}"
        raise BadInput(f"{key} = {text!r}: there is no such level{hint}")
    return found


@lru_cache(maxsize=64)
def _numbers(levels: tuple[str, ...]) -> dict[str, int]:
    """Return the number of each level by its cells' text: made once, though every block asks for all of a filter."""
    return {cell_text(level): number for number, level in enumerate(levels)}


def _ends(name: str, wanted: object, column: Column) -> NDArray[np.float64]:
    assert column.range is not None
    low, high = column.range
    ends = wanted if isinstance(wanted, list) else []
    numbers = [float(one) for one in ends if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(ends) != 2 or len(numbers) != 2 or not low <= numbers[0] <= numbers[1] <= high:
        raise BadInput(
            f"ask.where.{name} = {shown(wanted)}: must be [low, high] within data.ranges.{name} = [{low:.12g}, "
            f"{high:.12g}], the lower one first, such as [{(low + high) / 2:.12g}, {high:.12g}]"
        )
    return np.array(numbers)
