"""The sparse exponential mechanism in a federation: what one user moves, the law of the choice, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import federation_of, gathered, local_grid, make, requested, taken
from scipy import stats

from strategies import SparseExponentialChoice
from strategies.wire.questions import model_record
from userdp.errors import BadInput
from userdp.problems import Quadratic

USERS = 30


def method_for(problem=None, users=USERS, epsilon=2.0, delta=0.0, seed=0, **options):
    return make(SparseExponentialChoice, problem or Quadratic(2, 1.0, 2.0), users, epsilon, delta, seed=seed, **options)


def test_the_sensitivity_is_nearly_attained():
    problem, far = Quadratic(1, 100.0, 2.0), np.full((USERS, 1), 100.0)
    method = method_for(problem, clip_norm=1.0, radius=2.0)
    sums = []
    for first in (100.0, -100.0):
        far[0] = first
        sums.append(gathered(method, federation_of(far), 0, np.zeros(1)).values)
    assert method.scheme.mechanism.sensitivity == 4.0
    # The farthest of the lattice's points is a little nearer than the radius.
    assert 3.6 < np.abs(sums[0] - sums[1]).max() <= 4.0


def test_the_choice_has_the_law_that_the_risks_say():
    method = method_for(epsilon=20.0, most_candidates=30)
    values = gathered(method, federation_of(np.full((USERS, 2), 0.5)), 0, np.zeros(2))
    law, net = method.scheme.law([values.values]), requested(method, 0).computation.arrays["models"]
    risks = np.array([0.5 * ((point - 0.5) ** 2).sum() - 0.25 for point in net])
    weights = np.exp(-20.0 * USERS * risks / (2 * method.scheme.mechanism.sensitivity))
    np.testing.assert_allclose(law, weights / weights.sum(), rtol=1e-6)
    drawn = []
    for seed in range(400):
        other = method_for(epsilon=20.0, most_candidates=30, seed=seed)
        step = taken(other, 0, np.zeros(2), values).released
        drawn.append(int(np.flatnonzero(np.isclose(net, step).all(axis=1))[0]))
    counts, common = np.bincount(drawn, minlength=len(net)), law * 400 > 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(400 * law[common], 400 * law[~common].sum())
    kept = expected > 1e-6
    assert stats.chisquare(observed[kept], expected[kept] * observed.sum() / expected[kept].sum()).pvalue > 1e-6


def test_with_many_users_the_choice_is_the_nearest_point_and_keeps_to_its_bound():
    values = np.tile([1.0, 0.0], (2000, 1))
    method = method_for(Quadratic(2, 1.0, 2.0), users=2000, epsilon=10.0, radius=1.5)
    result = method.start(local_grid(Quadratic(2, 1.0, 2.0), federation_of(values), 500))
    model = method.wire.vector(result.arrays)
    assert 0.5 * ((model - values[0]) ** 2).sum() <= method.plan.numbers["excess_bound"]
    assert method.plan.rounds == 1
    assert (result.guarantee.epsilon, result.guarantee.delta) == (10.0, 0.0)


def test_the_net_lies_about_the_start_which_must_have_room():
    problem, values = Quadratic(2, 1.0, 2.0), np.full((USERS, 2), 0.5)
    method = method_for(problem, radius=1.0, epsilon=1e-9)
    result = method.start(local_grid(problem, federation_of(values), 7), model_record(np.array([1.0, 0.0])))
    assert np.linalg.norm(method.wire.vector(result.arrays) - [1.0, 0.0]) <= 1.0 + 1e-12
    with pytest.raises(BadInput, match=r"strategy\.radius = 1: .*room for 0\.5"):
        method_for(problem, radius=1.0).start(
            local_grid(problem, federation_of(values), 7), model_record(np.array([1.5, 0.0]))
        )


@pytest.mark.parametrize(
    ("problem", "options", "told"),
    [
        (Quadratic(2, 1.0, 2.0), {"radius": 2.1}, r"strategy\.radius = 2\.1: .*room for 2"),
        (Quadratic(2, 1.0, math.inf), {"clip_norm": 1.0}, r"strategy\.radius must be declared"),
        (Quadratic(2, math.inf, 2.0), {}, r"strategy\.clip_norm must be declared"),
        (Quadratic(40, 1.0, 2.0), {"most_candidates": 50}, "most_candidates = 50: .* has 81"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(problem, options, told):
    with pytest.raises(BadInput, match=told):
        method_for(problem, **options)


def test_more_candidates_are_not_compared_than_allowed():
    assert method_for(most_candidates=100, users=10**6).plan.numbers["candidates"] <= 100
    assert method_for(most_candidates=1000, users=10**6).plan.numbers["candidates"] > 100


def test_a_bound_that_says_nothing_is_told():
    assert any("no better than that of the start" in warning for warning in method_for(users=2).plan.warnings)
    hilly = Quadratic(2, 1.0, 2.0)
    hilly.certificate = replace(hilly.certificate, convex=False)
    assert any("proven for convex losses only" in warning for warning in method_for(hilly).plan.warnings)
