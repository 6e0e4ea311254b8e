"""``userdp query`` and ``userdp.query``: files, engines, silos, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w
from examples import call, write_table
from helpers import PATIENCE, forgive_ray
from helpers_flower import ROOT, RUN, run_on_flower

from simulations import query
from simulations.config.run_config import load_config, parse_config
from simulations.engines.grids import LocalGrid
from simulations.reports.report import copy_released
from simulations.runs.build import build_problem
from simulations.runs.run import run
from simulations.runs.silos import prepare, silo_node
from userdp.errors import BadInput

USERS = 120
COLUMNS = {
    "user": "who",
    "features": ["height", "count"],
    "ranges": {"height": [150.0, 200.0], "count": [0.0, 9.0]},
    "categorical": {"team": ["red", "green"]},
}
ASK = [
    {"statistic": "mean", "of": "height"},
    {"statistic": "histogram", "of": "count", "bins": [0, 3, 6, 9], "weight": 2},
    {"statistic": "counts", "of": "team"},
    {"statistic": "group_means", "of": "height", "by": "team"},
    {"statistic": "quantiles", "of": "height", "at": [0.5]},
    {"statistic": "survival", "time": "height", "event": "team", "event_level": "red", "at": [150, 170, 190]},
    {"statistic": "count", "where": {"team": "red"}},
    {"statistic": "sum", "of": "count", "bound": 20, "where": {"height": [160, 200], "team": ["red", "green"]}},
    {"statistic": "effect", "of": "height", "by": "team", "stratum": "passed"},
    {"statistic": "variance_components", "of": "count"},
    {"statistic": "shares", "of": ["team", "passed"]},
]
BUDGET = {"epsilon": 4.0, "delta": 1e-4}


@pytest.fixture
def raw(tmp_path):
    path = write_table(tmp_path / "people.csv", users=USERS)
    data = {"kind": "table", "path": str(path), "all_users": USERS, "max_samples": 4, **COLUMNS}
    data["categorical"] = COLUMNS["categorical"] | {"passed": ["yes", "no"]}
    return {"name": "teams", "data": data, "privacy": dict(BUDGET), "ask": [dict(one) for one in ASK]}


@pytest.fixture
def file(tmp_path, raw):
    path = tmp_path / "query.toml"
    path.write_text(tomli_w.dumps(raw))
    return path


def test_the_command_answers_and_writes_open_files(file, tmp_path):
    done = call("query", file, "--json", "--output", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    found = {(one["statistic"], one["level"]): one for one in result["answers"]}
    assert found["mean", None]["low"] < found["mean", None]["estimate"] < found["mean", None]["high"]
    assert 160 < found["mean", None]["estimate"] < 190
    assert found["counts", "red"]["unit"] == "users"
    assert {level for kind, level in found if kind == "histogram"} == {"[0, 3)", "[3, 6)", "[6, 9]"}
    assert result["guarantee"]["epsilon"] <= 4.0
    assert "not_measured" not in result
    (directory,) = (tmp_path / "runs").iterdir()
    table = pd.read_csv(directory / "answers.csv")
    known = pd.Series([one["estimate"] for one in result["answers"]], dtype=float)  # None: drowned in noise
    np.testing.assert_allclose(table["estimate"], known)
    words = "height in [160, 200], team = red or green"
    assert [one["where"] for one in result["answers"] if one["statistic"] in ("count", "sum")] == ["team = red", words]
    assert table["where"].dropna().tolist() == ["team = red", words]
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert f"count, where {words}" in page
    assert page.count("<svg") == 6
    assert "Histogram of count" in page
    shown = call("query", file, "--output", tmp_path / "runs")
    assert "teams: answers" in shown.stdout
    assert "where" in shown.stdout
    assert "-differential privacy for replacing one whole" in shown.stdout
    refused = call("plan", "--all", file)
    assert (refused.exit_code, "no strategies are ranked for it" in refused.output) == (2, True)
    planned = call("plan", file, "--json")
    assert json.loads(planned.stdout)["guarantee"]["epsilon"] <= 4.0


def test_a_copy_for_others_holds_the_answers(raw, tmp_path):
    raw["data"]["kind"] = "table"
    raw["privacy"]["noise"] = "secure"
    done = run(parse_config(raw), directory=tmp_path / "run")
    copy_released(done.directory, tmp_path / "copy")
    assert (tmp_path / "copy" / "answers.csv").read_text() == (done.directory / "answers.csv").read_text()
    assert json.loads((tmp_path / "copy" / "result.json").read_text())["answers"] == done.result["answers"]
    carded = call("report", done.directory, "--card")
    assert carded.exit_code == 0, carded.output
    card = json.loads((done.directory / "card.json").read_text())
    assert (card["strategy"], card["holds"]) == ("statistics", True)
    values = {line["name"]: line["value"] for part in card["parts"] for line in part["lines"]}
    assert values["Epsilon"] == done.guarantee.epsilon


@pytest.mark.usefixtures("accounts")
def test_an_account_has_the_whole_query_once(raw, tmp_path):
    """All statistics share one budget."""
    raw["privacy"] |= {"noise": "secure", "account": "clinic"}
    assert call("account", "create", "clinic", "--epsilon", 5, "--delta", 1e-4).exit_code == 0
    run(parse_config(raw), directory=tmp_path / "run", report=False)
    shown = json.loads(call("account", "show", "clinic", "--json").stdout)
    assert [one["what"] for one in shown["entries"]] == ["teams: statistics"]
    assert 3.9 < shown["spent_epsilon"] <= 4.0
    with pytest.raises(BadInput, match="clinic"):
        run(parse_config(raw), directory=tmp_path / "again", report=False)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_a_silo_too_small_to_tell_of_or_without_people_is_told_apart_from_one_whose_mean_is_zero(relation, tmp_path):
    silos = np.repeat(["north", "south", "tiny"], [60, 60, 2])
    sick = np.where(silos == "south", 0.0, np.random.default_rng(0).uniform(0, 1, len(silos)))
    people = pd.DataFrame({"who": [f"person {number}" for number in range(len(silos))], "silo": silos, "sick": sick})
    columns = {"features": ["sick"], "ranges": {"sick": [0.0, 1.0]}, "all_users": len(silos), "epsilon": 2.0}
    columns |= {"user": "who", "categorical": {"silo": ["north", "south", "tiny", "nobody"]}, "delta": 1e-4}
    ask = [{"statistic": "group_means", "of": "sick", "by": "silo"}]
    found = query(people, ask=ask, relation=relation, seed=1, directory=tmp_path / "run", progress=False, **columns)
    rows = found.table.set_index("level")
    assert rows["estimate"].isna().to_dict() == {"north": False, "south": False, "tiny": True, "nobody": True}
    assert rows.loc["south", "estimate"] < 0.1
    assert rows.loc["south", "high"] < 0.2
    assert rows.loc[["tiny", "nobody"], ["low", "high"]].to_numpy().tolist() == [[0.0, 1.0], [0.0, 1.0]]
    file = pd.read_csv(tmp_path / "run" / "answers.csv", index_col="level")
    told = {one["level"]: one["estimate"] for one in found.result["answers"]}
    for silo in ("tiny", "nobody"):
        assert np.isnan(file.loc[silo, "estimate"])
        assert told[silo] is None
    assert repr(found).count("drowned in noise") == found.page.count("drowned in noise") == 2
    for text in (repr(found), found.page):
        assert "Where noise hides an answer: declare narrower data.ranges (userdp find proposes them)" in text


def test_two_copies_for_others_hold_the_same_released_numbers_and_no_others(raw, tmp_path):
    """Whoever has both knows no more than whoever has one: no copy draws noise, nor tells what stays at home."""
    raw["privacy"]["noise"] = "secure"
    done = run(parse_config(raw), directory=tmp_path / "run")
    one, other = (copy_released(done.directory, tmp_path / name).parent for name in ("one", "other"))
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name
    for copied in (one, other):
        assert json.loads((copied / "result.json").read_text())["answers"] == done.result["answers"]
        assert not [path.name for path in copied.iterdir() if b"_private" in path.read_bytes()]
    with pytest.raises(BadInput, match="must be a new or an empty folder"):
        copy_released(done.directory, one)


def test_describe_takes_a_frame_and_has_a_default(raw):
    frame = pd.read_csv(raw["data"]["path"])
    found = query(frame, **COLUMNS, **BUDGET, progress=False)
    assert list(found.table.columns) == [
        *("statistic", "column", "level", "estimate", "standard_error", "low", "high", "unit", "where")
    ]
    assert found.table.groupby("statistic").size().to_dict() == {"counts": 3, "mean": 2, "quantiles": 6}
    assert "Guarantee: (4, 0.0001)-differential privacy" in repr(found)
    again = query(frame, ask=ASK[:1], relation="add_or_remove", all_users=200, **COLUMNS, **BUDGET, progress=False)
    assert again.guarantee.relation == "add_or_remove"
    assert again.directory is None
    for ask in (ASK[0], 3):
        with pytest.raises(BadInput, match="ask must be a list of statistics"):
            query(frame, ask=ask, **COLUMNS, **BUDGET, progress=False)
    same = query(raw, progress=False)
    assert same.table["statistic"].nunique() == len(ASK)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"problem": {"kind": "squared"}}, "problem is given beside ask: a query trains nothing"),
        ({"ask": {"statistic": "mean"}}, r"each written \[\[ask\]\]"),
        ({"ask": [{"statistic": "mode", "of": "height"}]}, r"\[\[ask\]\] 1: statistic = 'mode' is unknown"),
        ({"ask": [{"statistic": "mean", "of": "height", "wieght": 2}]}, "unknown key wieght; did you mean weight"),
        ({"ask": [{"statistic": "mean", "of": "hight"}]}, "did you mean 'height'"),
        (
            {"ask": [{"statistic": "count", "where": {"team": "redd"}}]},
            "where.team = 'redd': there is no such level; did",
        ),
        ({"privacy": {"epsilon": 1.0, "delta": 0.0}}, "privacy.delta = 0"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-6, "relation": "none"}}, "relation"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(raw, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        query(raw | change, progress=False)


def test_a_configuration_that_trains_is_no_query(tmp_path):
    with pytest.raises(BadInput, match=r"write \[\[ask\]\] sections"):
        query(ROOT / "simulations/configs/quickstart.toml")


@forgive_ray
@pytest.mark.slow
def test_ray_gives_the_answers_of_the_local_engine_to_the_bit(raw, tmp_path):
    raw["engine"] = {"users_per_node": 15}
    here, there = (
        run(parse_config(raw | {"engine": raw["engine"] | {"kind": kind}}), directory=tmp_path / kind, report=False)
        for kind in ("local", "ray")
    )
    np.testing.assert_array_equal(there.model, here.model)
    assert there.result["answers"] == here.result["answers"]


@pytest.mark.long
@pytest.mark.slow
def test_flower_gives_the_answers_of_the_local_engine_to_the_bit(file, tmp_path):
    asked = {"config": str(file), "roster_timeout": PATIENCE, "output": str(tmp_path / "flower")}
    run_on_flower(tmp_path / "home", RUN, 8, asked)
    here = run(load_config(file, ["engine.users_per_node=15"]), directory=tmp_path / "local", report=False)
    np.testing.assert_array_equal(np.load(tmp_path / "flower" / "model.npz")["x"], here.model)
    result = json.loads((tmp_path / "flower" / "result.json").read_text())
    assert result["answers"] == here.result["answers"]


@pytest.mark.parametrize("trust", ["server", "sum"])
@pytest.mark.usefixtures("accounts")
def test_silos_answer_with_their_own_tables(raw, tmp_path, trust):
    frame = pd.read_csv(raw["data"]["path"])
    people, nodes = frame["who"].unique(), []
    raw["privacy"] |= {"noise": "secure", "trust": trust}
    raw["ask"] = [one for one in raw["ask"] if one["statistic"] != "quantiles"]
    for number, part in enumerate(np.array_split(people, 3)):
        own = tmp_path / f"{number}.csv"
        frame[frame["who"].isin(part)].to_csv(own, index=False)
        config = parse_config(raw | {"data": raw["data"] | {"path": str(own), "all_users": len(part)}})
        prepare(config, tmp_path / str(number), number * len(part))
        nodes.append(silo_node(parse_config(raw), build_problem(config), tmp_path / str(number)))
    with LocalGrid(nodes) as grid:
        done = run(parse_config(raw), grid=grid, directory=tmp_path / "run", deployed=True, report=False)
    assert done.guarantee.holds
    counts = [one for one in done.result["answers"] if one["statistic"] == "counts"]
    assert sum(one["estimate"] for one in counts) == pytest.approx(USERS, rel=1e-6)
