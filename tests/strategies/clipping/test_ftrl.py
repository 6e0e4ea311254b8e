"""DP-FTRL: its plan and accounting, its sensitivity against brute force, and a run by hand."""

import math

import numpy as np
import pytest
from helpers import WILD, Wild, encoder, federation_of, final, gathered, make, noise_matrix, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import DPFTRL, PublicFacts
from userdp.accounting import Cost, Privacy, epsilon_of
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.mechanisms.toeplitz import FACTORISATIONS, best_factorisation, last_error
from userdp.noise import rounding_slack
from userdp.problems import Quadratic
from userdp.randomness import stream
from userdp.sampling import CorrelatedBatches

KINDS = FACTORISATIONS
every_kind = pytest.mark.parametrize("kind", KINDS)
codes = st.integers(0, len(WILD) - 1)


@pytest.mark.parametrize("kind", ["banded", "best"])
def test_a_plan_predicts_the_noise_of_the_factorisation_that_is_used(kind):
    """100 rounds of 4 users of 40: everybody ten times."""
    options = {"rounds": 100, "cohort": 4, "clip_norm": 1.0}
    method = make(DPFTRL, Wild(2), 40, delta=1e-3, factorisation=kind, **options)
    plain = make(DPFTRL, Wild(2), 40, delta=1e-3, **options)
    assert method.plan.numbers["factorisation"] == best_factorisation(100, 10) == "banded"
    ratio = last_error("banded", 100, 10) / last_error("square_root", 100, 10)
    assert method.plan.noise == pytest.approx(ratio * plain.plan.noise)
    assert method.plan.guarantee == plain.plan.guarantee


# --- Accounting -----------------------------------------------------------------------------------------------------


@every_kind
def test_the_run_is_one_gaussian_mechanism_and_its_ledger_counts_rounds(kind):
    sampler = CorrelatedBatches(50, 10, 12, seed=3, kind=kind)
    noise = sampler.calibrate(1.0, 1e-4)
    assert 0.999 < sampler.epsilon(noise, 1e-4) == epsilon_of(Cost(noise), 1, 1e-4) <= 1
    spent = [sampler.epsilon(noise, 1e-4, rounds) for rounds in range(13)]
    assert spent[0] == 0
    assert np.all(np.diff(spent) >= 0)
    assert spent[3] < 0.9
    ledger = sampler.ledger(noise, Privacy(1.0, 1e-4))
    for index in range(12):
        ledger.charge(sampler.cohort(index))
        assert ledger.epsilon() == spent[index + 1]
    with pytest.raises(RunFailed, match="planned"):
        ledger.charge(sampler.cohort(0))


def test_cohorts_return_after_exactly_the_separation_that_is_accounted():
    sampler = CorrelatedBatches(53, 10, 12, seed=3)
    assert sampler.factorisation.separation == 5
    for index in range(7):
        np.testing.assert_array_equal(sampler.cohort(index), sampler.cohort(index + 5))
    together = np.concatenate([sampler.cohort(index) for index in range(5)])
    assert len(np.unique(together)) == 50


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0, 1, 1), BadInput), ((5, 0, 1), BadInput), ((5, 1, 0), BadInput), ((5, 6, 1), PopulationTooSmall)],
)
def test_cohorts_that_cannot_be_drawn_are_refused(arguments, error):
    with pytest.raises(error):
        CorrelatedBatches(*arguments)
    with pytest.raises(BadInput, match="must be one of square_root, tree, "):
        CorrelatedBatches(5, 1, 1, kind="bush")


# --- The strategy ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(
    arrays(np.int64, (6, 2), elements=codes),
    arrays(np.int64, (2,), elements=codes),
    st.integers(0, 5),
    st.sampled_from(sorted(KINDS)),
)
def test_replacing_one_user_moves_the_whole_run_by_at_most_its_stated_sensitivity(users, other, who, kind):
    """All rounds of neighbours through C, each at its own public model."""
    method = make(DPFTRL, Wild(2), 6, delta=1e-3, clip_norm=0.7, rounds=7, cohort=2, factorisation=kind)
    neighbour = users.copy()
    neighbour[who] = other
    models = np.random.default_rng(1).normal(size=(7, 2))
    sums = [
        np.array([gathered(method, federation_of(data), t, models[t]).values / 2 for t in range(7)])
        for data in (users, neighbour)
    ]
    distance = np.linalg.norm(encoder(kind, 7, 3) @ (sums[0] - sums[1]))
    assert distance <= method.plan.numbers["l2_sensitivity"] * (1 + 1e-9)


@every_kind
def test_the_stated_sensitivity_is_attained_by_opposite_users(kind):
    worst = 0.0
    for who in range(6):
        method = make(DPFTRL, Wild(1), 6, delta=1e-3, clip_norm=0.7, rounds=7, cohort=2, factorisation=kind)
        data, other = np.zeros((6, 1), dtype=int), np.zeros((6, 1), dtype=int)
        data[who], other[who] = 4, 5
        sums = [
            np.array([gathered(method, federation_of(users), t, np.zeros(1)).values / 2 for t in range(7)])
            for users in (data, other)
        ]
        worst = max(worst, np.linalg.norm(encoder(kind, 7, 3) @ (sums[0] - sums[1])))
    assert worst == pytest.approx(method.plan.numbers["l2_sensitivity"])


