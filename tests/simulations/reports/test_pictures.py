"""Pictures of predictions and errors beside metrics: what they are drawn from, in which units, and what is said."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from simulations.api import console as console_module
from simulations.api.console import show_outcome
from simulations.api.training import train
from simulations.records.quality import POINTS
from simulations.reports.pictures import in_units, pictures
from simulations.reports.report import render
from simulations.reports.units import FEW, about_errors, errors_of, in_target_units, shown_with_error

HEADING = "Predictions against observations"
NOT_COVERED = "Measured on held-out users: simulation only,\nnot covered by the guarantee."
NUMBERS = {"predicted": [-0.5, 0.5], "observed": [-0.25, 0.75], "samples": [10, 10]}
NUMBERS |= {"observed_p10": [-1.0, 0.0], "observed_p90": [0.0, 1.0]}
RATES = {"predicted": [0.2, 0.8], "observed": [0.1, 0.9], "standard_error": [0.02, None], "samples": [10, 10]}
ROC = {"false_positive_rate": [0.0, 0.2, 1.0], "true_positive_rate": [0.0, 0.9, 1.0]}
KINDS = {
    "squared": {"target": "height", "target_range": [140.0, 200.0]},
    "logistic": {"target": "ill", "positive": "yes"},
    "poisson": {"target": "visits"},
    "softmax": {"target": "grade", "target_levels": ["low", "middle", "high"]},
}
DRAWN = {
    "squared": {"predicted_against_observed"},
    "logistic": {"calibration", "roc"},
    "poisson": {"predicted_against_observed"},
    "softmax": {"predicted_class_calibration"},
}


def people(users=400, rows=3):
    rng = np.random.default_rng(0)
    size = rng.uniform(-1, 1, users * rows)
    score = 1.5 * size + np.repeat(rng.normal(0, 0.3, users), rows)
    classes = np.argmax(np.stack([-score, 0 * score, score], axis=1) + rng.gumbel(size=(len(size), 3)), axis=1)
    return pd.DataFrame(
        {
            "who": np.repeat(np.arange(users), rows),
            "size": size,
            "height": 170 + 8 * score + rng.normal(0, 4, len(size)),
            "visits": np.minimum(rng.poisson(np.exp(0.7 * score)), 12),
            "ill": np.where(rng.random(len(size)) < 1 / (1 + np.exp(-2 * score)), "yes", "no"),
            "grade": np.array(["low", "middle", "high"])[classes],
        }
    )


def trained(kind, directory=None, frame=None, **settings):
    problem = {"kind": kind, **({"count_bound": 12.0, "radius": 1.0} if kind == "poisson" else {})}
    return train(
        people() if frame is None else frame,
        user="who",
        features=["size"],
        ranges={"size": [-1.0, 1.0]},
        epsilon=8.0,
        delta=1e-4,
        problem=problem,
        strategy={"kind": "dp_fed_sgd", "rounds": 15, "clip_norm": 1.0},
        directory=directory,
        progress=False,
        **(KINDS[kind] | settings),
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return {kind: trained(kind, folder / kind) for kind in KINDS}


# Runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_keeps_what_its_pictures_are_drawn_from_and_shows_them(models, kind):
    model = models[kind]
    kept = json.loads((model.directory / "result.json").read_text())
    assert kept["curves"] == model.result["curves"]
    assert set(kept["curves"]) == DRAWN[kind]
    for name, curve in kept["curves"].items():
        assert len({len(column) for column in curve.values()}) == 1
        assert len(next(iter(curve.values()))) <= (POINTS if name == "roc" else 10)
    assert kept["measured_users"] == 80
    # The course, training without privacy, and these.
    assert model.page.count("<svg") == 2 + len(DRAWN[kind])
    assert model.page.count(NOT_COVERED) == len(DRAWN[kind])
    assert HEADING in model.page


def test_pictures_agree_with_metrics(models):
    for kind in ("squared", "logistic", "poisson"):
        result = models[kind].result
        curve = result["curves"]["calibration" if kind == "logistic" else "predicted_against_observed"]
        gap = np.average(np.subtract(curve["predicted"], curve["observed"]), weights=curve["samples"])
        assert gap == pytest.approx(result["metrics"]["predicted_minus_observed"])
    assert f"ROC, area under it (AUC) {models['logistic'].metrics['auc']:.4g}" in models["logistic"].page
    roc = models["logistic"].result["curves"]["roc"]
    area = np.trapezoid(roc["true_positive_rate"], roc["false_positive_rate"])
    assert area == pytest.approx(models["logistic"].metrics["auc"], abs=0.01)


def test_counts_are_drawn_as_counts_and_a_page_names_the_class_and_the_column(models):
    curve = models["poisson"].result["curves"]["predicted_against_observed"]
    assert all(float(end).is_integer() for end in (*curve["observed_p10"], *curve["observed_p90"]))
    assert max(curve["observed_p90"]) >= 2
    assert "Predicted against observed height" in models["squared"].page
    assert "how often &#39;yes&#39; was observed in its group" in models["logistic"].page
    assert "Calibration of the predicted class" in models["softmax"].page


@pytest.fixture
def copied(models, tmp_path):
    return shutil.copytree(models["logistic"].directory, tmp_path / "copied")


def test_an_older_run_without_curves_still_has_a_page(copied):
    result = json.loads((copied / "result.json").read_text())
    for name in ("curves", "measured_users", "standard_errors"):
        del result[name]
    (copied / "result.json").write_text(json.dumps(result))
    told = render(copied).read_text(encoding="utf-8")
    assert HEADING not in told
    assert "+/-" not in told
    assert "Metrics" in told


# Errors beside metrics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_errors_stand_beside_the_models_own_metrics_wherever_people_look(models, kind, monkeypatch):
    model = models[kind]
    section = model.config.data.model_dump(exclude_none=True)
    errors = errors_of(model.result, section)
    values = model.metrics | in_target_units(model.metrics, section)
    explained = "r2" if kind == "squared" else "deviance_explained"
    assert {"test_loss", "predicted_minus_observed", explained} <= set(errors)
    shown = Console(record=True, width=240, quiet=False)
    monkeypatch.setattr(console_module, "Console", lambda: shown)
    show_outcome(model.result, model.directory, private=True)
    printed = shown.export_text()
    sentence = "+/- is one standard error over 80 held-out users"
    for told in (repr(model), model._repr_html_(), model.page, printed):
        assert told.count(sentence) == 1
        assert "Few users" not in told
    # Once a metric, for the model alone: not for the initial model, nor for training without privacy.
    for told in (printed, model.page):
        assert told.count("+/-") == len(errors) + 1
        assert all(f"+/- {error:.2g}" in told for error in errors.values())
    for name, error in errors.items():
        row = rf"│ {re.escape(name.replace('_', ' '))} +│ \S+ \+/- {error:.2g} "
        assert re.search(row, printed), name
    assert all(error > 0.01 * abs(values[name]) for name, error in errors.items())


def test_a_root_has_half_the_relative_error_and_the_units_of_the_target(models):
    result = models["squared"].result
    section = {"target": "height", "target_range": [140.0, 200.0]}
    errors = errors_of(result, section)
    mean, error = result["metrics"]["squared_error"], result["standard_errors"]["squared_error"]
    found = errors["root mean squared error, in units of height"]
    # The root at one standard error up and down.
    assert found == pytest.approx(30 * (np.sqrt(mean + error) - np.sqrt(mean - error)) / 2, rel=0.01)
    assert errors["predicted minus observed, in units of height"] == pytest.approx(
        30 * result["standard_errors"]["predicted_minus_observed"]
    )


def test_an_error_is_told_where_it_shows_in_the_digits_that_people_read():
    result = {"metrics": {"a": 1.0, "b": 1.0, "c": 0.0, "d": None}, "standard_errors": {"a": 0.011, "b": 0.009}}
    assert errors_of(result, {}) == {"a": 0.011}
    assert errors_of(result | {"standard_errors": {"c": 0.1, "d": 0.1, "a": None}}, {}) == {"c": 0.1}
    assert errors_of({"metrics": {"a": 1.0}}, {}) == {}
    assert shown_with_error([0.5, 0.6, None], 0.0123) == ["0.5 +/- 0.012", "0.6", "-"]
    assert shown_with_error([12345.0, 5.0], 1234.0) == ["12,345 +/- 1,234", "5"]
    assert shown_with_error([0.5], None) == ["0.5"]


def test_few_people_are_warned_of():
    few = about_errors({"measured_users": FEW - 1}, {}, ["accuracy"])
    assert len(few) == 1
    assert "Few users were held out (29, fewer than 30)" in few[0][1]
    assert few[0][0] == "warning"
    assert about_errors({"measured_users": FEW}, {}, ["accuracy"]) == []
    assert len(about_errors({"measured_users": 3}, {"accuracy": 0.2}, ["accuracy"])) == 2
    assert about_errors({"measured_users": FEW}, {"accuracy": 0.2}, ["loss"]) == []
    assert about_errors({}, {}, []) == []


def test_a_model_of_few_held_out_people_says_so_and_draws_nothing_of_them():
    model = trained("logistic", test_fraction=0.02)
    assert model.result["measured_users"] == 8
    assert "curves" not in model.result
    for told in (repr(model), model._repr_html_(), model.page):
        assert told.count("Few users were held out (8, fewer than 30)") == 1


# Charts ------------------------------------------------------------------------------------------------------------


def test_targets_are_drawn_in_their_own_units(monkeypatch):
    drawn = []
    plot, vlines = Axes.plot, Axes.vlines
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **more: drawn.append((x, y)) or plot(self, x, y, **more))
    monkeypatch.setattr(Axes, "vlines", lambda self, *a, **more: drawn.append(a) or vlines(self, *a, **more))
    for columns, low, high in (({"target": "height", "target_range": [100, 200]}, 125, 175), ({}, -0.5, 0.5)):
        drawn.clear()
        (picture,) = pictures({"predicted_against_observed": NUMBERS}, {}, columns)
        (bars_at, lows, highs), (across, up), diagonal = drawn
        assert bars_at.tolist() == across.tolist() == [low, high]
        assert up.tolist() == in_units(NUMBERS["observed"], columns.get("target_range")).tolist()
        assert lows.tolist() == in_units(NUMBERS["observed_p10"], columns.get("target_range")).tolist()
        assert highs.tolist() == in_units(NUMBERS["observed_p90"], columns.get("target_range")).tolist()
        assert diagonal == ([low, high], [low, high])
        assert picture.title == f"Predicted against observed {columns.get('target', 'target')}"
    assert in_units([-1.0, 0.0, 1.0], (10.0, 20.0)).tolist() == [10.0, 15.0, 20.0]


def test_each_curve_has_its_picture_and_its_words():
    found = pictures({"calibration": RATES, "roc": ROC}, {"auc": 0.85}, {"target": "t", "positive": "$x$"})
    assert [picture.title for picture in found] == ["Calibration of the probability of '$x$'", "Ranking (ROC curve)"]
    assert "ROC, area under it (AUC) 0.85" in found[1].chart
    assert "'$x$'" in found[0].how_to_read
    for picture in (*found, *pictures({"predicted_class_calibration": RATES}, {}, {})):
        assert "currentColor" in picture.chart
        assert "dashed line" in picture.how_to_read
    assert "class 1" in pictures({"roc": ROC}, {}, {})[0].how_to_read
    assert "'b'" in pictures({"roc": ROC}, {}, {"target_levels": ["a", "b"]})[0].how_to_read
    assert pictures({}, {}, {}) == []
