"""Accounting: closed forms by hand, agreement with other accountants, and a ledger that fails closed."""

import functools
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from examples import GUARANTEE
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from simulations.audit.finding import claim_of
from userdp.accounting import (
    Cost,
    Guarantee,
    Ledger,
    Privacy,
    add_or_remove_to_replace_one,
    calibrate_noise,
    delta_of,
    epsilon_of,
    group_privacy,
    largest_rho,
    rho_for,
    rho_of,
    zcdp_to_epsilon,
)
from userdp.accounting.composition import promises_something
from userdp.accounting.costs import together
from userdp.accounting.guarantee import ONE_GAUSSIAN, ZERO_CONCENTRATED
from userdp.audit.trade_off import Approximate, Gaussian
from userdp.errors import BadInput, RunFailed

quick = settings(max_examples=60)
DELTAS = st.floats(-25, -1.5).map(math.exp)

# --- Costs ------------------------------------------------------------------------------------------------------


def test_delta_of_one_gaussian_by_hand():
    # Phi(-1/2) - e Phi(-3/2) = 0.3085375 - 2.7182818 * 0.0668072
    assert delta_of(Cost(noise_multiplier=1.0), 1, 1.0) == pytest.approx(0.1269367, abs=1e-6)
    assert delta_of(Cost(noise_multiplier=1.0), 1, 0.0) == pytest.approx(2 * norm.cdf(0.5) - 1)
    assert delta_of(Cost(noise_multiplier=2.0), 4, 1.0) == delta_of(Cost(noise_multiplier=1.0), 1, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.49])
def test_delta_of_one_pure_test_is_that_of_randomised_response(epsilon):
    truth = 1 / (1 + math.exp(-0.5))
    expected = truth - math.exp(epsilon) * (1 - truth)
    assert delta_of(Cost(pure_epsilon=0.5), 1, epsilon) == pytest.approx(expected, rel=1e-12)
    assert delta_of(Cost(pure_epsilon=0.5), 1, 0.5) == 0
    assert delta_of(Cost(pure_epsilon=0.5), 3, 1.5) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("multiplier", "participations", "delta"), [(1, 1, 1e-5), (5, 1, 1e-6), (20, 50, 1e-9), (0.3, 1, 1e-5)]
)
def test_gaussians_agree_with_the_analytic_mechanism(multiplier, participations, delta):
    expected = dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(participations), delta)
    assert epsilon_of(Cost(noise_multiplier=multiplier), participations, delta) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("cost", "participations"),
    [
        (Cost(5.0, 0.3, 0.0), 1),
        (Cost(8.0, 0.3, 1e-8), 1),
        (Cost(10.0, 0.1, 1e-8), 5),
        (Cost(30.0, 0.05, 0.0), 40),
        (Cost(math.inf, 0.1, 0.0), 30),
        (Cost(6.0, 0.0, 2e-7), 3),
        (Cost(9.0, 0.0, 1e-8, shared_epsilon=0.5), 4),
        (Cost(math.inf, 0.1, 1e-8, shared_epsilon=0.7), 6),
    ],
)
def test_compositions_agree_with_privacy_loss_distributions_on_a_grid(cost, participations):
    """The Gaussian and what is beside it, composed by another implementation, which rounds up to its grid."""
    grid = {"value_discretization_interval": 1e-4}
    parts = []
    if math.isfinite(cost.noise_multiplier):
        deviation = cost.noise_multiplier / math.sqrt(participations)
        parts.append(pld.from_gaussian_mechanism(deviation, sensitivity=1, **grid))
    if cost.pure_epsilon or cost.failure_delta:
        parameters = dp_accounting.pld.common.DifferentialPrivacyParameters(cost.pure_epsilon, cost.failure_delta)
        parts.append(pld.from_privacy_parameters(parameters, **grid).self_compose(participations))
    if cost.shared_epsilon:
        once = dp_accounting.pld.common.DifferentialPrivacyParameters(cost.shared_epsilon, 0.0)
        parts.append(pld.from_privacy_parameters(once, **grid))
    rounded_up = functools.reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(1e-6)
    assert rounded_up - 1e-4 * (participations + 1) <= epsilon_of(cost, participations, 1e-6) <= rounded_up + 1e-6


