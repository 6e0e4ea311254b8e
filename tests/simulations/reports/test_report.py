import json
import re

import pandas as pd
import pytest
from examples import changed
from matplotlib.figure import Figure

from simulations.config.run_config import parse_config
from simulations.reports.explain import shown
from simulations.reports.plots import _scale as scale_of
from simulations.reports.plots import course_chart, score_chart
from simulations.reports.report import promise, render, verdict
from simulations.runs.run import run
from userdp.errors import BadInput

ROBUST = {"kind": "localized_robust_sgd", "batch": 500, "phases": 2, "deviation": 1.0}


@pytest.fixture(scope="module")
def robust(tmp_path_factory):
    """The directory of a run with tests and two releases."""
    raw = changed(name="robust", strategy=ROBUST, data__users=4000)
    return run(parse_config(raw), directory=tmp_path_factory.mktemp("report") / "run").directory


def page_of(directory):
    return (directory / "report.html").read_text(encoding="utf-8")


def test_the_page_is_complete_in_itself(robust):
    page = page_of(robust)
    assert "<script" not in page
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?[^"'#]|url\(["']?[^"'#]|@import""", page)
    assert "http" not in page.replace("https", "http")
    assert page.count("<svg") == page.count("</svg>") == 3


def test_the_page_says_what_is_promised_and_from_whom(robust):
    page, guarantee = page_of(robust), json.loads((robust / "guarantee.json").read_text())
    assert f"epsilon = {shown(guarantee['epsilon'])}" in page
    assert "user level" in page
    for sentence in [guarantee["adversary"], guarantee["accountant"], *guarantee["assumptions"]]:
        assert sentence.replace("'", "&#39;") in page


def test_the_page_compares_with_the_initial_model_and_with_no_privacy(robust):
    page, result = page_of(robust), json.loads((robust / "result.json").read_text())
    for values in (result["metrics"], result["reference"]["initial"], result["reference_private"]["non_private"]):
        assert shown(values["excess_risk"]) in page
    assert page.index("Better than the initial model") < page.index("The plan")


def test_the_page_marks_what_the_guarantee_does_not_cover(robust):
    page = page_of(robust)
    assert "Measured on the released model with held-out users. Simulation only, not covered" in page
    assert "exact about them, and no guarantee covers them" in page
    assert "Exact, from private data: for the holder of the data alone; not covered by the\nguarantee." in page


def test_the_page_explains_the_plan_and_how_to_do_it_again(robust):
    page, plan = page_of(robust), json.loads((robust / "plan.json").read_text())
    for name in plan["numbers"]:
        assert name.replace("_", " ") in page
    assert "userdp run config.toml" in page
    assert "seed is 3" in page
    assert "numpy" in page
    assert 'name = "robust"'.replace('"', "&#34;") in page


def test_warnings_of_the_plan_and_failed_tests_are_shown(robust, tmp_path):
    for name in ("config.toml", "plan.json", "result.json", "guarantee.json", "rounds.parquet", "data.json"):
        (tmp_path / name).write_bytes((robust / name).read_bytes())
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["warnings"] = ["the noise is expected to drown the <signal>"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    rounds.loc[rounds["fact.passed"] == 1, "fact.passed"] = 0.0
    rounds.to_parquet(tmp_path / "rounds.parquet")
    page = render(tmp_path).read_text(encoding="utf-8")
    assert "drown the &lt;signal&gt;" in page
    assert "2 tests failed" in page


def test_a_model_worse_than_doing_nothing_is_called_that_at_the_top(tmp_path):
    raw = changed(privacy__epsilon=0.01, output={"reference": False})
    page = page_of(run(parse_config(raw), directory=tmp_path / "run").directory)
    assert page.index("Worse than doing nothing") < page.index("The privacy guarantee")


def test_no_guarantee_is_plain(tmp_path):
    raw = changed(strategy={"kind": "non_private"})
    page = page_of(run(parse_config(raw), directory=tmp_path / "run").directory)
    assert "No privacy guarantee" in page
    assert "treat the model as if it were the data" in page
    assert "epsilon = " not in page.split("Metrics")[0]


def test_a_run_without_metrics_has_a_page_too(tmp_path):
    raw = changed(problem={"kind": "huber", "bound": 5.0}, data__test_users=0)
    page = page_of(run(parse_config(raw), directory=tmp_path / "run").directory)
    assert "Not measured" in page
    assert "<svg" not in page


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"holds no config.toml: give the directory of a run"):
        render(tmp_path)


# Sentences ---------------------------------------------------------------------------------------------------------


def guarantee(**settings):
    return {"holds": True, "unit": "user", "relation": "replace_one", "epsilon": 1.0, "delta": 1e-6} | settings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "more than 2.72 times as likely"),
        ({"epsilon": 30.0}, "more than e^30 times"),
        ({"unit": "sample"}, "does NOT protect a person who holds several samples"),
        ({"relation": "add_or_remove"}, "were added or left out"),
        ({"holds": False}, "No privacy is promised"),
    ],
    ids=str,
)
def test_the_promise_in_plain_words(settings, told):
    assert told in promise(guarantee(**settings))


def test_the_verdict_compares_with_doing_nothing():
    result = {
        "strategy": "dp_fed_sgd",
        "metrics": {"test_loss": 0.5},
        "reference": {"initial": {"test_loss": 0.7}},
        "reference_private": {"non_private": {"test_loss": 0.4}},
        "better_than_initial": True,
    }
    kind, sentence = verdict(result)
    assert kind == "good"
    assert "fell from 0.7 to 0.5." in sentence
    assert "0.4" not in sentence
    assert verdict({**result, "better_than_initial": False})[0] == "bad"
    assert verdict({**result, "metrics": {"test_loss": None}})[0] == "none"
    assert verdict({**result, "error": "no replies"})[1].startswith("The run stopped early: no replies")


def test_numbers_are_short():
    assert [shown(value) for value in (0.123456, 12345.6, 1234567, 1e-7, None, True, False, "x", 2e9)] == [
        "0.1235",
        "12,346",
        "1,234,567",
        "1e-07",
        "none",
        "yes",
        "no",
        "x",
        "2e+09",
    ]


# Charts ------------------------------------------------------------------------------------------------------------


def test_charts_follow_the_colours_of_the_page():
    rounds = pd.DataFrame({"round": [1, 2, 3], "metric.test_loss": [1.0, None, 0.5]})
    chart = course_chart(rounds, "test_loss", {"initial model": 2.0})
    assert "currentColor" in chart
    assert "#010203" not in chart
    assert "initial model" in chart
    assert "xmlns" not in chart
    assert chart == course_chart(rounds, "test_loss", {"initial model": 2.0})


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1.0, 0.001], "log"), ([1.0, 0.1], "linear"), ([1.0, -0.001], "linear"), ([1.0, 0.0], "linear")],
)
def test_a_chart_is_logarithmic_where_positive_values_span_orders(values, scale):
    axes = Figure().add_subplot()
    scale_of(axes, values)
    assert axes.get_yscale() == scale


def test_the_score_chart_holds_score_and_threshold():
    rounds = pd.DataFrame({"round": [1, 2], "fact.score_private": [9.0, 8.0], "fact.threshold": [5.0, 5.0]})
    chart = score_chart(rounds)
    assert "threshold" in chart
    assert "agreement" in chart
