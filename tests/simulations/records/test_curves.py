"""The data of pictures: ROC curves against `auc`, groups of similar predictions by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.records.held_out import HeldOut
from simulations.records.quality import FEWEST_PEOPLE, PEOPLE_A_GROUP, auc, curves, error_of_influences, roc

SAMPLES = st.lists(
    st.tuples(st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0])), st.booleans()), min_size=2, max_size=60
).filter(lambda samples: len({positive for _, positive in samples}) == 2)


def area(false, true):
    return float(np.trapezoid(true, false))


def seen_by(predicted, observed, target="two classes", users=None, cells=(), classes=0):
    """Held-out data of ``users`` users with equally many samples; by default one sample for each user."""
    users = len(predicted) if users is None else users
    sizes = np.full(users, len(predicted) // users)
    arrays = np.asarray(predicted, float), np.asarray(observed, float)
    return HeldOut({}, sizes, *arrays, target, classes, np.array(cells, dtype=np.int16))


# ROC ---------------------------------------------------------------------------------------------------------------


@given(SAMPLES)
@settings(max_examples=200)
def test_the_curve_rises_from_none_to_all_and_its_area_is_the_share_of_pairs_in_order(samples):
    scores, positive = (np.array(one) for one in zip(*samples, strict=True))
    false, true = roc(scores, positive, points=None)
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()
    assert (np.diff(false) + np.diff(true) > 0).all()
    assert area(false, true) == pytest.approx(auc(scores, positive), abs=1e-12)


@given(SAMPLES, st.integers(2, 20))
@settings(max_examples=200)
def test_a_thinned_curve_keeps_its_ends_and_nearly_its_area(samples, points):
    scores, positive = (np.array(one) for one in zip(*samples, strict=True))
    whole = list(zip(*roc(scores, positive, points=None), strict=True))
    false, true = roc(scores, positive, points)
    assert len(false) == len(true) <= points
    kept = list(zip(false, true, strict=True))
    assert set(kept) <= set(whole)
    assert (kept[0], kept[-1]) == (whole[0], whole[-1])
    assert abs(area(false, true) - auc(scores, positive)) <= 2 / (points - 1)


# Groups ------------------------------------------------------------------------------------------------------------


def test_numbers_are_grouped_by_what_is_predicted():
    rng = np.random.default_rng(1)
    predicted = rng.normal(size=1000)
    observed = 2 * predicted + rng.normal(size=1000)
    found = curves(seen_by(predicted, observed, "number"))["predicted_against_observed"]
    groups = np.split(np.argsort(predicted), 10)
    assert found["samples"] == [100] * 10
    assert found["predicted"] == pytest.approx([predicted[group].mean() for group in groups])
    assert found["observed"] == pytest.approx([observed[group].mean() for group in groups])
    assert found["observed_p10"] == [np.sort(observed[group])[9] for group in groups]
    assert found["observed_p90"] == [np.sort(observed[group])[89] for group in groups]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0, 9.0]), st.floats(-5, 5)), min_size=20, max_size=60),
    st.randoms(use_true_random=False),
)
@settings(max_examples=50)
def test_the_order_of_samples_does_not_matter_and_bands_hold_what_was_observed(samples, random):
    mixed = random.sample(samples, len(samples))
    first, second = (curves(seen_by(*zip(*one, strict=True), "number")) for one in (samples, mixed))
    found, again = first["predicted_against_observed"], second["predicted_against_observed"]
    assert {name: pytest.approx(values) for name, values in found.items()} == again
    assert sum(found["samples"]) == len(samples)
    assert all(one < other for one, other in itertools.pairwise(found["predicted"]))
    assert all(low <= high for low, high in zip(found["observed_p10"], found["observed_p90"], strict=True))


def test_classes_have_errors_over_people():
    rng = np.random.default_rng(2)
    probability = rng.random(400)
    observed = (rng.random(400) < probability).astype(float)
    seen = seen_by(probability, observed, users=100)
    found = curves(seen)
    assert set(found) == {"calibration", "roc"}
    lowest = np.argsort(probability)[:40]
    inside = observed[lowest]
    by_hand = error_of_influences((inside - inside.mean()) / 40, np.arange(400)[lowest] // 4)
    assert found["calibration"]["standard_error"][0] == pytest.approx(by_hand)
    assert found["calibration"]["observed"][0] == pytest.approx(inside.mean())
    assert set(curves(seen_by(probability, observed, "several classes"))) == {"predicted_class_calibration"}


def test_there_are_several_people_for_each_group_and_of_few_nothing_is_drawn():
    predicted, observed = np.linspace(0, 1, 240), np.tile([0.0, 1.0], 120)
    for users, groups in ((240, 10), (30, 6), (FEWEST_PEOPLE, 2)):
        found = curves(seen_by(predicted, observed, users=users))["calibration"]
        assert len(found["samples"]) == groups
        assert users // groups >= PEOPLE_A_GROUP
    assert curves(seen_by(predicted[:234], observed[:234], users=9)) == {}


def test_nothing_is_drawn_of_one_class_or_of_predictions_that_are_not_finite():
    predicted = np.linspace(0, 1, 20)
    one = np.ones(20)
    mixed = np.tile([0.0, 1.0], 10)
    assert curves(seen_by(predicted, one)) == {}
    assert curves(seen_by(predicted, one, "several classes", classes=3, cells=np.full(20, 4))) == {}
    assert set(curves(seen_by(predicted, one, "several classes", classes=3, cells=np.arange(20) % 9))) == {
        "predicted_class_calibration"
    }
    assert curves(seen_by(np.where(predicted > 0.9, np.inf, predicted), mixed)) == {}
    assert curves(seen_by(np.where(predicted > 0.9, np.nan, predicted), mixed, "number")) == {}
    assert curves(seen_by(np.full(20, 1.7e308), mixed, "number")) == {}  # their mean overflows
    assert curves(HeldOut({}, np.ones(20, int), np.empty(0), np.empty(0), None, 0, np.empty(0, np.int16))) == {}


def test_shares_as_targets_have_a_roc_curve_where_they_lie_on_both_sides():
    predicted = np.linspace(0, 1, 20)
    assert set(curves(seen_by(predicted, np.linspace(0.1, 0.4, 20)))) == {"calibration"}
    assert set(curves(seen_by(predicted, np.linspace(0.1, 0.9, 20)))) == {"calibration", "roc"}
