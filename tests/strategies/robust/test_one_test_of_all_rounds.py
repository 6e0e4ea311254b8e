"""Robust rounds whose rounds are all tested by one AboveThreshold: what it costs, where it stops, when it is chosen."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from helpers import federation_of, final, make, run, with_scheme

from strategies import RobustRounds
from userdp.accounting import Cost, epsilon_of
from userdp.audit import exact_epsilon
from userdp.errors import PopulationTooSmall
from userdp.mechanisms import AboveThreshold, MinimumScore
from userdp.problems import Linear, Quadratic

USERS, ROUNDS = 4000, 8
ALIKE = federation_of(np.full((USERS, 2), 0.5))


def method_of(test="above_threshold", users=USERS, epsilon=8.0, **options):
    options = {"rounds": ROUNDS, "epochs": 4, "radius": 0.2} | ({} if test is None else {"test": test}) | options
    return make(RobustRounds, Quadratic(2, 1.0, 2.0), users, epsilon, 1e-5, **options)


def scripted(method, shares):
    """The run in which cohorts score these shares of what they can score, whatever their users say."""
    scores = (share * method.scheme.sampler.batch for share in cycle(shares))
    agreement = replace(method.scheme.agreement, score=lambda rows: next(scores))
    return run(with_scheme(method, agreement=agreement), ALIKE)


def test_the_test_is_charged_once_and_releases_each_time():
    method = method_of()
    test, mechanism = method.scheme.agreement.test, method.scheme.mechanism
    cost = Cost(mechanism.noise_multiplier, failure_delta=test.delta, shared_epsilon=test.epsilon)
    assert isinstance(test, AboveThreshold)
    assert method.program.own.ledger.cost == cost
    assert method.plan.guarantee.epsilon == epsilon_of(cost, 4, 1e-5)
    assert 0.99 * 8.0 < method.plan.guarantee.epsilon <= 8.0
    assert test.delta == 1e-5 / 2 / 4
    spent = [record.spent_epsilon for record in run(method, ALIKE).rounds]
    assert spent == [epsilon_of(cost, 1 + index // 2, 1e-5) for index in range(ROUNDS)]


def test_a_run_stops_at_the_first_failure_with_the_model_released_last():
    method = method_of()
    result = scripted(method, [1.0, 1.0, 1.0, 0.1, 1.0])
    assert [record.facts["passed"] for record in result.rounds] == [1.0, 1.0, 1.0, 0.0]
    models = []
    whole = run(method_of(), ALIKE, evaluate_fn=lambda number, arrays: models.append(arrays["x"].numpy()) or None)
    assert len(whole.rounds) == ROUNDS
    np.testing.assert_array_equal(final(result), models[3])
    assert result.rounds[-1].spent_epsilon < method.plan.guarantee.epsilon  # nobody took part four times


def test_a_test_a_round_goes_on_after_a_failure():
    result = scripted(method_of("min_score"), [1.0, 0.1])
    assert [record.facts["passed"] for record in result.rounds] == [1.0, 0.0] * (ROUNDS // 2)


def test_all_rounds_see_one_noisy_threshold():
    method = method_of()
    run(method, ALIKE)
    assert method.memory.session._observed == ROUNDS
    other = method_of("min_score")
    run(other, ALIKE)
    assert other.memory.session is None


def test_the_outcome_of_rounds_whose_users_change_costs_no_more_than_the_tests_epsilon():
    """Exactly, from the rows of every round: the user stands with the others in one data set, far off in the other."""
    method = method_of(users=640, epsilon=4.0)
    test, batch = method.scheme.agreement.test, method.scheme.sampler.batch
    found = []
    for outliers in range(0, batch, 8):
        rows = np.zeros((batch, 2))
        rows[:outliers] = np.arange(1, outliers + 1)[:, None]
        other = rows.copy()
        other[-1] = -5.0
        for rounds in (1, 4):
            laws = [method.scheme.law([one] * rounds) for one in (rows, other)]
            assert len(laws[0]) == rounds + 1
            found.append(exact_epsilon(*laws))
    assert 0.3 * test.epsilon < max(found) <= test.epsilon * (1 + 1e-6)


@pytest.mark.parametrize("options", [{"epochs": 1, "rounds": 2}, {}, {"epochs": 12, "rounds": 24}, {"radius": None}])
@pytest.mark.parametrize("kernel", ["ramp", "exp"])
def test_left_out_it_is_the_test_that_leaves_the_least_noise(options, kernel):
    deviations = {}
    for test in ("min_score", "above_threshold", None):
        try:
            made = method_of(test, 20_000, 4.0, kernel=kernel, **options)
        except PopulationTooSmall:
            continue
        deviations[test] = made.scheme.mechanism.standard_deviation
    assert deviations[None] == min(deviations.values())
    assert options.get("epochs") != 1 or deviations[None] == deviations["min_score"]


def test_users_of_many_rounds_take_far_fewer_with_one_test():
    needed = {
        test: method_of(test, 40_000, 2.0, epochs=12, rounds=24).plan.users_needed for test in (None, "min_score")
    }
    assert needed[None] < needed["min_score"] / 2
    chosen = method_of(None, 4000, 2.0, epochs=12, rounds=24)
    assert chosen.plan.numbers["test"] == "above_threshold"
    with pytest.raises(PopulationTooSmall):
        method_of("min_score", 4000, 2.0, epochs=12, rounds=24)
    assert isinstance(method_of(None, epochs=1).scheme.agreement.test, MinimumScore)


def test_honest_users_pass_all_rounds_as_often_as_the_plan_says():
    """Users are as few as pass at all, so that the chance is visibly below one."""
    for kind in ("min_score", "above_threshold"):
        options = {"rounds": 6, "epochs": 3, "failure": 0.2, "test": kind}
        needed = make(RobustRounds, Linear(2, 1.0), 6000, 2.0, 1e-5, **options).plan.users_needed
        method = make(RobustRounds, Linear(2, 1.0), needed, 2.0, 1e-5, **options)
        test, batch = method.scheme.agreement.test, float(method.scheme.sampler.batch)
        each = test.pass_probability(batch) ** 6
        assert 0.9 - 1e-3 <= method.plan.pass_probability < 0.99
        if isinstance(test, MinimumScore):
            assert method.plan.pass_probability == each
        else:
            assert method.plan.pass_probability == test.pass_probability(batch, 6) > each