def test_what_participations_share_is_paid_once_and_by_nobody_who_takes_no_part():
    shared = Cost(shared_epsilon=0.5)
    assert [epsilon_of(shared, participations, 0.0) for participations in (0, 1, 50)] == [0.0] + [0.5] * 2
    assert epsilon_of(Cost(pure_epsilon=0.25, shared_epsilon=0.5), 4, 0.0) == 1.5
    both = calibrate_noise(2.0, 1e-6, 10, shared_epsilon=0.5, failure_delta=1e-8)
    assert calibrate_noise(2.0, 1e-6, 10) < both < calibrate_noise(1.5, 9e-7, 10)
    assert epsilon_of(Cost(both, 0.0, 1e-8, 0.5), 10, 1e-6) == pytest.approx(2.0, rel=1e-6)


@quick
@given(
    multiplier=st.floats(0.5, 200),
    pure_epsilon=st.sampled_from([0.0, 0.01, 0.5]),
    participations=st.integers(1, 60),
    delta=DELTAS,
    more=st.floats(1.05, 3),
)
def test_epsilon_falls_with_noise_and_delta_and_grows_with_participations_and_tests(
    multiplier, pure_epsilon, participations, delta, more
):
    cost = Cost(multiplier, pure_epsilon)
    epsilon = epsilon_of(cost, participations, delta)
    assume(epsilon > 1e-9)
    more_than, less_than = epsilon * (1 + 1e-8), epsilon * (1 - 1e-8)  # epsilons are rounded up, each by its own hair
    assert epsilon_of(Cost(multiplier * more, pure_epsilon), participations, delta) <= more_than
    assert epsilon_of(cost, participations, min(0.9, delta * more)) <= more_than
    assert epsilon_of(cost, participations + 1, delta) >= less_than
    assert epsilon_of(Cost(multiplier, pure_epsilon + 0.1), participations, delta) >= less_than
    assert epsilon_of(Cost(multiplier, pure_epsilon, delta / participations / 3), participations, delta) >= less_than
    assert delta_of(cost, participations, epsilon) <= delta


