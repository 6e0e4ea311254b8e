"""What is declared about a sample before any data are read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sequence:
    """What is declared about a sample that is a sequence of codes.

    A sample's features are ``steps`` times ``channels`` codes, step after step; the last channel is the one that is
    predicted, at every step from the steps before. Steps after a sequence's end are -1 in every channel.

    Attributes:
        steps: L, the same for every sample.
        levels: (C,) codes of each channel, of which the last one stands for every cell that is no declared level.
    """

    steps: int
    levels: tuple[int, ...]

    @property
    def channels(self) -> int:
        """C, the codes of one step."""
        return len(self.levels)


@dataclass(frozen=True)
class Shape:
    """What the declarations say about a sample; no data are read for it.

    Attributes:
        columns: feature columns.
        has_target: whether samples carry a target.
        bound: of the absolute value of every feature; None when nothing is declared.
        feature_norm: bound on the l1 norm of a sample's features; None when nothing is declared.
        target_range: (low, high) of the target; None when nothing is declared.
        scaled_target: whether the target's own numbers were scaled to that range.
        classes: K, of a target that is one of K declared levels, and then a number 0..K - 1; None for other targets.
        levels: of a column of codes; None for other features.
        sparsity: most entries of a sample that are not zero, where samples are sparse rows; None for other features.
        feature_length: bound on the l2 norm of a sparse sample; None when nothing is declared.
        code_levels: (k,) levels of each of several columns of codes; None for other features.
        sequence: of samples that are sequences of codes; None for other features.
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
    scaled_target: bool = False
    classes: int | None = None

    @property
    def codes_from(self) -> str | None:
        """The key of [data] that makes samples codes, whose size means nothing; None where they are numbers."""
        if self.sequence is not None:
            return "data.sequence"
        return None if self.levels is None and self.code_levels is None else "data.codes"
