"""The first page's picture and words: error against samples of a user, from research/results/papers/user-level.csv."""

import tomllib

import numpy as np
import pandas as pd
from scipy.stats import linregress

from making.courses import ROOT, fill
from making.papers import RESULTS
from simulations.comparison.ranking import crossings

NAME, ALONG, ITEM = "user-level", "data.samples_per_user", "item-level"
PICTURE = f"docs/{NAME}.svg"


def section() -> str:
    """Return the words below the picture."""
    rows = pd.read_csv(RESULTS / f"{NAME}.csv")
    config = tomllib.loads((ROOT / "simulations" / "configs" / f"{NAME}.toml").read_text(encoding="utf-8"))
    data, privacy = config["data"], config["privacy"]
    curves = {
        str(name): list(own.groupby(ALONG)["value"].agg(["median", "min", "max"]).itertuples(name=None))
        for name, own in rows.groupby("strategy", sort=False)
    }
    flat = curves[ITEM]
    always = [name for name in curves if all(one[1] < two[1] for one, two in zip(curves[name], flat, strict=True))]
    lower = [(low, float(f"{place:.2g}")) for place, low, high in crossings(curves) if high == ITEM]
    below = [f"`{name}` from m of about {place:g}" for name, place in lower]
    below += [f"`{name}` at every m" for name in always]
    slopes = ", ".join(f"`{name}` {_slope(curve)}" for name, curve in curves.items())
    (first, *_), (last, *_) = flat[0], flat[-1]
    told = fill(
        f"{data['users']:,} simulated users hold m samples each, of a mean of {data['dimension']} numbers. Each *user* "
        f"is protected with epsilon = {privacy['epsilon']:g} and delta = {privacy['delta']:g}. Item level clips single "
        f"samples and protects a user's m by group privacy, set as well as a search on public data can: from m = "
        f"{first:,} to {last:,} its excess risk goes from {flat[0][1]:.2g} to {flat[-1][1]:.2g}. At user level it "
        f"falls like 1 / m, and is below item level: {', '.join(below)}. Slopes on logarithmic axes, with standard "
        f"errors, where theory has -1 at user level and 0 at item level: {slopes}. A clip round the start, as in "
        f"`dp_fed_sgd`, has to reach the best model, so its slope is less steep. Lines are medians of "
        f"{rows['seed'].nunique()} seeds, bands their range; the start is at {rows['initial'].median():.2g}."
    )
    command = f"userdp compare simulations/configs/{NAME}.toml    # makes it, within a minute on two cores"
    return f"{told}\n\n```\n{command}\n```"


def _slope(curve: list[tuple[float, float, float, float]]) -> str:
    """Return the slope of the medians by least squares, and its standard error."""
    fit = linregress(*np.log([[one[0], one[1]] for one in curve]).T)
    return f"{fit.slope:.2f} \N{PLUS-MINUS SIGN} {fit.stderr:.2f}"
