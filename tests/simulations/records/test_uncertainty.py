"""Standard errors over users: against leaving out one user after the other, and against many draws of people."""

import math

import numpy as np
import pytest
from examples import changed
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.config.run_config import parse_config
from simulations.records.evaluation import Evaluation
from simulations.records.held_out import held_out
from simulations.records.quality import (
    auc,
    auc_influences,
    error_of_influences,
    error_of_mean,
    explained_error,
    f1_influences,
    macro_f1,
    standard_errors,
)
from simulations.runs.build import build_problem, load_datasets
from userdp.data import Block
from userdp.problems import Logistic, Poisson, Quadratic, Softmax, Squared


def people(rng, users, spread=1.0):
    """(scores, positive, owners) of 1 to 6 samples per user; a user's own leaning is in all of theirs."""
    sizes = rng.integers(1, 7, users)
    owners = np.repeat(np.arange(users), sizes)
    leaning = spread * rng.normal(size=users)[owners]
    positive = rng.normal(size=len(owners)) + leaning > 0
    return rng.normal(size=len(owners)) + 0.8 * positive + 0.5 * leaning, positive, owners


def leaving_out(measure, owners):
    users = np.unique(owners)
    values = np.array([measure(owners != user) for user in users])
    return math.sqrt((len(users) - 1) / len(users) * ((values - values.mean()) ** 2).sum())


# One draw ----------------------------------------------------------------------------------------------------------


def test_a_mean_over_users_by_hand_and_by_its_influences_where_users_have_one_sample_each():
    assert error_of_mean(np.array([1.0, 3.0])) == pytest.approx(1.0)  # deviation sqrt(2), over the root of 2
    assert math.isnan(error_of_mean(np.array([1.0])))
    values = np.random.default_rng(0).normal(size=20)
    found = error_of_influences((values - values.mean()) / 20, np.arange(20))
    assert found == pytest.approx(error_of_mean(values))


@pytest.mark.parametrize("seed", range(3))
def test_leaving_out_one_user_after_the_other_gives_nearly_the_same(seed):
    rng = np.random.default_rng(seed)
    scores, positive, owners = people(rng, 120)
    found = error_of_influences(auc_influences(scores, positive), owners)
    assert found == pytest.approx(leaving_out(lambda kept: auc(scores[kept], positive[kept]), owners), rel=0.05)
    cells = (rng.integers(0, 3, len(owners)) * 3 + rng.integers(0, 3, len(owners))).astype(np.int16)

    def f1(kept):
        return macro_f1(np.bincount(cells[kept], minlength=9).reshape(3, 3))

    counts = np.bincount(cells, minlength=9).reshape(3, 3)
    found = error_of_influences(f1_influences(cells, counts), owners)
    assert found == pytest.approx(leaving_out(f1, owners), rel=0.05)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.booleans()), min_size=1, max_size=15))
def test_influences_on_the_area_sum_to_zero_for_each_class(samples):
    scores, positive = (np.array(one) for one in zip(*samples, strict=True))
    found = auc_influences(scores, positive)
    if positive.all() or not positive.any():
        assert found is None
    else:
        assert found[positive].sum() == pytest.approx(0.0, abs=1e-12)
        assert found[~positive].sum() == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20))
@settings(max_examples=50)
def test_influences_on_f1_sum_to_zero_and_classes_that_nobody_meets_are_left_out(cells):
    counts = np.bincount(cells, minlength=9).reshape(3, 3)
    found = f1_influences(np.array(cells, dtype=np.int16), counts)
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(0.0, abs=1e-12)


def test_what_a_model_explains_has_the_error_of_leaving_users_out_and_fitting_the_constant_anew():
    rng = np.random.default_rng(2)
    targets = rng.normal(size=80) * rng.uniform(0.5, 2.0, 80)
    left = (targets - 0.7 * targets + rng.normal(0, 0.4, 80)) ** 2

    def r2(kept):
        return 1.0 - left[kept].mean() / ((targets[kept] - targets[kept].mean()) ** 2).mean()

    constant = {"squared_error": (targets - targets.mean()) ** 2}
    found = explained_error({"squared_error": left}, constant)
    assert found == {"r2": pytest.approx(leaving_out(r2, np.arange(80)), rel=0.05)}
    assert explained_error({"squared_error": left}, {}) == {}
    assert explained_error({"squared_error": left[:1]}, {"squared_error": constant["squared_error"][:1]}) == {}
    assert explained_error({"squared_error": np.full(3, np.inf)}, {"squared_error": np.ones(3)}) == {}


def test_samples_of_one_user_go_together():
    """A user ten times over is still one user: the error is that of single samples, not a third of it."""
    rng = np.random.default_rng(1)
    scores, positive = rng.normal(size=50), rng.random(50) < 0.5
    once = error_of_influences(auc_influences(scores, positive), np.arange(50))
    tenfold, of_each = np.repeat(scores, 10), np.repeat(positive, 10)
    assert error_of_influences(auc_influences(tenfold, of_each), np.repeat(np.arange(50), 10)) == pytest.approx(once)
    assert error_of_influences(auc_influences(tenfold, of_each), np.arange(500)) < 0.4 * once


# Many draws --------------------------------------------------------------------------------------------------------


def covered(errors, values, truth):
    far = np.abs(np.array(values) - truth) / np.array(errors)
    return float((far < 1).mean()), float((far < 2).mean())


