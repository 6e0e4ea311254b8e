"""Domain, certificate and starting point: what all problems share."""

import json

import numpy as np
import pytest
from problem_cases import CASES, Case

from userdp.errors import BadInput, MissingAssumption
from userdp.problems import Box, Certificate, Quadratic, Softmax


def test_projection_is_coordinate_wise_and_one_lipschitz():
    box = Box(np.array([0.0, 2.0]), 1.0)
    np.testing.assert_array_equal(box.project(np.array([-3.0, 2.5])), [-1.0, 2.5])
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 3, (2, 500, 2))
    assert np.all(np.abs(box.project(x) - box.project(y)) <= np.abs(x - y))


def test_an_infinite_box_leaves_points_alone():
    x = np.array([1e300, -5.0])
    np.testing.assert_array_equal(Box(np.zeros(2), np.inf).project(x), x)


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan])
def test_a_box_needs_a_positive_radius(radius):
    with pytest.raises(BadInput, match="domain radius must be positive"):
        Box(np.zeros(1), radius)


def test_an_empty_certificate_misses_everything_and_a_full_one_nothing():
    with pytest.raises(MissingAssumption, match=r"^a strategy needs .*A1 .*A2 .*A3 .*A4 .*\. Choose a strategy"):
        Certificate().require_contractive("a strategy")
    full = Certificate(convex=True, lipschitz=1.0, smoothness=0.0, diagonally_dominant=True)
    assert full.missing() == []
    full.require_contractive("a strategy")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_certificates_are_plain_values(case: Case):
    values = case.problem.certificate.as_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["convex"] is case.problem.certificate.convex


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_training_starts_in_the_domain_at_a_fresh_copy(case: Case):
    start = case.problem.initial()
    assert start.shape == (case.problem.dimension,)
    np.testing.assert_array_equal(case.problem.domain.project(start), start)
    start += 1.0
    assert np.abs(case.problem.initial() - start).min() > 0.5


def test_the_centre_is_the_start():
    np.testing.assert_array_equal(Quadratic(3, 1.0, 2.0).initial(), np.zeros(3))


def test_a_subclass_is_computed_user_by_user_until_it_says_otherwise():
    class Own(Softmax):
        pass

    assert Softmax.fixed_order
    assert not Own.fixed_order
