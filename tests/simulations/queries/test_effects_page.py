"""The example of docs/effects.md; effects and variance components in reports, on public tables, and masked."""

import re

import numpy as np
import pandas as pd
import pytest
from helpers_flower import ROOT

from simulations import query
from simulations.config.run_config import parse_config
from simulations.reports.answer_pictures import answer_pictures
from simulations.runs.run import run

PAGE = ROOT / "docs" / "effects.md"


def test_the_example_of_the_page_finds_by_how_much_small_classes_help(public_table):
    pupils = pd.read_parquet(public_table("STAR.parquet"))
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(code, str(PAGE), "exec"), names)
    table = names["found"].table.set_index("level")
    cells = pupils.dropna(subset=["mathk"]).groupby(["schoolk", "stark"])["mathk"].agg(["mean", "size"]).unstack()
    strata = cells["size"].sum(axis=1)
    for arm in ("small", "regular+aide"):
        truth = ((cells["mean"][arm] - cells["mean"]["regular"]) * strata).sum() / strata.sum()
        assert table.loc[f"{arm} - regular", "low"] <= truth <= table.loc[f"{arm} - regular", "high"]
    assert table.loc["small - regular", "low"] > 0
    assert table["estimate"].notna().all()


@pytest.fixture(scope="module")
def answered():
    """Answers about people of two arms, as ``found``, their rows, ``visits``, and their arms."""
    rng, patient = np.random.default_rng(1), np.repeat(np.arange(4000), 3)
    arm = rng.choice(["usual", "new"], 4000)
    own = rng.gamma(4, 30, 4000) * np.where(arm == "new", 0.85, 1.0)
    visits = pd.DataFrame({"patient": patient, "arm": arm[patient]})
    visits["cost"] = own[patient] * rng.uniform(0.3, 1.7, 12000)
    effect = {"statistic": "effect", "of": "cost", "by": "arm"}
    quantiles = effect | {"bins": list(range(0, 401, 20)), "at": [0.5, 0.9]}
    columns = {"features": ["cost"], "ranges": {"cost": [0, 400]}, "categorical": {"arm": ["usual", "new"]}}
    ask = [effect, quantiles, {"statistic": "variance_components", "of": "cost"}]
    found = query(visits, user="patient", **columns, ask=ask, epsilon=2.0, delta=1e-6, progress=False)
    return {"found": found, "visits": visits, "arm": arm}


def test_people_differ_by_what_they_were_made_with(answered):
    table = answered["found"].table.set_index("level")
    costs = answered["visits"].assign(cost=lambda one: one["cost"].clip(0, 400)).groupby("patient")["cost"]
    means, arm = costs.mean(), pd.Series(answered["arm"])
    usual, new = means[arm == "usual"], means[arm == "new"]
    truth = {
        "new - usual": new.mean() - usual.mean(),
        "new / usual": new.mean() / usual.mean(),
        "new - usual at 0.5": new.median() - usual.median(),
        "new - usual at 0.9": new.quantile(0.9) - usual.quantile(0.9),
        "within users": costs.var().mean(),
        "between users": means.var() - costs.var().mean() / 3,
    }
    for level, value in truth.items():
        assert abs(table.loc[level, "estimate"] - value) < 4 * table.loc[level, "standard_error"], level
    assert table.loc["new - usual", "high"] < 0
    assert table.loc["new / usual", "high"] < 1
    assert table.loc["share between users (ICC)", "low"] > 0.4


def test_the_report_draws_differences_and_the_ratio_with_a_line_where_there_is_none(answered):
    page = answered["found"].page
    assert page.count("<svg") >= 2
    assert page.count("Effect of cost.") == 2
    pictures = answer_pictures(answered["found"].result["answers"])
    assert [len(re.findall(r">new [^<]*</text>", one.chart)) for one in pictures] == [3, 1]
    means = [one | {"statistic": "group_means"} for one in answered["found"].result["answers"]]
    dashes = [[one.chart.count("stroke-dasharray") for one in found] for found in (pictures, answer_pictures(means))]
    assert dashes[0] == [1, 1]
    assert not any(dashes[1])


def test_a_ratio_that_drowns_has_any_interval():
    people = pd.DataFrame({"who": range(20), "arm": ["a", "b"] * 10, "x": np.linspace(0, 1, 20)})
    columns = {"features": ["x"], "ranges": {"x": [0, 1]}, "categorical": {"arm": ["a", "b"]}}
    ask = [{"statistic": "effect", "of": "x", "by": "arm"}]
    found = query(people, user="who", ask=ask, **columns, epsilon=0.5, delta=1e-3, progress=False)
    assert found.table["low"].tolist() == [-1.0, 0.0]
    assert repr(found).count("drowned in noise") == found.page.count("drowned in noise") == 2
    assert " any " in repr(found)


@pytest.mark.parametrize("trust", ["server", "sum"])
def test_they_are_answered_with_secure_noise_and_from_masked_sums(trust, tmp_path):
    who = np.repeat(np.arange(400), 2)
    rows = pd.DataFrame({"who": who, "arm": np.where(who % 2, "b", "a"), "x": np.clip(who % 5 / 5 + who % 2 / 9, 0, 1)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "user": "who", "features": ["x"], "all_users": 400}
    data |= {"ranges": {"x": [0, 1]}, "categorical": {"arm": ["a", "b"]}}
    ask = [{"statistic": "effect", "of": "x", "by": "arm"}, {"statistic": "variance_components", "of": "x"}]
    raw = {"name": "arms", "data": data, "ask": ask, "engine": {"users_per_node": 100}}
    raw["privacy"] = {"epsilon": 8.0, "delta": 1e-4, "trust": trust, "noise": "secure"}
    found = {one["level"]: one for one in run(parse_config(raw), directory=tmp_path / "run").result["answers"]}
    assert abs(found["b - a"]["estimate"] - 1 / 9) < 5 * found["b - a"]["standard_error"]
    assert found["within users"]["low"] == 0.0
    assert found["share between users (ICC)"]["high"] > 0.9


def test_pupils_of_one_school_have_a_little_in_common(public_cache):
    """The share of the variance of scores that lies between schools, beside that of the table without privacy."""
    table = pd.read_parquet(public_cache / "Chem97.parquet", columns=["school", "gcsescore"])
    found = query(
        table,
        user="school",
        features=["gcsescore"],
        ranges={"gcsescore": [0, 8]},
        ask=[{"statistic": "variance_components", "of": "gcsescore"}],
        epsilon=4.0,
        delta=1e-6,
        progress=False,
    )
    schools = table.groupby("school")["gcsescore"].agg(["size", "mean", "var"]).query("size > 1")
    within = schools["var"].mean()
    between = schools["mean"].var() - (schools["var"] / schools["size"]).mean()
    truth = {
        "between users": between,
        "within users": within,
        "share between users (ICC)": between / (between + within),
    }
    for one in found.result["answers"]:
        assert one["low"] <= truth[one["level"]] <= one["high"]