def test_two_of_three_draws_of_people_are_within_one_error_and_19_of_20_within_two():
    """Errors of the area, of a mean over users and of one over samples; errors that ignore users are too small.

    Binomial deviations over 1,000 draws are 0.015 and 0.007.
    """
    rng = np.random.default_rng(3)
    scores, positive, owners = people(rng, 200_000)
    accuracy = np.bincount(owners, (scores > 0.4) == positive) / np.bincount(owners)
    truths = {"auc": auc(scores, positive), "accuracy": accuracy.mean(), "gap": (positive - 0.5).mean()}
    errors, values, naive = {name: [] for name in truths}, {name: [] for name in truths}, []
    for _ in range(1000):
        scores, positive, owners = people(rng, 60)
        accuracy = np.bincount(owners, (scores > 0.4) == positive) / np.bincount(owners)
        gaps = positive - 0.5
        influences = auc_influences(scores, positive)
        of_gaps = (gaps - gaps.mean()) / len(gaps)
        for name, value, error in (
            ("auc", auc(scores, positive), error_of_influences(influences, owners)),
            ("accuracy", accuracy.mean(), error_of_mean(accuracy)),
            ("gap", gaps.mean(), error_of_influences(of_gaps, owners)),
        ):
            values[name].append(value)
            errors[name].append(error)
        naive.append(error_of_influences(of_gaps, np.arange(len(gaps))))
    for name, truth in truths.items():
        one, two = covered(errors[name], values[name], truth)
        assert 0.63 < one < 0.73, name
        assert 0.92 < two < 0.975, name
    assert covered(naive, values["gap"], truths["gap"])[0] < 0.57


# Of a model --------------------------------------------------------------------------------------------------------


def block_of(users, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 5, users))])
    features = rng.uniform(-1, 1, (offsets[-1], 2)).astype(np.float32)
    return Block(features, offsets, rng.integers(0, classes, offsets[-1]).astype(np.float32))


def test_each_metric_of_a_model_has_the_error_of_its_kind_whatever_the_blocks():
    block, x = block_of(40), np.array([0.7, -1.3])
    problem = Logistic(2, 2.0, 5.0)
    whole, parts = (held_out(problem, x, one) for one in ([block], [block.part(0, 13), block.part(13, 40)]))
    found = standard_errors(whole)
    assert found == pytest.approx(standard_errors(parts))
    assert set(found) == {"test_loss", "accuracy", "log_loss", "auc", "predicted_minus_observed"}
    accuracy = problem.metrics(x, block)["accuracy"]
    assert found["accuracy"] == pytest.approx(accuracy.std(ddof=1) / math.sqrt(40))
    owners = np.repeat(np.arange(40), block.sizes)
    np.testing.assert_array_equal(parts.owners, owners)
    positive = block.targets > 0.5
    assert found["auc"] == error_of_influences(auc_influences(whole.predicted, positive), owners)


def test_other_losses_have_what_can_be_told():
    block = block_of(30, classes=3)
    squared = standard_errors(held_out(Squared(2, 2.0, 5.0, low=0.0, high=2.0), np.ones(2), [block]))
    assert set(squared) == {"test_loss", "squared_error", "predicted_minus_observed"}
    softmax = Softmax(3, 2, np.inf, np.inf)
    of_classes = standard_errors(held_out(softmax, np.arange(6.0), [block]))
    assert {"accuracy", "macro_f1"} <= set(of_classes)
    mean = Block(block.features, block.offsets)
    assert set(standard_errors(held_out(Quadratic(2, 1.0, 1.0), np.zeros(2), [mean]))) == {"test_loss"}


def test_what_cannot_be_told_is_left_out():
    logistic, few = Logistic(2, 2.0, 5.0), block_of(10)
    for blocks in ([], [block_of(1)]):
        assert standard_errors(held_out(logistic, np.zeros(2), blocks)) == {}
    diverged = held_out(Poisson(2, 4.0, 1e4, count_bound=3.0), np.array([1e4, 1e4]), [few])
    assert standard_errors(diverged) == {}
    one_class = Block(few.features, few.offsets, np.ones_like(few.targets))
    assert "auc" not in standard_errors(held_out(logistic, np.ones(2), [one_class]))


def test_the_loss_above_the_optimum_has_the_error_of_differences():
    data = {"population": "heavy_tailed_linear", "feature_law": "student_t", "feature_shape": 3.0, "spherical": True}
    raw = changed(problem={"kind": "huber_regression", "threshold": 0.5}, data__test_users=80)
    raw["data"] |= data
    raw["privacy"]["unit"], raw["strategy"] = "sample", {"kind": "sample_clipped_sgd", "rounds": 3, "clip_norm": 3.0}
    config = parse_config(raw)
    problem, data = build_problem(config), load_datasets(config)
    evaluation = Evaluation(problem, data.train, data.test)
    optimum = problem.optimum(data.train)
    assert optimum is not None
    x = optimum + 0.05
    found = evaluation.shown(x)
    assert found["measured_users"] == 80
    assert "excess_loss" in evaluation(x)
    assert 0 < found["standard_errors"]["excess_loss"] < 0.5 * found["standard_errors"]["test_loss"]
    assert evaluation.shown(optimum)["standard_errors"]["excess_loss"] == 0.0
