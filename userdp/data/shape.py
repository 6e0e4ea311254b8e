"""What is declared about a sample before any data are read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sequence:
    """Samples that are windows of a sequence.

    Attributes:
        steps: L, of a window.
        levels: codes of each of the C channels of a step; the last one is predicted.
    """

    steps: int
    levels: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """What the declarations say about a sample; no data are read for it.

    Attributes:
        columns: feature columns.
        has_target: whether samples carry a target.
        bound: of the absolute value of every feature; None when nothing is declared.
        feature_norm: bound on the l1 norm of a sample's features; None when nothing is declared.
        target_range: (low, high) of the target; None when nothing is declared.
        levels: of a column of codes; None for other features.
        sparsity: most entries of a sample that are not zero, where samples are sparse rows; None for other features.
        feature_length: bound on the l2 norm of a sparse sample; None when nothing is declared.
        code_levels: how many codes each of several columns of codes has; None for other features.
        sequence: steps and codes of samples that are windows of a sequence; None for other samples.
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
