"""Wrong questions of strangers are refused by one sentence with the remedy; their odd tables get right answers."""

import math

import numpy as np
import pandas as pd
import pytest

from simulations import query
from userdp.errors import BadInput

USERS = 600
SURVIVAL = {"statistic": "survival", "time": "day", "event": "ill", "at": [0, 30, 60, 90]}
BY_ARM = SURVIVAL | {"by": "arm"}
EFFECT = {"statistic": "effect", "of": "cost", "by": "arm"}
COMPONENTS = {"statistic": "variance_components", "of": "cost"}
MEAN = {"statistic": "mean", "of": "cost"}
COLUMNS = {"features": ["cost", "day", "ill"], "ranges": {"cost": [0, 100], "day": [0, 90], "ill": [0, 1]}}
COLUMNS |= {"categorical": {"arm": ["a", "b"], "sex": ["f", "m"], "none": ["y", "z"], "done": [True, False]}}


def visits(**changed):
    """Two rows of each person; ``changed`` columns replace those drawn."""
    rng, who = np.random.default_rng(0), np.repeat(np.arange(USERS), 2)
    columns = {"cost": rng.uniform(0, 100, len(who)), "day": rng.uniform(0, 90, len(who)), "ill": who % 2}
    columns |= {"arm": np.where(who % 3, "b", "a"), "sex": rng.choice(["f", "m"], USERS)[who], "none": "z"}
    return pd.DataFrame({"who": who, **columns, "done": columns["day"] > 45, **changed})


def answered(asked, table=None, **given):
    """The answers to one question, by level."""
    table = visits() if table is None else table
    given = {"all_users": table["who"].nunique(), "epsilon": 8.0, **COLUMNS, **given}
    found = query(table, user="who", ask=[asked], delta=1e-6, progress=False, seed=1, **given)
    return found.table.set_index("level")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (SURVIVAL | {"time": "arm"}, "ask.time = 'arm': the column holds levels; declare it under data.features with"),
        (SURVIVAL | {"event": "arm"}, "ask.event = 'arm': the column holds levels; name that of an event: event_level"),
        (SURVIVAL | {"event": "cost"}, "ask.event = 'cost': an event is 1 and none is 0, so declare data.ranges.cost"),
        (SURVIVAL | {"event_level": 1}, "ask.event = 'ill': the column holds numbers; declare it under data.categ"),
        (SURVIVAL | {"event": "arm", "event_level": "c"}, "ask.event_level = 'c': there is no such level; there are a"),
        (SURVIVAL | {"at": [60, 30, 0]}, "ask.at = [60.0, 30.0, 0.0]: must be two or more edges that rise, such as"),
        (SURVIVAL | {"at": [0, math.nan]}, "at.1 = nan: must be a finite number"),
        (SURVIVAL | {"at": [0, 120]}, "an edge lies outside of data.ranges.day = [0.0, 90.0]"),
        (SURVIVAL | {"at": [100, 120]}, "must reach into data.ranges.day = [0, 90], into which cells are clipped"),
        (SURVIVAL | {"per": "sample"}, "per = 'sample' (Each user has one vote: its end of follow-up): must be 'user'"),
        (SURVIVAL | {"by": ["arm", "sex"]}, "by = ['arm', 'sex'] (Column of declared levels"),
        (EFFECT | {"by": "day"}, "ask.by = 'day': the column holds numbers; declare it under data.categorical"),
        (
            EFFECT | {"of": "sex"},
            "ask.of = 'sex': the column holds levels; ask statistic = 'counts' for it, or declare",
        ),
        (EFFECT | {"stratum": "arm"}, "name another column as ask.stratum, or none"),
        (EFFECT | {"where": {"arm": "a"}}, "ask.where.arm = 'a': an effect compares other arms with the first"),
        (
            EFFECT | {"where": {"arm": ["b", "a"], "sex": "f"}, "stratum": "sex"},
            "ask.where.sex = 'f': an effect compares",
        ),
        (EFFECT | {"at": [0.5]}, "ask.at = [0.5]: quantiles are read off bins; give ask.bins"),
        (EFFECT | {"bins": [0, math.nan, 100]}, "bins.1 = nan: must be a finite number"),
        (EFFECT | {"bins": [200, 300]}, "ask.bins = [200.0, 300.0]: must reach into data.ranges.cost = [0, 100]"),
        (MEAN | {"statistic": "histogram", "bins": [-9, 0]}, "must reach into data.ranges.cost = [0, 100]"),
        (MEAN | {"statistic": "quantiles", "bins": [200, 300]}, "must reach into data.ranges.cost = [0, 100]"),
        (COMPONENTS | {"by": "sex"}, "unknown key by; there are statistic, weight, per, where, of"),
        (COMPONENTS | {"per": "sample"}, "data.max_samples is missing"),
        (MEAN | {"statistic": "sum"}, "bound is missing: give largest sum of a user"),
        (MEAN | {"statistic": "sum", "bound": math.inf}, "must be a finite number"),
        (MEAN | {"where": {"sex": "x"}}, "ask.where.sex = 'x': there is no such level; there are f, m"),
        (MEAN | {"where": {"day": 30}}, "ask.where.day = 30: must be [low, high] within data.ranges.day = [0, 90]"),
        (MEAN | {"where": {"done": "yes"}}, "ask.where.done = 'yes': there is no such level; there are True, False"),
        ({"statistic": "counts", "of": ["arm", "sex", "none"]}, "must be a column, or a list of two"),
        (
            {"statistic": "shares", "of": "cost"},
            "ask.of = 'cost': the column holds numbers; ask statistic = 'histogram'",
        ),
    ],
)
def test_wrong_questions_are_refused_before_data_are_read(asked, sentence):
    with pytest.raises(BadInput) as error:
        answered(asked, visits(who="not read"), all_users=USERS)
    assert sentence in str(error.value)