@quick
@given(
    epsilon=st.floats(0.02, 30),
    delta=DELTAS,
    participations=st.integers(1, 100),
    share=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_accounting_what_was_calibrated_returns_the_budget_from_below(epsilon, delta, participations, share):
    pure_epsilon, failure_delta = share * epsilon / participations, share * delta / participations
    multiplier = calibrate_noise(epsilon, delta, participations, pure_epsilon, failure_delta)
    spent = epsilon_of(Cost(multiplier, pure_epsilon, failure_delta), participations, delta)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon
    assert epsilon_of(Cost(multiplier * 0.999, pure_epsilon, failure_delta), participations, delta) > epsilon


def test_calibration_by_hand_and_scaling_with_the_root_of_participations():
    assert calibrate_noise(1.0, 1e-6, 1) == pytest.approx(4.2246789, rel=1e-6)
    assert calibrate_noise(1.0, 1e-6, 100) == pytest.approx(42.246789, rel=1e-6)
    assert calibrate_noise(1e9, 0.5, 1) == 1e-4


@pytest.mark.parametrize("participations", [1, 4])
def test_epsilon_where_the_tests_use_up_delta_is_the_sum_of_theirs(participations):
    """A mechanism that is (epsilon, delta)-DP and no more, met once: its own epsilon, at its own delta."""
    cost = Cost(pure_epsilon=0.7, failure_delta=2.0**-20)
    assert epsilon_of(cost, participations, participations * 2.0**-20) == pytest.approx(0.7 * participations, rel=1e-15)
    # Less delta promises nothing; a little more costs hardly less.
    assert epsilon_of(cost, participations, participations * 2.0**-20 * (1 - 1e-9)) == math.inf
    more = epsilon_of(cost, participations, participations * 2.0**-20 * (1 + 1e-6))
    assert 0.7 * participations * (1 - 1e-6) < more <= 0.7 * participations
    assert epsilon_of(Cost(1.0, 0.7, 2.0**-20), participations, participations * 2.0**-20) == math.inf


def test_the_extremes_cost_everything_or_nothing():
    assert epsilon_of(Cost(), 5, 1e-6) == 0
    assert epsilon_of(Cost(noise_multiplier=1.0), 0, 1e-6) == 0
    assert delta_of(Cost(noise_multiplier=1.0), 0, 0.0) == 0
    assert epsilon_of(Cost(failure_delta=1e-7), 5, 1e-6) == 0
    assert epsilon_of(Cost(noise_multiplier=1.0, failure_delta=1e-7), 10, 1e-6) == math.inf
    assert epsilon_of(Cost(noise_multiplier=1e-9), 1, 1e-6) == math.inf
    assert delta_of(Cost(failure_delta=0.6), 2, 1.0) == 1
    assert epsilon_of(Cost(noise_multiplier=1e6), 1, 1e-6) == 0
    # At delta zero pure mechanisms add up, and a Gaussian promises nothing.
    assert epsilon_of(Cost(pure_epsilon=0.25), 4, 0.0) == 1.0
    assert epsilon_of(Cost(pure_epsilon=0.25, failure_delta=1e-9), 4, 0.0) == math.inf
    assert epsilon_of(Cost(noise_multiplier=5.0), 1, 0.0) == math.inf
    assert epsilon_of(Cost(noise_multiplier=5.0), 0, 0.0) == 0.0


# --- Conversions ------------------------------------------------------------------------------------------------


def test_group_privacy_by_hand():
    assert group_privacy(0.5, 1e-6, 1) == pytest.approx((0.5, 1e-6))
    epsilon, delta = group_privacy(0.5, 1e-6, 3)
    assert epsilon == 1.5
    assert delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)))
    assert group_privacy(0.0, 1e-6, 5) == pytest.approx((0.0, 5e-6))
    assert group_privacy(1.0, 0.0, 10_000) == (10_000.0, 0.0)
    assert group_privacy(1.0, 1e-6, 10_000) == (10_000.0, 1.0)
    assert add_or_remove_to_replace_one(0.5, 1e-6) == pytest.approx((1.0, 1e-6 * (1 + math.exp(0.5))))


@pytest.mark.parametrize("group", [2, 3, 8])
def test_group_privacy_bounds_the_exact_group_privacy_of_a_gaussian(group):
    epsilon = epsilon_of(Cost(noise_multiplier=6.0), 1, 1e-6)
    converted, delta = group_privacy(epsilon, 1e-6, group)
    assert delta_of(Cost(noise_multiplier=6.0 / group), 1, converted) <= delta


@quick
@given(multiplier=st.floats(0.2, 1e4), delta=DELTAS)
def test_zcdp_conversion_is_between_the_exact_gaussian_and_the_simple_bound(multiplier, delta):
    rho = 1 / (2 * multiplier**2)
    converted = zcdp_to_epsilon(rho, delta)
    assert epsilon_of(Cost(noise_multiplier=multiplier), 1, delta) <= converted
    assert converted <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_zcdp_conversion_by_a_fine_search():
    orders = 1 + np.exp(np.linspace(-5, 8, 200_001))
    for rho, delta in ((0.02, 1e-5), (1e-4, 1e-6), (2.0, 1e-9)):
        epsilons = rho * orders - np.log(orders * delta) / (orders - 1) + np.log1p(-1 / orders)
        assert zcdp_to_epsilon(rho, delta) == pytest.approx(epsilons.min(), rel=1e-6)
    assert zcdp_to_epsilon(0.0, 1e-6) == 0