@every_kind
@pytest.mark.parametrize(("rounds", "cohort"), [(1, None), (20, None), (20, 1000), (30, 250)])
def test_the_plan_spends_the_budget_and_not_more(kind, rounds, cohort):
    method = make(DPFTRL, Quadratic(3, 1.0, 1.0), 1000, 1.0, 1e-5, rounds=rounds, cohort=cohort, factorisation=kind)
    plan = method.plan
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    assert plan.guarantee.relation == "replace_one"
    size = cohort or 1000 // rounds
    separation = 1000 // size
    assert plan.numbers["participations"] == math.ceil(rounds / separation)
    sensitivity = 2 / size * KINDS[kind](rounds, separation).sensitivity(rounds)
    assert plan.numbers["l2_sensitivity"] == pytest.approx(sensitivity)
    assert method.scheme.mechanism.standard_deviation == pytest.approx(plan.numbers["noise_multiplier"] * sensitivity)


@every_kind
def test_a_run_by_hand(kind):
    problem = Quadratic(2, 5.0, 1.5)
    federation = SyntheticFederation(Gaussian(dimension=2), users=60, seed=1, samples_per_user=10)
    options = {"clip_norm": 0.5, "rounds": 5, "cohort": 20, "learning_rate": 0.3, "factorisation": kind}
    method = make(DPFTRL, problem, 60, 8.0, 1e-3, seed=4, **options)
    scale = method.scheme.mechanism.standard_deviation
    fresh = np.array([stream(4, "noise", t, 0).normal(scale=scale, size=2) for t in range(5)])
    noise = noise_matrix(KINDS[kind](5, 3)) @ fresh
    x, total, start = np.zeros(2), np.zeros(2), np.zeros(2)
    for t in range(5):
        block = problem.bound(federation.block(method.scheme.sampler.cohort(t)))[0]
        rows = problem.user_gradients(x, block)
        rows *= np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True))
        total += rows.sum(axis=0) / 20
        x = problem.domain.project(start - 0.3 * (total + noise[t]))
    np.testing.assert_allclose(final(run(method, federation)), x, rtol=1e-9)


def test_the_slack_of_secure_noise_counts_an_encoders_own_roundings():
    privacy = Privacy(4.0, 1e-3, noise="secure")
    method = DPFTRL(rounds=4, factorisation="buffered").strategy(
        Quadratic(3, 5.0, 5.0), PublicFacts(200), privacy, seed=0
    )
    recursion = method.scheme.sampler.factorisation.recursion
    assert recursion > 0
    assert method.scheme.price.summands == 4 * (50 + recursion)
    assert method.program.own.slack == rounding_slack(4 * (50 + recursion), 2.0)


# --- Amplified rounds -----------------------------------------------------------------------------------------------


def amplified(users=400, epsilon=2.0, seed=0, noise="seeded", **options):
    options = {"rounds": 8, "cohort": 20, "clip_norm": 0.5, "sampling": "amplified", **options}
    privacy = Privacy(epsilon, 1e-4, noise=noise)
    return DPFTRL(**options).strategy(Quadratic(2, 5.0, 5.0), PublicFacts(users), privacy, seed=seed)


@pytest.mark.parametrize("kind", ["square_root", "banded", "best"])
def test_amplified_rounds_spend_the_budget_of_add_or_remove(kind):
    method = amplified(factorisation=kind)
    plan, sampler = method.plan, method.scheme.sampler
    assert plan.guarantee.relation == "add_or_remove"
    assert 1.99 < plan.guarantee.epsilon <= 2.0
    assert any("stays secret" in one for one in plan.guarantee.assumptions)
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(0.5 / 20 * sampler.sensitivity)
    assert plan.numbers["rate"] == pytest.approx(20 * plan.numbers["separation"] / 400)
    federation = SyntheticFederation(Gaussian(dimension=2), users=400, seed=1, samples_per_user=2)
    result = run(method, federation)
    assert result.rounds[-1].spent_epsilon == pytest.approx(plan.guarantee.epsilon)


def test_amplified_rounds_may_promise_to_hide_a_replaced_user():
    method = amplified(relation="replace_one")
    sampler, numbers = method.scheme.sampler, method.plan.numbers
    assert method.plan.guarantee.relation == sampler.relation == "replace_one"
    assert 1.99 < method.plan.guarantee.epsilon <= 2.0
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(2 * 0.5 / 20 * sampler.sensitivity)
    assert amplified().plan.numbers["replace_one_epsilon"] > 2.0
    assert "replace_one_epsilon" not in numbers
    with pytest.raises(BadInput, match="'add_or_remove' with sampling = 'cyclic'"):
        amplified(sampling="cyclic", relation="add_or_remove", factorisation="square_root")


def test_coins_of_a_deployment_come_from_the_operating_system():
    method = amplified(noise="secure")
    assert method.scheme.sampler.seed is None
    federation = SyntheticFederation(Gaussian(dimension=2), users=400, seed=1, samples_per_user=2)
    assert np.isfinite(final(run(method, federation))).all()


def test_amplified_rounds_take_few_diagonals_alone():
    with pytest.raises(BadInput, match="must be correlated over few rounds"):
        amplified(factorisation="buffered")
