"""The report of a comparison: courses by round, terms of every line, few files."""

import copy
import json
import re
import shutil

import pandas as pd
import pytest
from examples import COMPARISON

from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import compare
from simulations.comparison.plots import dot_chart, rounds_chart, sweep_chart
from simulations.comparison.report import render_comparison
from simulations.reports.explain import shown_claim
from strategies.core.program import SHARE
from userdp.errors import BadInput
from userdp.sampling import PoissonBatches

FILES = ("results.parquet", "rounds.parquet", "comparison.json", "comparison.toml")
RAW = COMPARISON | {
    "name": "terms",
    "seeds": 3,
    "problem": {"kind": "quadratic", "bound": 6.0},
    "data": COMPARISON["data"] | {"users": 400},
    "privacy": {"delta": 1e-5, "unit": "user"},
    "strategy": [
        {"kind": "dp_fed_sgd", "rounds": 2},
        {"kind": "dp_fed_sgd", "label": "poisson", "rounds": 30, "cohort": 50, "sampling": "poisson"},
        {"kind": "sample_clipped_sgd", "rounds": 3},
        {"kind": "non_private"},
    ],
    "grid": {"privacy.epsilon": [1.0, 8.0]},
}


def changed(**sections):
    raw = copy.deepcopy(RAW)
    for name, values in sections.items():
        if isinstance(values, dict):
            raw[name] = {key: value for key, value in {**raw[name], **values}.items() if value is not None}
        else:
            raw[name] = values
    return raw


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished comparison of which nothing is left but the files of its report."""
    whole = tmp_path_factory.mktemp("whole")
    compare(parse_comparison(RAW), workers=0, directory=whole)
    small = tmp_path_factory.mktemp("few")
    for name in FILES:
        shutil.copy(whole / name, small / name)
    recorded = {
        path.parent.name: pd.read_parquet(path)["metric.excess_risk"] for path in whole.rglob("cells/*/rounds.parquet")
    }
    render_comparison(small)
    return small, recorded


@pytest.fixture
def copied(folder, tmp_path):
    for name in FILES:
        shutil.copy(folder[0] / name, tmp_path / name)
    return tmp_path


def lines_of(markdown, heading):
    """Strategy -> its line in a ranking of the Markdown report."""
    section = markdown.partition(f"### {heading}")[2].partition("\n##")[0]
    return {line.split("|")[1].strip(): line for line in section.splitlines() if line.startswith("| ")}


# By round ----------------------------------------------------------------------------------------------------------


def test_rounds_file_holds_every_measured_round_of_every_finished_cell(folder):
    directory, recorded = folder
    rounds = pd.read_parquet(directory / "rounds.parquet")
    rows = pd.read_parquet(directory / "results.parquet")
    key = ["problem", "strategy", "seed", "privacy.epsilon"]
    for cell in rows.to_dict("records"):
        own = rounds[(rounds[key] == pd.Series({name: cell[name] for name in key})).all(axis=1)]
        assert own["value"].tolist() == recorded[cell["directory"].rpartition("/")[2]].tolist()
        assert own["round"].tolist() == list(range(1, cell["rounds"] + 1))
        assert own["value"].iloc[-1] == cell["value"]


def test_the_report_is_made_from_four_files_and_refuses_to_do_with_three(copied):
    (copied / "results.parquet").unlink()
    with pytest.raises(BadInput, match=r"holds no results\.parquet"):
        render_comparison(copied)


@pytest.mark.slow
def test_the_course_is_the_median_over_seeds_and_a_run_that_ended_early_keeps_its_last_model(copied, monkeypatch):
    rounds = pd.read_parquet(copied / "rounds.parquet")
    rounds = rounds[(rounds["strategy"] != "poisson") | (rounds["seed"] != 0) | (rounds["round"] <= 10)]
    rounds.to_parquet(copied / "rounds.parquet")
    seen = []
    monkeypatch.setattr("simulations.comparison.report.rounds_chart", lambda point, *_: seen.append(point) or "")
    render_comparison(copied)
    (course,) = [point["course"]["poisson"] for point in seen if point["values"]["privacy.epsilon"] == 8.0]
    assert [line["round"] for line in course] == list(range(1, 33))  # the first two find who is heard, and the clip
    own = rounds[(rounds["strategy"] == "poisson") & (rounds["privacy.epsilon"] == 8.0)]
    last = own.sort_values("round").groupby("seed")["value"].last()
    assert course[-1] == {"round": 32, "median": last.median(), "low": last.min(), "high": last.max()}
    third = own[own["round"] == 3]["value"]
    assert (course[2]["median"], course[2]["low"]) == (third.median(), third.min())


def test_charts_by_round_start_at_the_initial_model_and_name_every_strategy(folder):
    page = (folder[0] / "report.html").read_text()
    section = page.partition("<h2>By round</h2>")[2].partition("<h2>")[0]
    charts = re.findall("<svg.*?</svg>", section, flags=re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        for name in ("initial model", "without privacy", "dp_fed_sgd", "poisson", "sample_clipped_sgd"):
            assert f">{name}</text>" in chart
        # 2 rounds and 30: logarithmic, from round 0.
        labels = re.findall(r">(\d+)</text>", chart)
        assert [tick for tick in ("0", "1", "2", "5", "10", "20") if tick not in labels] == []
    assert "of the first and the last setting" not in section


@pytest.mark.slow
def test_of_many_points_the_ends_at_the_tightest_budget_are_shown_by_round(tmp_path):
    raw = changed(grid={"data.users": [300, 400, 500]}, strategy=RAW["strategy"][:1], seeds=1)
    page = compare(parse_comparison(raw), workers=0, directory=tmp_path).directory / "report.html"
    section = page.read_text().partition("<h2>By round</h2>")[2].partition("<h2>")[0]
    assert re.findall("<figcaption>(.*?):", section) == [
        f"quadratic, epsilon = 1, users = {users}" for users in (300, 500)
    ]
    assert "the first and the last setting at the tightest budget" in section


def point_of(values, *, initial=2.0, non_private=1e-5, **settings):
    ranking = [
        {"strategy": name, "median": value, "low": value, "high": value, "worse": value >= initial, "holds": True}
        for name, value in values.items()
    ]
    levels = {"initial": initial, "constant": None, "non_private": non_private}
    return {"metric": "excess risk", "index": "here", "ranking": ranking, "values": settings, "course": {}, **levels}


def test_rounds_charts_without_rounds_or_references_are_empty_or_complete():
    assert rounds_chart(point_of({"a": 1.0}), ["a"], "title") == ""
    course = {"a": [{"round": step, "median": 1.0 / step, "low": 0.0, "high": 1.0} for step in range(1, 31)]}
    alone = point_of({}, initial=None, non_private=None) | {"course": course}
    assert ">a</text>" in rounds_chart(alone, ["a", "b"], "title")
    assert "initial model" not in rounds_chart(alone, ["a", "b"], "title")
    assert ">a</text>" in dot_chart(point_of({"a": 1.0}, non_private=0.5))


@pytest.mark.slow
def test_labels_of_settings_do_not_touch():
    points = [point_of({"a": 0.1}, n=n) for n in (1, 1.01, 10, 10_000, 2_000_000)]
    chart = sweep_chart(points, "n", "n", ["a"], "title")
    labels = re.findall(">([^<>]+)</text>", chart)
    assert "1.01" not in labels
    assert {"1", "10", "10k", "2M"} <= set(labels)


# On what terms -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[1.0, 8.0])
def ranked(request, folder):
    epsilon, rows = request.param, pd.read_parquet(folder[0] / "results.parquet")
    own = rows[rows["privacy.epsilon"] == epsilon].groupby("strategy").first()
    markdown = (folder[0] / "report.md").read_text()
    return epsilon, lines_of(markdown, f"quadratic, epsilon = {epsilon:g}"), own.T


def test_every_line_of_a_ranking_says_its_relation_and_what_it_means_for_replacing_one(ranked):
    epsilon, lines, rows = ranked
    assert "user level, replace one |" in lines["dp_fed_sgd"]
    assert "level" not in lines["non_private"]
    assert "no privacy" in lines["non_private"]
    one = rows["poisson"]
    users = int(one["users"])
    sampler = PoissonBatches(users, 50 / users, 30)
    own = (1 - SHARE) * epsilon  # the last comparison takes the rest, for replacing one, too
    replaced, delta = sampler.replaced(sampler.calibrate(own, 1e-5), 1e-5)
    replaced += SHARE * epsilon
    assert epsilon < replaced < 2.5 * epsilon
    assert (one["replace_one_epsilon"], one["replace_one_delta"]) == pytest.approx((replaced, delta), rel=1e-3)
    told = f"epsilon = {shown_claim(replaced)}, delta = {shown_claim(delta)}"
    assert f"add or remove; to replace one: {told}" in lines["poisson"]
    assert rows["dp_fed_sgd"]["replace_one_epsilon"] == rows["dp_fed_sgd"]["spent_epsilon"]


def test_a_sample_level_strategy_is_ranked_at_user_level_with_both_epsilons_side_by_side(folder, ranked):
    epsilon, lines, rows = ranked
    one = rows["sample_clipped_sgd"]
    assert (one["unit"], one["group"], one["spent_epsilon"]) == ("user", 4, pytest.approx(epsilon, rel=1e-3))
    assert one["sample_level_epsilon"] < epsilon / 3
    told = (
        "for a user of 4 samples by group privacy: noise calibrated to epsilon = "
        f"{shown_claim(one['sample_level_epsilon'])} per sample"
    )
    assert told in lines["sample_clipped_sgd"]
    assert told in (folder[0] / "report.html").read_text()


@pytest.mark.slow
def test_mixed_relations_are_told_and_equal_ones_are_not(folder, tmp_path):
    for name in ("report.html", "report.md"):
        assert "Relations differ" in (folder[0] / name).read_text()
    raw = changed(strategy=[RAW["strategy"][0], RAW["strategy"][3]], seeds=1)
    directory = compare(parse_comparison(raw), workers=0, directory=tmp_path).directory
    for name in ("report.html", "report.md"):
        assert "Relations differ" not in (directory / name).read_text()


def test_strategies_with_the_same_promise_stand_under_it_together(folder):
    text = (folder[0] / "report.md").read_text().partition("## What each guarantee means")[2].partition("\n## ")[0]
    assert text.count("If any one person (user)") == 2  # replaced; added or left out
    assert text.count("No privacy is promised") == 1
    for label in ("dp_fed_sgd", "poisson", "sample_clipped_sgd", "non_private"):
        assert text.count(f"- **{label}**") == 1


def test_the_report_says_how_to_do_it_again(folder):
    versions = json.loads((folder[0] / "comparison.json").read_text())["versions"]
    told = [
        "userdp compare comparison.toml",
        "seeds 0, 1, 2",
        *(f"{package} {one}" for package, one in versions.items()),
    ]
    for name in ("report.html", "report.md"):
        text = (folder[0] / name).read_text()
        assert [one for one in told if one not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("fallen", [1e-15, 0.0, -0.3])
def test_no_share_of_a_way_is_shown_where_the_reference_did_not_get_below_the_initial_model(folder, copied, fallen):
    frame = pd.read_parquet(copied / "results.parquet")
    stuck = frame["privacy.epsilon"] == 1.0
    frame.loc[stuck, "reference_private"] = frame.loc[stuck, "initial"].median() * (1 - fallen)
    frame.to_parquet(copied / "results.parquet")
    render_comparison(copied)
    told = "Training without privacy did not get below the initial model, so there is no gap to close"
    for name in ("report.html", "report.md"):
        text = (copied / name).read_text()
        assert f"{told} (quadratic, epsilon = 1)" in text
        assert "did not converge" in text
        assert told not in (folder[0] / name).read_text()
    markdown = (copied / "report.md").read_text()
    for heading, measured in (("quadratic, epsilon = 1", False), ("quadratic, epsilon = 8", True)):
        line = lines_of(markdown, heading)["dp_fed_sgd"]
        assert ("%" in line) == measured


@pytest.mark.slow
def test_settings_that_are_lists_and_cells_that_lost_their_files_are_reported(tmp_path):
    raw = changed(grid={"data.mean": [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]}, privacy={"epsilon": 1.0}, seeds=1)
    raw["strategy"] = raw["strategy"][:1]
    del raw["grid"]["privacy.epsilon"]
    directory = compare(parse_comparison(raw), workers=0, directory=tmp_path).directory
    rounds = pd.read_parquet(directory / "rounds.parquet")
    assert rounds.groupby("data.mean")["round"].apply(list).to_dict() == {
        "[0.1, 0.2, 0.3]": [1, 2, 3, 4],
        "[0.3, 0.2, 0.1]": [1, 2, 3, 4],
    }
    assert (directory / "report.html").read_text().count("by round.</figcaption>") == 2
    next(directory.glob("cells/*/rounds.parquet")).unlink()
    assert compare(parse_comparison(raw), workers=0, directory=tmp_path).ran == 0
    assert (directory / "report.html").read_text().count("by round.</figcaption>") == 1