@quick
@given(epsilon=st.floats(1e-6, 50), delta=DELTAS)
def test_rho_for_inverts_the_simple_bound_and_the_papers_form_is_below_it(epsilon, delta):
    rho = rho_for(epsilon, delta)
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) == pytest.approx(epsilon, rel=1e-9)
    assert zcdp_to_epsilon(rho, delta) <= epsilon * (1 + 1e-12)
    if epsilon <= 1:
        assert rho_for(epsilon, delta, "paper") <= rho


def test_rho_for_by_hand():
    assert rho_for(1.0, 1e-5, "paper") == pytest.approx(0.016495, abs=1e-6)
    assert rho_for(1.0, 1e-5) == pytest.approx(0.020820, abs=1e-6)


# --- Ledger -----------------------------------------------------------------------------------------------------


def make_ledger(users=10, participations=2):
    privacy = Privacy(epsilon=1.0, delta=1e-6)
    return Ledger(users, Cost(calibrate_noise(1.0, 1e-6, participations)), participations, privacy)


def test_disjoint_users_spend_in_parallel_and_one_user_sequentially():
    ledger = make_ledger()
    assert ledger.epsilon() == 0
    ledger.charge(np.arange(5))
    once = ledger.epsilon()
    ledger.charge(np.arange(5, 10))
    assert ledger.epsilon() == once == epsilon_of(ledger.cost, 1, 1e-6)
    ledger.charge(np.array([3]))
    assert once < ledger.epsilon() <= 1.0
    assert ledger.most_participations == 2


def test_the_run_stops_before_the_plan_is_exceeded_and_nothing_is_recorded():
    ledger = make_ledger()
    ledger.charge(np.array([0, 1]))
    ledger.charge(np.array([0]))
    before = ledger.state()["participated"]
    with pytest.raises(RunFailed, match="3 times where 2 are planned"):
        ledger.charge(np.array([1, 2, 0]))
    assert np.array_equal(ledger.state()["participated"], before)
    with pytest.raises(RunFailed):
        ledger.charge(np.array([4, 4, 4]))  # three times in one call
    ledger.charge(np.array([4, 4]))
    assert ledger.state()["participated"][4] == 2
    ledger.charge(np.array([], dtype=np.int64))


@pytest.mark.parametrize("indices", [[-1], [10], [0.5], [True]])
def test_users_outside_the_federation_cannot_be_charged(indices):
    with pytest.raises(BadInput, match="from 0 to 9"):
        make_ledger().charge(np.array(indices))


def test_a_checkpoint_restores_what_was_spent():
    ledger = make_ledger()
    ledger.charge(np.array([2, 7]))
    state = ledger.state()
    ledger.charge(np.array([2]))
    resumed = make_ledger()
    resumed.restore(state)
    assert resumed.epsilon() == epsilon_of(ledger.cost, 1, 1e-6)
    resumed.charge(np.array([2]))
    assert state["participated"][2] == 1  # a copy
    with pytest.raises(RunFailed):
        resumed.charge(np.array([2]))


def test_a_foreign_or_damaged_checkpoint_is_refused():
    state = make_ledger().state()
    with pytest.raises(BadInput, match="10 users and 2 participations"):
        make_ledger(users=11).restore(state)
    with pytest.raises(BadInput, match="resume with the settings"):
        make_ledger(participations=3).restore(state)
    for count in (-1, 3):
        damaged = make_ledger().state()
        damaged["participated"][0] = count
        with pytest.raises(BadInput, match="no run of this plan wrote it"):
            make_ledger().restore(damaged)


def test_a_plan_beyond_the_budget_is_refused_before_anything_is_spent():
    multiplier = calibrate_noise(1.0, 1e-6, 2)
    with pytest.raises(BadInput, match=r"more than privacy\.epsilon = 1"):
        Ledger(10, Cost(multiplier), 3, Privacy(1.0, 1e-6))
    with pytest.raises(BadInput, match=r"more than privacy\.epsilon"):
        Ledger(10, Cost(multiplier * 0.999), 2, Privacy(1.0, 1e-6))
    with pytest.raises(BadInput, match="users = 0"):
        Ledger(0, Cost(multiplier), 2, Privacy(1.0, 1e-6))


