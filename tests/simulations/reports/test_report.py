import json
import re
import shutil
import tomllib
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import GUARANTEE, changed, table_section, write_table
from flwr.common.constant import FAB_INCLUDE_PATTERNS
from matplotlib.figure import Figure
from rich.console import Console

from simulations.api.console import show_plan
from simulations.config.run_config import parse_config
from simulations.records.released_fields import RELEASED
from simulations.reports.explain import NOTHING_PROMISED, show_promise, shown, shown_apart, shown_promise
from simulations.reports.plots import _scale as scale_of
from simulations.reports.plots import course_chart, score_chart
from simulations.reports.report import TEMPLATES, _numbers, page, promise, render
from simulations.reports.standing import NOT_RELEASED, Usable, about_constant, standing
from simulations.reports.units import in_target_units
from simulations.runs.build import load_datasets, make_plan
from simulations.runs.run import run
from userdp.accounting.composition import promises_something

ROBUST = {"kind": "localized_robust_sgd", "batch": 500, "phases": 2, "deviation": 1.0}


@pytest.fixture(scope="module")
def robust(tmp_path_factory):
    raw = changed(name="robust", strategy=ROBUST, data__users=4000)
    return run(parse_config(raw), directory=tmp_path_factory.mktemp("report") / "run").directory


def page_of(directory):
    return (directory / "report.html").read_text(encoding="utf-8")


def made(folder, **settings):
    directory = run(parse_config(changed(**settings)), directory=folder / "run").directory
    return directory, page_of(directory)