def test_an_effect_needs_two_declared_arms_and_components_two_samples():
    with pytest.raises(BadInput, match=r"data\.max_samples = 1: variance_components needs two samples"):
        answered(COMPONENTS, max_samples=1)
    with pytest.raises(BadInput, match=r"ask\.by = 'arm': an effect compares two levels or more"):
        answered(EFFECT, categorical={"arm": ["a"]})


def test_a_level_of_true_or_false_is_asked_as_it_is_declared():
    done = visits().groupby("who")["done"].any().sum()
    for level in (True, "True", 1):
        found = answered({"statistic": "count", "where": {"done": level}}).iloc[0]
        assert found["low"] <= done <= found["high"]
        assert found["where"] == f"done = {level}"
        curve = answered(SURVIVAL | {"event": "done", "event_level": level})
        assert curve.loc["at 30", "estimate"] > 0.95
        assert curve.loc["at 60", "estimate"] < 0.8


def test_times_that_are_dates_count_in_days():
    day = np.round(visits()["day"])
    dates = visits(day=pd.Timestamp("2020-01-01") + pd.to_timedelta(day, unit="D"))
    given = {"features": ["cost", "ill"], "ranges": {"cost": [0, 100], "ill": [0, 1]}}
    found = answered(SURVIVAL, dates, **given, dates={"day": ["2020-01-01", "2020-03-31"]})
    pd.testing.assert_frame_equal(found[["estimate"]], answered(SURVIVAL, visits(day=day))[["estimate"]])


@pytest.mark.parametrize(
    "changed",
    [
        {"ill": 0},  # everybody is censored
        {"ill": 1},  # nobody is
        {"ill": 1, "day": 30.0},  # all times are equal
        {"ill": 1, "day": 0.0},
        {"ill": 1, "day": visits()["day"] - 50},  # times count as the low end of their range
        {"ill": np.r_[0, visits()["ill"][1:] + 1]},  # and events as the high end of theirs
    ],
    ids=["censored", "not-censored", "equal", "zero", "negative", "three-values"],
)
def test_ends_of_people_who_are_alike(changed):
    table, edges = visits(**changed), SURVIVAL["at"]
    first = table["day"].clip(0).where(table["ill"] > 0, math.inf).groupby(table["who"]).min()
    shares = np.array([(first >= edge).mean() for edge in edges])
    found = answered(SURVIVAL, table)
    held = found.loc[[f"at {edge}" for edge in edges]]
    assert ((held["low"] <= shares + 0.01) & (shares - 0.01 <= held["high"])).all()
    middle = found.loc["median up to 90"]
    assert middle["high"] - middle["low"] < 10
    assert middle["low"] - 1 <= np.interp(-0.5, -shares, edges) <= middle["high"] + 1