# --- Privacy and Guarantee --------------------------------------------------------------------------------------


def test_a_delta_that_permits_publishing_a_user_is_refused_without_the_flag():
    Privacy(1.0, 0.9e-3).check_population(1000)
    with pytest.raises(BadInput, match="permits publishing one user's data"):
        Privacy(1.0, 1e-3).check_population(1000)
    Privacy(1.0, 1e-3, allow_large_delta=True).check_population(1000)


@pytest.mark.parametrize("least", [1e-30, 3e-288, 5e-324])
def test_noise_of_next_to_nothing_is_priced_and_not_refused_by_arithmetic(least):
    assert together(Cost(noise_multiplier=least), Cost(noise_multiplier=1.0)).noise_multiplier <= least * (1 + 1e-12)


@pytest.mark.parametrize(
    ("accountant", "gaussian"),
    [
        (f"{ONE_GAUSSIAN}, one for all rounds", True),
        (f"{ONE_GAUSSIAN}, composed over rounds; group privacy for 3 samples", True),
        (f"{ONE_GAUSSIAN}, composed over rounds; a last comparison of epsilon = 1 is added", False),
        (f"{ONE_GAUSSIAN}; group privacy for 3 samples; a last comparison of epsilon = 1 is added", False),
        (f"{ONE_GAUSSIAN}; a preparation of epsilon = 1 is added; group privacy for 3 samples", False),
        (f"Laplace mechanism; {ONE_GAUSSIAN}", False),
        ("privacy loss distribution of the Gaussian mechanism", False),
    ],
)
def test_a_claim_is_that_of_one_gaussian_where_its_accountant_says_so_and_nothing_is_added(accountant, gaussian):
    guarantee = replace(GUARANTEE, accountant=accountant)
    assert guarantee.is_one_gaussian == gaussian
    assert isinstance(claim_of(guarantee), Gaussian if gaussian else Approximate)


@quick
@given(log_noise=st.floats(-1.5, 5), delta=DELTAS, uses=st.integers(1, 50))
def test_rho_of_gaussians_is_theirs_and_never_less(log_noise, delta, uses):
    noise = math.exp(log_noise)
    spent = replace(GUARANTEE, epsilon=epsilon_of(Cost(noise_multiplier=noise), uses, delta), delta=delta)
    assume(0 < spent.epsilon < 300)
    rho = uses / (2 * noise**2)
    assert rho <= rho_of(spent) <= rho * (1 + 1e-4)


@quick
@given(log_rho=st.floats(-8, 3), delta=DELTAS)
def test_rho_of_an_accounting_in_rho_is_the_one_that_was_converted_and_never_less(log_rho, delta):
    rho = math.exp(log_rho)
    spent = replace(GUARANTEE, epsilon=zcdp_to_epsilon(rho, delta), delta=delta, accountant=ZERO_CONCENTRATED)
    assume(spent.epsilon > 0)
    assert rho <= rho_of(spent) <= rho * (1 + 1e-3)


@quick
@given(epsilon=st.floats(0.01, 8), alpha=st.floats(1.001, 200))
def test_rho_of_pure_epsilon_bounds_every_renyi_divergence_of_randomised_response(epsilon, alpha):
    truth = np.log([1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))])
    divergence = np.logaddexp(*(alpha * truth + (1 - alpha) * truth[::-1])) / (alpha - 1)
    assert divergence <= alpha * rho_of(replace(GUARANTEE, epsilon=epsilon, delta=0.0)) * (1 + 1e-9)


