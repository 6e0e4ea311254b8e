"""``statistic = "survival"`` from a table to the report, and the example of docs/survival.md on its public table."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from simulations import query
from simulations.reports.answer_pictures import answer_pictures
from simulations.reports.answers import show_answers

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "survival.md").read_text(encoding="utf-8")
# Facts by lifelines 0.30.3 about the public table: shares of women and men alive just before each edge, the means up to
# the last edge below curves that are straight between edges, and logrank_test on days.
ALIVE = {
    "0": [0.98333, 0.96636, 0.94767, 0.9268, 0.89726, 0.86897, 0.84292],
    "1": [0.97747, 0.95393, 0.92873, 0.90619, 0.88083, 0.85413, 0.83669],
}
P_VALUE = 0.000777


def example():
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return code


def test_the_example_of_the_page_finds_what_lifelines_finds(public_table, capsys):
    public_table("nafld1.parquet")
    names = {}
    exec(compile(example(), "docs/survival.md", "exec"), names)
    table = names["found"].table.set_index("level")
    edges = np.arange(730, 5111, 730)
    for sex, shares in ALIVE.items():
        rows = table.loc[[f"{sex}, at {edge}" for edge in edges]]
        assert (np.abs(rows["estimate"] - shares) < 0.02).all()
        assert ((rows["low"] <= shares) & (rows["high"] >= shares)).all()
        mean = table.loc[f"{sex}, mean from 0 to 5110"]
        assert mean["low"] <= np.trapezoid([1.0, *shares], [0, *edges]) <= mean["high"]
    assert table.loc["log-rank p-value", "estimate"] < 50 * P_VALUE
    assert "log-rank p-value" in capsys.readouterr().out


def visits(rng, users):
    """People who are seen several times until an event, or until they leave."""
    event, left = rng.exponential(40, users), rng.uniform(10, 100, users)
    rows = [
        {"who": f"p{user}", "day": day, "sick": bool(day == event[user]), "arm": "new" if user % 3 else "old"}
        for user in range(users)
        for day in [*np.arange(0, min(event[user], left[user]), 20.0), min(event[user], left[user])]
    ]
    return pd.DataFrame(rows), event


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_people_with_several_rows_get_a_curve_in_report_and_console(relation, tmp_path):
    people, event = visits(np.random.default_rng(0), 3000)
    people["state"] = np.where(people["sick"], "sick", "well")
    found = query(
        people,
        user="who",
        features=["day"],
        ranges={"day": [0, 100]},
        categorical={"state": ["well", "sick"], "arm": ["old", "new"]},
        all_users=3000,
        epsilon=4.0,
        delta=1e-6,
        relation=relation,
        ask=[
            {"statistic": "survival", "time": "day", "event": "state", "event_level": "sick", "by": "arm"}
            | {"at": list(range(0, 70, 10))}
        ],
        seed=2,
        directory=tmp_path / "run",
        progress=False,
    )
    table = found.table.set_index("level")
    assert set(table["column"]) == {"state = sick"}
    for edge in range(10, 70, 10):
        for arm, part in (("old", event[::3]), ("new", np.delete(event, np.s_[::3]))):
            row = table.loc[f"{arm}, at {edge}"]
            assert abs(row["estimate"] - np.mean(part >= edge)) < 5 * row["standard_error"]
    median = table.loc["new, median up to 60"]
    assert median["low"] < 40 * np.log(2) < median["high"]
    page = found.page
    assert "Survival until state = sick" in page
    assert page.count("<svg") == 1
    assert {"old", "new"} <= set(re.findall(r">([a-z]+)</text>", page))
    console = Console(width=140, record=True)
    show_answers("trial", found.result["answers"], console)
    lines = console.export_text().splitlines()
    [line] = [one for one in lines if "log-rank p-value" in one]
    assert " to " not in line
    assert sum(" to " in one for one in lines) == len(table) - 2


def test_a_curve_that_drowns_at_once_is_drawn_up_to_there(tmp_path):
    people, _ = visits(np.random.default_rng(0), 20)
    found = query(
        people.assign(sick=people["sick"].astype(int)),
        user="who",
        features=["day", "sick"],
        ranges={"day": [0, 100], "sick": [0, 1]},
        all_users=20,
        epsilon=0.2,
        delta=1e-4,
        ask=[{"statistic": "survival", "time": "day", "event": "sick", "at": [0, 50, 100]}],
        directory=tmp_path / "run",
        progress=False,
    )
    rows = found.table.set_index("level").loc[["at 50", "at 100"]]
    assert rows["estimate"].isna().all()
    assert rows[["low", "high"]].to_numpy().tolist() == [[0.0, 1.0]] * 2
    assert repr(found).count("drowned in noise") >= 3
    assert any(line.startswith("survival of sick: noise hides it") for line in found.plan.warnings)
    assert found.page.count("<svg") == 1


@pytest.mark.parametrize("group", ["cat food", "median age", r"$1_$ to $2\frac$"])
def test_no_name_of_a_group_breaks_a_report(group):
    """Words of other answers, or what a drawing library takes for a formula."""
    common = {"column": "cost", "low": 0.1, "high": 0.9, "where": None}
    curve = [
        common | {"statistic": "survival", "level": f"{group}, {level}", "estimate": 0.5, "unit": unit}
        for level, unit in (("at 0", "share of users"), ("at 30", "share of users"), ("median up to 30", "days"))
    ]
    bars = [common | {"statistic": "counts", "level": group, "estimate": 0.5, "unit": "users"}]
    others = [one | {"level": one["level"].replace(group, "old")} for one in curve]
    pictures = answer_pictures([*curve, *others, *bars])
    assert [f">{group}</text>" in one.chart for one in pictures] == [True, True]
    assert ">days</text>" in pictures[0].chart