def test_the_page_is_complete_in_itself(robust):
    page = page_of(robust)
    assert "<script" not in page
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?[^"'#]|url\(["']?[^"'#]|@import""", page)
    assert "http" not in page.replace("https", "http")
    assert page.count("<svg") == page.count("</svg>") == 3


def test_templates_travel_with_the_package_and_with_a_flower_app():
    root = Path(__file__).resolve().parents[3]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["simulations"]
    templates = set(TEMPLATES.iterdir())
    assert {template.name for template in templates} >= {"base.html.md", "run.html.md"}
    assert templates == set(TEMPLATES.glob("*.md")) == set((root / "simulations").glob("reports/templates/*.md"))
    assert "reports/templates/*.md" in patterns
    assert "**/*.md" in FAB_INCLUDE_PATTERNS


def test_the_page_says_what_is_promised_and_from_whom_and_marks_what_the_guarantee_does_not_cover(robust):
    page, guarantee = page_of(robust), json.loads((robust / "guarantee.json").read_text())
    assert f"epsilon = {shown(guarantee['epsilon'])}" in page
    assert "user level" in page
    for sentence in [guarantee["adversary"], guarantee["accountant"], *guarantee["assumptions"]]:
        assert sentence.replace("'", "&#39;") in page
    assert "Measured on the released model with held-out users. Simulation only, not covered" in page
    assert "They are exact for these users, and no guarantee\ncovers them" in page
    assert "Exact, from private data: for the holder of the data alone; not covered by the\nguarantee." in page


def test_the_page_compares_with_the_initial_model_and_with_no_privacy(robust):
    page, result = page_of(robust), json.loads((robust / "result.json").read_text())
    for values in (result["metrics"], result["reference"]["initial"], result["reference_private"]["non_private"]):
        assert shown(values["excess_risk"]) in page
    assert page.index("Better than the initial model") < page.index("The plan")


def test_the_page_explains_the_plan_and_how_to_do_it_again(robust):
    page, plan = page_of(robust), json.loads((robust / "plan.json").read_text())
    for name in plan["numbers"]:
        assert name.replace("_", " ") in page
    assert "userdp run config.toml" in page
    assert "seed is 3" in page
    assert "numpy" in page
    assert 'name = "robust"'.replace('"', "&#34;") in page


@pytest.mark.slow
def test_warnings_of_the_plan_and_failed_tests_are_shown(robust, tmp_path):
    shutil.copytree(robust, tmp_path, dirs_exist_ok=True)
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
    _, page = made(tmp_path, privacy__epsilon=0.01, output={"reference": False, "anyway": True})
    assert page.index("WORSE than the initial model") < page.index("The privacy guarantee")


def test_no_guarantee_is_plain(tmp_path):
    _, page = made(tmp_path, strategy={"kind": "non_private"})
    assert "No privacy guarantee" in page
    assert "treat the model as if it were the data" in page
    assert "epsilon = " not in page.split("Metrics")[0]


def test_a_run_of_nobody_held_out_and_no_closed_form_is_not_measured_and_has_a_page_too(tmp_path):
    directory, page = made(tmp_path, problem={"kind": "huber", "bound": 5.0}, data__test_users=0)
    result = json.loads((directory / "result.json").read_text())
    assert (result["metrics"], result["better_than_initial"]) == ({}, None)
    assert not {"curves", "measured_users", "standard_errors"} & set(result)
    assert "Not measured" in page
    assert "<svg" not in page


def test_the_page_tells_what_loading_the_table_clipped_and_did_not_know(tmp_path):
    # Cells of heights lie in 150..200; of the three teams one is declared.
    data = table_section(
        write_table(tmp_path / "t.csv"),
        ranges={"height": [150.0, 160.0]},
        categorical={"team": ["red"]},
        test_fraction=0.0,
    )
    directory, page = made(tmp_path, problem={"kind": "logistic"}, data=data, output={"reference": False})
    counted = json.loads((directory / "data.json").read_text())["table_private"]
    public, private = page.split('id="figures_private"')
    unknown = counted["unknown_levels"]["team"]
    assert 0 < counted["clipped"]["height"] < 240 == counted["samples"]
    assert 24 < unknown < 240
    assert f"(height: {counted['clipped']['height']} of 240)" in private
    assert f"{unknown} cells that hold none of the declared levels of their column (team: {unknown} of 240)" in private
    assert "a tenth of the cells of the feature &#39;team&#39;" in private
    assert "nodes clipped 0 samples into the problem's bounds, after loading" in private
    assert "of 240" not in public
    assert "a tenth of the cells" not in public


def test_errors_are_told_in_the_units_of_the_target(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.reports.report._course", lambda *_: None)  # charts are slow
    data = table_section(
        write_table(tmp_path / "t.csv"),
        features=["count"],
        ranges={"count": [0.0, 9.0]},
        categorical=None,
        positive=None,
    ) | {"target": "height", "target_range": [100.0, 200.0], "scale": "unit"}
    raw = changed(problem={"kind": "squared"}, data=data, strategy__rounds=1, output={"reference": False})
    outcome = run(parse_config(raw), directory=tmp_path / "run", report=False)
    # The initial model says 0, the middle of the range: 150.
    people = load_datasets(parse_config(raw)).test
    block = people.block(np.arange(people.users))
    heights = 150 + 50 * block.targets.astype(float)
    mine = in_target_units(outcome.result["reference"]["initial"], data)
    assert mine["root mean squared error, in units of height"] == pytest.approx(np.sqrt(((heights - 150) ** 2).mean()))
    told = page(outcome.directory).partition("root mean squared error, in units of height")[2][:400]
    for metrics in (outcome.result["metrics"], outcome.result["reference"]["initial"]):
        assert re.search(rf">{shown(50 * metrics['squared_error'] ** 0.5)}( \+/- [\d.]+)?<", told)


def test_what_a_clip_is_tuned_by_stands_in_the_private_section_alone(tmp_path):
    directory, told = made(tmp_path, data__users=100, privacy__delta=1e-4)
    public, _, private = told.partition('id="figures_private"')
    lengths = pd.read_parquet(directory / "rounds.parquet")["fact.median_length_private"]
    assert "median length" not in public
    row = private.partition("<td>median length</td>")[2].partition("</tr>")[0]
    assert [f">{shown(value)}<" in row for value in (lengths.iloc[0], lengths.median(), lengths.iloc[-1])] == [True] * 3
    assert "clipped share" in private
    assert "noise over signal" in private
    assert "median length" not in page(directory, RELEASED)


def test_public_data_have_the_units_that_they_declare():
    data = {"kind": "public", "name": "insteval"}
    assert in_target_units({"squared_error": 0.25}, data) == {"root mean squared error, in units of y": 1.0}
    assert in_target_units({"squared_error": 0.25}, data | {"target": "other"}) == {}
    assert in_target_units({"squared_error": None}, data) == {}
    assert in_target_units({"absolute_error": 0.5}, {"target": "t", "target_range": [0, 10]}) == {
        "absolute error, in units of t": 2.5
    }


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


def test_numbers_side_by_side_have_the_digits_that_tell_them_apart():
    assert shown_apart([1.0, 2.0, None]) == ["1", "2", "none"]
    assert shown_apart([1.0, 0.9999996]) == ["1", "0.9999996"]
    assert shown_apart([12345.1, 12345.3]) == ["12,345.1", "12,345.3"]
    assert shown_apart([0.1, 0.1]) == ["0.1", "0.1"]
    assert len(set(shown_apart([0.1, 0.1 + 2e-17, 0.3, 0.1 + 0.2]))) == 4


def result_of(loss, constant, initial, released=None, **metrics):
    reference = {name: {"test_loss": one} for name, one in (("initial", initial), ("constant", constant)) if one}
    return {
        "strategy": "dp_fed_sgd",
        "metrics": {"test_loss": loss, **metrics},
        "reference": reference | {"released_constant": released and {"test_loss": released}},
        "reference_private": {"non_private": {"test_loss": 0.4}},
    }


@pytest.mark.parametrize(
    ("losses", "kind", "title"),
    [
        ((0.5, 0.6, 0.7), "good", "Better than the best constant"),
        ((0.6, 0.6, 0.7), "even", "Equal to the best constant, no better"),
        ((0.65, 0.6, 0.7), "bad", "WORSE than the best constant"),
        ((0.5, None, 0.7), "good", "Better than the initial model"),
        ((0.8, None, 0.7), "bad", "WORSE than the initial model"),
        ((0.9999996, None, 1), "good", "Better than the initial model"),
        ((1, None, 1), "even", "Equal to the initial model, no better"),
        ((1.0000004, None, 1), "bad", "WORSE than the initial model"),
        ((0.55, 0.6, 0.5), "bad", "WORSE than the initial model"),  # one that was trained on public data
        ((0.62, 0.6, 0.7, 0.65), "good", "Better than the best constant"),  # than the one that anybody could have used
        ((None, 0.6, 0.7), "none", "Not measured"),
    ],
)
def test_the_verdict_compares_with_the_better_of_what_needs_no_features(losses, kind, title):
    found = standing(result_of(*losses), None)
    assert (found.kind, found.title) == (kind, title)
    assert "0.4" not in found.explanation  # training without privacy is for the data's holder alone
    if kind != "none":
        assert (
            f"The test loss is {losses[0]}, against {losses[3] if len(losses) > 3 else losses[1] or losses[2]}"
            in found.explanation
        )


def test_a_difference_within_its_interval_is_no_verdict():
    result = result_of(0.53087, 0.53086, 0.7)
    result["reference"]["difference_errors"] = {"constant": 0.017}
    found = standing(result, None)
    assert (found.kind, found.title) == ("even", "No clear difference from the best constant")
    assert "standard error of 0.017" in found.explanation
    assert "Do not use" not in found.explanation


@pytest.mark.parametrize(("error", "good"), [(0.001, False), (0.05, True)])
def test_no_verdict_is_good_where_a_noisy_constant_is_beaten_and_the_mean_clearly_beats_the_model(error, good):
    result = result_of(0.62, 0.6, 0.7, 0.65)
    result["reference"]["difference_errors"] = {"constant": error, "released_constant": 0.001}
    found, limit = standing(result, None), "" if good else ", worse than the mean"
    assert (found.kind, found.title) == ("good" if good else "even", f"Better than the best constant{limit}")


def test_the_verdict_tells_what_is_explained_and_where_the_constant_comes_from():
    result = result_of(0.5, 0.6, 0.7, r2=1 / 6)
    assert standing(result, None).explanation.endswith(
        "against 0.6 for the best constant and 0.7 for the initial model; R2 is 0.167."
    )
    assert about_constant(result) == NOT_RELEASED
    assert "the run released" in about_constant(result_of(0.5, 0.6, 0.7, 0.61))
    assert about_constant(result_of(0.5, None, 0.7)) is None
    assert standing({**result, "error": "no replies"}, None).explanation.startswith("The run stopped early: no replies")


@pytest.mark.parametrize(
    ("share", "deviation", "good"),
    [(1.0, 0.01, True), (0.89, 0.01, True), (0.89, 0.004, False), (0.3, 0.25, False), (0.3, 0.4, True)],
)
def test_no_verdict_is_good_where_the_released_usable_share_is_small_beyond_its_noise(share, deviation, good):
    rounds = pd.DataFrame({"fact.filled_share": [None, share, None], "fact.noise_deviation": [9.0, deviation, 9.0]})
    usable = Usable.of(rounds)
    found = standing(result_of(0.5, 0.6, 0.7), usable)
    assert found.kind == ("good" if good else "even")
    assert f"{100 * share:.3g} % could be used, the mean of the share of people who were heard" in found.explanation
    assert ("data.impute" in found.explanation) == (not good)
    assert standing(result_of(0.65, 0.6, 0.7), usable).kind == "bad"
    assert Usable.of(rounds[:1]) is None is Usable.of(pd.DataFrame())


def test_numbers_are_short():
    short = {0.123456: "0.1235", 12345.6: "12,346", 1234567: "1,234,567", 1e-7: "1e-07", 2e9: "2e+09"}
    short |= {None: "none", True: "yes", False: "no", "x": "x"}
    assert {value: shown(value) for value in short} == short


# Charts ------------------------------------------------------------------------------------------------------------


def test_charts_follow_the_colours_of_the_page():
    rounds = pd.DataFrame({"round": [1, 2, 3], "metric.test_loss": [1.0, None, 0.5]})
    chart, again = (course_chart(rounds, "test_loss", 2.0, {"initial model": 2.0}) for _ in range(2))
    assert chart == again
    assert {"currentColor", "initial model"} == {
        word for word in ("currentColor", "initial model", "#010203", "xmlns") if word in chart
    }


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
    assert [word for word in ("threshold", "agreement") if word not in score_chart(rounds)] == []


def test_a_guarantee_is_printed_with_what_it_rests_on():
    """`show_promise` prints it, for run, plan and predict."""
    console = Console(record=True, width=200, file=StringIO())
    show_promise(GUARANTEE, console)
    told = [line.strip() for line in console.export_text().splitlines()]
    assert told[0].startswith("Guarantee. (2, 1e-05)-differential privacy")
    assert told[1:] == [f"assuming: {one}" for one in GUARANTEE.assumptions]


# A promise for adding or removing, told as one for replacing: only where it promises something -----------------------


@pytest.mark.parametrize(("delta", "users", "something"), [(1e-5, 1000, True), (1e-3, 1000, False), (0.3, 2, True)])
def test_a_delta_of_one_in_all_users_promises_nothing(delta, users, something):
    """A mechanism that publishes one user drawn at random keeps to it."""
    assert promises_something(delta, users) is something
    assert (shown_promise(2.0, delta, users) == NOTHING_PROMISED) is not something


@pytest.mark.parametrize(("delta", "nothing"), [(1e-4, False), (0.1, True)])
def test_a_plan_prints_no_delta_that_promises_nothing(capsys, monkeypatch, delta, nothing):
    monkeypatch.setenv("COLUMNS", "200")
    strategy = {"kind": "dp_fed_sgd", "rounds": 4, "sampling": "poisson", "cohort": 40}
    allowed = {"privacy__delta": delta, "privacy__allow_large_delta": True}
    plan = make_plan(parse_config(changed(strategy=strategy, privacy__epsilon=8.0, **allowed)))
    assert (plan.numbers["replace_one_delta"] >= 1 / plan.users) is nothing
    show_plan(plan, plan.as_dict(), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if "replace_one" in line]
    assert len(lines) == 2
    assert all((NOTHING_PROMISED in line) is nothing for line in lines)
    in_the_report = {name: value for name, value, _ in _numbers(plan.as_dict())}
    for name in ("replace one epsilon", "replace one delta"):
        assert (in_the_report[name] == NOTHING_PROMISED) is nothing