def test_no_rho_follows_from_another_accounting_or_without_a_guarantee():
    added = f"{ONE_GAUSSIAN}, composed over rounds; a last comparison of epsilon = 1 is added"
    group = f"{ZERO_CONCENTRATED}; group privacy for 4 samples; one Gaussian mechanism for held-out users"
    for accountant in (added, group, "privacy loss distribution", "exact hockey-stick divergence"):
        assert rho_of(replace(GUARANTEE, accountant=accountant)) is None
    assert rho_of(Guarantee.none("nothing is noised")) is None
    assert rho_of(replace(GUARANTEE, epsilon=0.0)) is None  # all of it is delta


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cost(noise_multiplier=0.0), "noise multiplier = 0.0"),
        (lambda: Cost(shared_epsilon=-0.1), "shared epsilon = -0.1"),
        (lambda: Cost(failure_delta=1.0), "failure delta = 1.0"),
        (lambda: epsilon_of(Cost(1.0), -1, 1e-6), "participations = -1"),
        (lambda: epsilon_of(Cost(1.0), 1, -0.1), "delta = -0.1"),
        (lambda: epsilon_of(Cost(1.0), 1, 1.0), "delta = 1.0"),
        (lambda: delta_of(Cost(1.0), 1, -1.0), "epsilon = -1.0"),
        (lambda: delta_of(Cost(1.0), 1, math.nan), "epsilon = nan"),
        (lambda: calibrate_noise(0.0, 1e-6, 1), "epsilon = 0.0"),
        (lambda: calibrate_noise(1.0, math.nan, 1), "delta = nan"),
        (lambda: calibrate_noise(1.0, 1e-6, 0), "participations = 0"),
        (lambda: calibrate_noise(1.0, 1e-6, 4, pure_epsilon=0.5), "leaves nothing for noise after 4 tests"),
        (lambda: calibrate_noise(1.0, 1e-6, 4, failure_delta=3e-7), "leaves nothing for noise"),
        (lambda: group_privacy(-1.0, 0.1, 2), "epsilon = -1.0"),
        (lambda: group_privacy(1.0, 1.0, 2), "delta = 1.0"),
        (lambda: group_privacy(1.0, 0.1, 0), "group = 0"),
        (lambda: zcdp_to_epsilon(-0.1, 1e-6), "rho = -0.1"),
        (lambda: zcdp_to_epsilon(math.nan, 1e-6), "rho = nan"),
        (lambda: zcdp_to_epsilon(0.1, 0.0), "delta = 0.0"),
        (lambda: rho_for(0.0, 1e-6), "epsilon = 0.0"),
        (lambda: rho_for(1.0, 2.0), "delta = 2.0"),
        (lambda: rho_for(1.5, 1e-6, "paper"), "use the form 'tight'"),
        (lambda: rho_for(0.5, 1e-6, "loose"), "form = 'loose'"),
        *[
            (lambda e=e, d=d: largest_rho(e, d), " = ")
            for e, d in ((0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0))
        ],
        *[
            (lambda wrong=wrong: Privacy(**{"epsilon": 1.0, "delta": 1e-6, **wrong}), message)
            for wrong, message in (
                ({"epsilon": 0.0}, "privacy.epsilon = 0.0"),
                ({"delta": 1.0}, "privacy.delta = 1.0"),
                ({"epsilon": "1"}, "privacy.epsilon = '1' is a str: give a number"),
                ({"delta": None}, "privacy.delta = None is a NoneType: give a number"),
                ({"allow_large_delta": "false"}, "privacy.allow_large_delta = 'false': give True or False"),
                ({"trust": "sum", "lost_nodes": 1.5}, "privacy.lost_nodes = 1.5 is a float: give a whole number"),
                ({"unit": "device"}, "privacy.unit = 'device'"),
                ({"noise": "random"}, "privacy.noise = 'random': must be 'seeded' or 'secure'"),
            )
        ],
    ],
)
def test_bad_costs_budgets_and_conversions_are_refused(make, message):
    with pytest.raises(BadInput, match=message):
        make()


@pytest.mark.parametrize("users", [4, 1024])
def test_a_delta_of_one_over_n_promises_nothing(users):
    assert promises_something(np.nextafter(1 / users, 0), users)
    assert not promises_something(1 / users, users)
