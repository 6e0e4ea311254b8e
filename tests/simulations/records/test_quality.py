"""Ranking, calibration and spread over users: against pairs counted one by one, groups made by hand, sorted users."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from examples import changed, table_section, write_table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from simulations.config.run_config import parse_config
from simulations.records import evaluation as evaluation_module
from simulations.records.evaluation import Evaluation
from simulations.records.held_out import PERCENTILES
from simulations.records.quality import auc, calibration, quality
from simulations.reports.explain import METRICS
from simulations.reports.report import page
from simulations.reports.units import in_target_units, unit_meanings
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.run import run
from userdp.data import Block
from userdp.problems import Logistic, Poisson, Quadratic, Squared

SCORES = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.25, 2.0, 7.0]), st.booleans()), min_size=1, max_size=12)


def configuration(folder, problem, **settings):
    data = table_section(write_table(folder / "people.csv"), test_fraction=0.3, **settings)
    return parse_config(changed(problem=problem, data=data, privacy={"epsilon": 8.0, "delta": 1e-3}))


def block_of(sizes, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    features = rng.uniform(-1, 1, (offsets[-1], 2)).astype(np.float32)
    return Block(features, offsets, rng.integers(0, classes, offsets[-1]).astype(np.float32))


# Ranking -----------------------------------------------------------------------------------------------------------


@given(SCORES)
def test_the_area_is_the_share_of_pairs_in_order(samples):
    scores = np.array([score for score, _ in samples])
    positive = np.array([is_one for _, is_one in samples])
    pairs = list(itertools.product(scores[positive], scores[~positive]))
    found = auc(scores, positive)
    if not pairs:
        assert found is None
    else:
        in_order = sum(1.0 if one > zero else 0.5 if one == zero else 0.0 for one, zero in pairs)
        assert found == pytest.approx(in_order / len(pairs), abs=1e-12)


def test_an_area_of_what_is_not_finite_is_none():
    assert math.isnan(auc(np.array([0.5, np.inf]), np.array([False, True])))


# Calibration -------------------------------------------------------------------------------------------------------


def test_groups_of_equal_size_are_compared_by_their_means():
    rng = np.random.default_rng(1)
    predicted = rng.permutation(np.linspace(0.01, 0.99, 50))
    observed = (rng.random(50) < 0.5).astype(float)
    order = np.argsort(predicted)
    gaps = [abs(predicted[group].mean() - observed[group].mean()) for group in np.split(order, 10)]
    error, difference = calibration(predicted, observed)
    assert error == pytest.approx(np.mean(gaps))
    assert difference == pytest.approx(predicted.mean() - observed.mean())


@given(SCORES, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_the_samples_does_not_matter_and_equal_predictions_stay_together(samples, random):
    mixed = random.sample(samples, len(samples))
    first, second = (
        calibration(np.array([score for score, _ in one]), np.array([float(right) for _, right in one]))
        for one in (samples, mixed)
    )
    assert first == pytest.approx(second, abs=1e-12)
    assert first[0] >= abs(first[1]) - 1e-12


def test_one_constant_prediction_that_is_right_on_average_is_calibrated():
    observed = np.repeat([0.0, 1.0], 50)  # sorted, as users of one class each would be
    assert calibration(np.full(100, 0.5), observed) == (0.0, 0.0)
    assert calibration(np.full(100, 0.75), observed) == (0.25, 0.25)


def test_a_model_that_diverged_is_not_calibrated_has_no_numbers_and_raises_nothing():
    assert all(map(math.isnan, calibration(np.array([0.5, np.inf]), np.array([0.0, 1.0]))))
    assert calibration(np.array([1e308, 1e308]), np.array([0.0, 0.0]))[0] == math.inf
    found = quality(Poisson(2, 4.0, 1e4, count_bound=3.0), np.array([1e4, 1e4]), [block_of([2] * 5)])
    assert math.isnan(found["calibration_error"])
    assert quality(Logistic(2, 2.0, 5.0), np.array([np.nan, 0.0]), [block_of([2] * 5)])["auc"] != 0.5


# Of a model --------------------------------------------------------------------------------------------------------


def test_a_classifier_is_told_by_hand():
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    block, x = block_of(sizes), np.array([0.7, -1.3])
    found = quality(Logistic(2, 2.0, 5.0), x, [block.part(0, 4), block.part(4, 10)])
    scores = block.features.astype(float) @ x
    accuracies = sorted(
        float(((scores > 0) == (block.targets > 0.5))[first:last].mean())
        for first, last in itertools.pairwise(block.offsets)
    )
    assert [found[f"accuracy_p{share}"] for share in PERCENTILES] == pytest.approx([accuracies[k] for k in (0, 4, 8)])
    assert found["auc"] == auc(expit(scores), block.targets > 0.5)
    assert found["predicted_minus_observed"] == pytest.approx(expit(scores).mean() - block.targets.mean())
    assert found["calibration_error"] == calibration(expit(scores), block.targets)[0]
    assert set(found) == {
        "auc",
        "calibration_error",
        "predicted_minus_observed",
        *(f"{name}_p{share}" for name in ("test_loss", "accuracy") for share in PERCENTILES),
    }


def test_a_regression_is_told_by_hand():
    block, x = block_of([3] * 10, classes=3), np.array([0.2, 0.1])
    problem = Squared(2, 2.0, 5.0, low=0.0, high=2.0, ridge=0.5)
    found = quality(problem, x, [block])
    predicted = block.features.astype(float) @ x
    errors = np.sort(((predicted - block.targets) ** 2).reshape(10, 3).mean(axis=1))
    assert [found[f"squared_error_p{share}"] for share in PERCENTILES] == pytest.approx(errors[[0, 4, 8]])
    assert found["predicted_minus_observed"] == pytest.approx(predicted.mean() - block.targets.mean())
    assert "auc" not in found
    assert "test_loss_p50" not in found  # the error stands in its place


def test_of_several_classes_confidence_is_compared_with_accuracy(tmp_path):
    config = configuration(
        tmp_path, {"kind": "torch", "loss": "cross_entropy", "outputs": 10}, target="count", positive=None
    )
    problem, people = build_problem(config), load_datasets(config).test
    x = problem.initial()
    block = problem.bound(people.block(np.arange(people.users)))[0]
    told = problem.predict(x, block)
    confidence = np.max([told[f"probability.{k}"] for k in range(10)], axis=0)
    right = (told["prediction"] == block.targets).astype(float)
    found = quality(problem, x, [block])
    assert found["calibration_error"] == calibration(confidence, right)[0]
    assert found["predicted_minus_observed"] == pytest.approx(confidence.mean() - right.mean())
    assert "auc" not in found
    assert found["accuracy_p90"] >= found["accuracy_p10"]


def test_a_mean_predicts_nothing_and_has_a_spread_alone():
    found = quality(Quadratic(2, 1.0, 1.0), np.zeros(2), [Block(block_of([2] * 5).features, np.arange(0, 11, 2))])
    assert set(found) == {f"test_loss_p{share}" for share in PERCENTILES}
    assert quality(Logistic(2, 2.0, 5.0), np.zeros(2), []) == {}


# Of a run ----------------------------------------------------------------------------------------------------------


def test_a_run_tells_them_of_its_three_models_and_measures_them_once(tmp_path, monkeypatch):
    measured = []
    original = Evaluation.details
    monkeypatch.setattr(Evaluation, "details", lambda self, *told: measured.append(told) or original(self, *told))
    outcome = run(configuration(tmp_path, {"kind": "logistic"}), directory=tmp_path / "run")
    result = outcome.result
    models = (result["metrics"], result["reference"]["initial"], result["reference_private"]["non_private"])
    assert len(measured) == 3
    rounds = pd.read_parquet(tmp_path / "run" / "rounds.parquet")
    for metrics in models:
        assert 0 <= metrics["auc"] <= 1
        assert metrics["accuracy_p10"] <= metrics["accuracy_p50"] <= metrics["accuracy_p90"]
        assert set(metrics) <= set(METRICS)  # each is explained
    assert models[1]["auc"] == 0.5  # the initial model gives everybody the same probability
    assert not [name for name in rounds.columns if "auc" in name or "calibration" in name]
    told = page(tmp_path / "run")
    assert all(name.replace("_", " ") in told for name in models[0])
    assert METRICS["calibration_error"].replace("'", "&#39;") in told


def test_held_out_people_that_do_not_fit_in_memory_are_measured_block_by_block(tmp_path, monkeypatch):
    config = parse_config(changed(data__heterogeneity=5.0))
    problem, datasets = build_problem(config), load_datasets(config)
    whole = Evaluation(problem, datasets.train, datasets.test).whole(np.ones(3))
    monkeypatch.setattr(evaluation_module, "MEMORY_BYTES", 0)
    assert Evaluation(problem, datasets.train, datasets.test).whole(np.ones(3)) == pytest.approx(whole)
    assert "test_loss_p90" in whole


def test_errors_of_users_and_calibration_have_the_units_of_the_target():
    data = {"target": "height", "target_range": [100, 200]}
    metrics = {"squared_error": 0.25, "squared_error_p90": 0.04, "calibration_error": 0.1}
    metrics["predicted_minus_observed"] = -0.02
    names = ("root mean squared error", "root mean squared error p90", "calibration error", "predicted minus observed")
    found = in_target_units(metrics, data)
    assert list(found) == [f"{name}, in units of height" for name in names]
    assert list(found.values()) == pytest.approx([25.0, 10.0, 5.0, -1.0])
    assert unit_meanings(metrics, data).keys() == found.keys()
    assert all(unit_meanings(metrics, data).values())
