"""Whether plans foresee the order in which strategies come out: predicted excess risk against what was measured."""

from collections.abc import Collection

import pandas as pd

_FEWEST = 4
"""Strategies that have to be in an order for it to say anything."""


def foresight(frame: pd.DataFrame, keys: Collection[str], left_out: Collection[str]) -> dict[str, float | int] | None:
    """Spearman's rank correlation of predicted excess risk and the main metric, over strategies at a point.

    Args:
        frame: the cells of a comparison.
        keys: of its grid.
        left_out: labels of strategies that do not count.

    Returns:
        Its mean over points as "correlation", the number of "points", and "strategies" at most; None where no point
        has strategies enough that predict and measure something.
    """
    if "predicted_excess" not in frame:
        return None  # of an earlier version
    told = frame[~frame["strategy"].isin(list(left_out))].dropna(subset=["predicted_excess", "value"])
    found, most = [], 0
    for _, cells in told.groupby(["problem", *keys], sort=False):
        medians = cells.groupby("strategy")[["predicted_excess", "value"]].median()
        if len(medians) >= _FEWEST and medians.nunique().min() > 1:
            found.append(float(medians.rank().corr().to_numpy()[0, 1]))
            most = max(most, len(medians))
    return {"correlation": sum(found) / len(found), "points": len(found), "strategies": most} if found else None
