"""The declarations about a sample, known before any data are read, and checks of declared numbers."""

import math
from dataclasses import dataclass

from userdp.errors import BadInput


def require_number(name: str, value: float, above: float, *, strict: bool = True) -> None:
    """Raise `BadInput` unless ``value`` is finite and above ``above`` (at least ``above`` when not strict)."""
    if not (math.isfinite(value) and (value > above if strict else value >= above)):
        raise BadInput(f"{name} must be a finite number {'above' if strict else 'of at least'} {above:g}, got {value}")


@dataclass(frozen=True)
class Sequence:
    """The declarations about a sample that is a sequence of codes.

    A sample's features are ``steps`` times ``channels`` codes, step after step; the last channel is predicted, at every
    step from the steps before. Steps after a sequence's end are -1 in every channel.
    """

    steps: int
    """L, the same for every sample."""
    levels: tuple[int, ...]
    """(C,) codes of each channel; the last stands for every cell that is no declared level, except among tokens."""

    @property
    def channels(self) -> int:
        """The number C of codes of one step."""
        return len(self.levels)


@dataclass(frozen=True)
class Column:
    """The declarations about a column of numbers, or of levels, among a sample's features."""

    name: str
    places: tuple[int, ...]
    """The positions of its features: one of a number, one for each level."""
    range: tuple[float, float] | None = None
    """Declared (low, high) in the table's units, of a number; None for levels."""
    least: float = -1.0
    """The feature of the range's low end; that of its high end is 1."""
    levels: tuple[str, ...] = ()
    complete: bool = False
    """True if a missing cell counts as a declared value, so that every sample has a number."""
    unit: str = ""
    """The unit of the numbers, if they are not the cells themselves."""


@dataclass(frozen=True)
class Shape:
    """The declarations about a sample; None where nothing is declared, or for other kinds of features.

    Attributes:
        columns: feature columns.
        has_target: whether samples carry a target.
        bound: bound on the absolute value of every feature.
        feature_norm: bound on the l1 norm of a sample's features.
        target_range: (low, high) of the target.
        levels: levels of a single column of codes.
        sparsity: most nonzero entries of a sample that is a sparse row.
        feature_length: bound on the l2 norm of a sparse sample.
        code_levels: (k,) levels of each of several columns of codes; of a text with a target 0 for padding, and c + 1
            for token c.
        sequence: the declarations of samples that are sequences of codes.
        tokenizer: the tokenizer, 'hf:...', whose tokens samples are made of.
        scaled_target: whether the target's numbers were scaled to ``target_range``.
        classes: K, of a target with K declared levels, which is a number 0..K - 1.
        terms: (low, high) of a known term of each sample's score, the logarithm of an exposure or an offset.
        exposed: whether the known term is the logarithm of an exposure.
        periods: the (first, last + 1) columns of which one is 1 in each sample at risk. The last column, 1 in all of
            these, takes the place of an intercept; other samples are of zeros, and add nothing.
        named: the columns that features are made of, as far as they are numbers or levels with a name.
    """

    columns: int
    has_target: bool
    bound: float | None = None
    feature_norm: float | None = None
    target_range: tuple[float, float] | None = None
    levels: int | None = None
    sparsity: int | None = None
    feature_length: float | None = None
    code_levels: tuple[int, ...] | None = None
    sequence: Sequence | None = None
    tokenizer: str | None = None
    scaled_target: bool = False
    classes: int | None = None
    terms: tuple[float, float] | None = None
    exposed: bool = False
    periods: tuple[int, int] | None = None
    named: tuple[Column, ...] = ()

    @property
    def codes_from(self) -> str | None:
        """The key of [data] that makes samples codes, whose size means nothing; None if they are numbers."""
        if self.sequence is not None or self.tokenizer is not None:
            return "data.sequence"
        return None if self.levels is None and self.code_levels is None else "data.codes"