def test_people_with_holes_in_their_rows_still_count():
    table, rng = visits(), np.random.default_rng(5)
    for column in ("cost", "day", "ill", "arm"):
        table[column] = table[column].astype(object).mask(rng.random(len(table)) < 0.3, None)
    whole = table.dropna(subset=["cost", "arm"]).groupby("who").agg(cost=("cost", "mean"), arm=("arm", "first"))
    means = whole.astype({"cost": float}).groupby("arm")["cost"].mean()
    found = answered(EFFECT, table).loc["b - a"]
    assert found["low"] <= means["b"] - means["a"] <= found["high"]
    ends = table.dropna(subset=["day", "ill"])
    assert len(ends) < 0.6 * len(table)
    assert math.isfinite(answered(BY_ARM, table).loc["log-rank p-value", "estimate"])


@pytest.mark.parametrize("asked", [BY_ARM, EFFECT, COMPONENTS], ids=lambda one: one["statistic"])
def test_the_order_of_rows_moves_nothing(asked):
    """But that of one person's rows: people are in one arm throughout."""
    shuffled = visits().sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(answered(asked), answered(asked, shuffled), rtol=1e-4)


def test_a_person_in_two_arms_is_in_that_of_the_first_row():
    table = visits(arm=np.tile(["a", "b"], USERS))
    table.loc[table["who"] % 2 == 1, "arm"] = ["b", "a"] * (USERS // 2)
    means = table.groupby("who").agg(cost=("cost", "mean"), arm=("arm", "first")).groupby("arm")["cost"].mean()
    found = answered(EFFECT, table).loc["b - a"]
    assert found["low"] <= means["b"] - means["a"] <= found["high"]


@pytest.mark.parametrize(
    ("asked", "table"),
    [
        (EFFECT, visits(arm="a")),  # nobody is in the other arm
        (EFFECT | {"by": "none"}, visits()),
        (EFFECT | {"stratum": "none"}, visits()),
        (COMPONENTS, visits().drop_duplicates("who")),  # nobody has two rows
        (MEAN | {"where": {"none": "y"}}, visits()),
        (EFFECT, visits().head(2)),  # there is one person
    ],
    ids=["no-arm", "no-group", "no-stratum", "one-row", "none-fits", "one-person"],
)
def test_what_nobody_can_tell_has_any_value(asked, table):
    found = answered(asked, table)
    assert found["estimate"].isna().all()
    low, high = found["low"].min(), found["high"].max()
    assert low == {"effect": -100.0}.get(asked["statistic"], 0.0)
    assert high >= 100.0


def test_a_group_that_nobody_is_in_drowns_alone():
    found = answered(SURVIVAL | {"by": "none"})
    assert found.loc[["y, at 30", "y, at 90"], "estimate"].isna().all()
    assert found.loc[["z, at 30", "z, at 90"], "estimate"].notna().all()
    assert found.loc["log-rank p-value", "estimate"] > 0.001


def test_bins_beyond_the_range_end_with_it():
    """Numbers are taken to be even within a bin, and there are none beyond the range."""
    wide, held = [0, 50, 300], [0, 50, 100]
    asked = EFFECT | {"at": [0.75]}
    pd.testing.assert_frame_equal(answered(asked | {"bins": wide}), answered(asked | {"bins": held}))
    top = answered({"statistic": "quantiles", "of": "cost", "bins": wide, "at": [0.75]}).iloc[0]
    assert (top["low"], top["estimate"], top["high"]) == (50.0, 75.0, 100.0)
