"""What the declarations of a table say about a sample."""

from dataclasses import replace

from userdp.data.shape import Sequence, Shape
from userdp.data.tables.columns import Columns


def shape_of(columns: Columns) -> Shape:
    """The shape of samples that `userdp.data.tables.tabular.read_table` makes of these columns; reads no data."""
    shape = _shape_of_features(columns)
    return shape if columns.target_levels is None else replace(shape, classes=len(columns.target_levels))


def _shape_of_features(columns: Columns) -> Shape:
    """The same, but for a target's classes."""
    has_target, target_range = columns.target is not None, None
    if columns.positive is not None:
        target_range = (0.0, 1.0)
    elif columns.target_range is not None:
        target_range = (-1.0, 1.0)
    scaled = columns.positive is None and target_range is not None
    if columns.sequence is not None:
        steps, levels = columns.sequence.window, columns.sequence.code_counts
        return Shape(steps * len(levels), has_target=False, sequence=Sequence(steps, levels))
    if columns.images is not None:
        return Shape(columns.pixels, has_target, 1.0, float(columns.pixels), target_range, scaled_target=scaled)
    if columns.buckets is not None:
        sparsity = min(len(columns.hashed), columns.buckets)
        return Shape(
            columns.buckets,
            has_target,
            1.0,
            None,
            target_range,
            sparsity=sparsity,
            feature_length=1.0,
            scaled_target=scaled,
        )
    counts = columns.code_counts
    if isinstance(columns.codes, str):
        return Shape(1, has_target, target_range=target_range, levels=counts[0], scaled_target=scaled)
    if columns.codes is not None:
        return Shape(len(counts), has_target, target_range=target_range, code_levels=counts, scaled_target=scaled)
    return Shape(len(columns.feature_names), has_target, 1.0, columns.largest_norm, target_range, scaled_target=scaled)
