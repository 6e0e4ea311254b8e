"""The first page's picture and words: error against samples of a user, from the founding paper's room."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
import pandas as pd
from scipy.stats import linregress

from making.courses import ROOT, fill

NAME, ALONG, ITEM = "user-level", "data.samples_per_user", "item-level"
PICTURE = f"docs/{NAME}.svg"


def section() -> str:
    """Return the words below the picture."""
    rows = pd.read_csv(ROOT / "strategies" / "baselines" / "robust" / "results" / f"{NAME}.csv")
    config = tomllib.loads((ROOT / "simulations" / "configs" / f"{NAME}.toml").read_text(encoding="utf-8"))
    data, privacy = config["data"], config["privacy"]
    curves = {
        str(name): list(own.groupby(ALONG)["value"].agg(["median", "min", "max"]).itertuples(name=None))
        for name, own in rows.groupby("strategy", sort=False)
    }
    flat = curves[ITEM]
    always = [name for name in curves if all(one[1] < two[1] for one, two in zip(curves[name], flat, strict=True))]
    below = dict.fromkeys(always, "at every m")
    below |= {low: f"from m = {float(f'{place:.2g}'):g} on" for place, low, high in crossings(curves) if high == ITEM}
    told = ", ".join(f"`{name}` {where} (slope {_slope(curves[name])})" for name, where in below.items())
    return fill(
        f"{data['users']:,} simulated people hold m samples each of a mean of {data['dimension']} numbers, and each "
        f"*person* has epsilon = {privacy['epsilon']:g}, delta = {privacy['delta']:g}. Clipping samples needs group "
        f"privacy for all m: `{ITEM}` gains nothing (slope {_slope(flat)}). User level falls below it: {told}. Theory "
        f"has slope -1. Medians of {rows['seed'].nunique()} seeds, with their range, by "
        f"`userdp compare simulations/configs/{NAME}.toml`."
    )


def _slope(curve: list[tuple[float, float, float, float]]) -> str:
    """Return the slope of the medians by least squares, and its standard error."""
    fit = linregress(*np.log([[one[0], one[1]] for one in curve]).T)
    return f"{fit.slope:.2f}\N{PLUS-MINUS SIGN}{fit.stderr:.2f}"


def crossings(curves: Mapping[str, Sequence[tuple[float, float, float, float]]]) -> list[tuple[float, str, str]]:
    """Return where on an axis a strategy falls below another for good: (about where, the lower one, the higher one).

    A curve holds (place, median, least, most) with increasing places. Medians cross once, from the first place to the
    last, where the ranges must not overlap; between two places they are taken as straight on logarithmic axes.
    """
    found = []
    for (low, lower), (high, higher) in permutations(curves.items(), 2):
        if [one[0] for one in lower] != [one[0] for one in higher] or len(lower) < 2:
            continue
        ratios = [
            above[1] / below[1] if min(above[1], below[1]) > 0 else math.nan
            for below, above in zip(lower, higher, strict=True)
        ]
        ahead = [ratio > 1 for ratio in ratios]
        first = ahead.index(True) if True in ahead else 0
        if not first or not all(ahead[first:]) or lower[-1][3] >= higher[-1][2] or any(map(math.isnan, ratios)):
            continue
        before, after = math.log(ratios[first - 1]), math.log(ratios[first])
        (left, *_), (right, *_) = lower[first - 1], lower[first]
        place = left * (right / left) ** (-before / (after - before)) if left > 0 else right
        found.append((place, low, high))
    return sorted(found)
