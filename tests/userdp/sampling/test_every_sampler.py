"""The description of every sampler: whom it asks, what that costs, and what its price rests on."""

import re
from dataclasses import replace
from inspect import isabstract

import numpy as np
import pytest

from userdp import sampling
from userdp.accounting import Cost, Privacy, calibrate_noise, epsilon_of
from userdp.accounting.composition import largest_rho
from userdp.errors import BadInput
from userdp.sampling.base import Sampler

USERS, DELTAS, NOISE = 24, (1e-6, 1e-4), 3.0
ONE, MANY = "add_or_remove", "replace_one"
SAMPLERS = {
    "disjoint": sampling.DisjointBatches(USERS, 7, 2),
    "all": sampling.DisjointBatches(USERS, USERS, 3),
    "cyclic": sampling.CyclicBatches(USERS, 6, 2),
    "concentrated": sampling.ConcentratedBatches(USERS, 7, 2),
    "weighted": sampling.WeightedBatches(USERS, 7, 3, shares=(0.1, 0.3, 0.6)),
    "places": sampling.WeightedSlots(USERS, 8, 2, shares=(0.75, 0.25)),
    **{kind: sampling.CorrelatedBatches(USERS, 7, 7, kind=kind) for kind in ("square_root", "tree")},
    "fixed size": sampling.FixedSizeBatches(USERS, 6, 3),
    **{f"poisson {each}": sampling.PoissonBatches(USERS, 0.3, 3, relation=each) for each in (ONE, MANY)},
    **{
        f"mixed {each}": sampling.MixedBatches(USERS, (1.0, 0.3, 0.6), (0.2, 0.3, 0.5), relation=each)
        for each in (ONE, MANY)
    },
    **{f"allocated {each}": sampling.AllocatedBatches(USERS, 2, 4, relation=each) for each in (ONE, MANY)},
    **{f"bands {each}": sampling.AmplifiedBands(USERS, 4, 5, 2, relation=each) for each in (ONE, MANY)},
}
SECRET = {name: one for name, one in SAMPLERS.items() if re.match("fixed|poisson|mixed|allocated|bands", name)}
PUBLIC = {name: one for name, one in SAMPLERS.items() if name not in SECRET}
RELATIONS = {name: ONE if name == "places" or name.endswith(ONE) else MANY for name in SAMPLERS}
each_sampler = pytest.mark.parametrize("name", SAMPLERS)


def drawn(one):
    return [one.cohort(index) for index in range(one.rounds)]


def test_every_sampler_of_the_package_is_here():
    of_package = {
        made
        for name in sampling.__all__
        if isinstance(made := getattr(sampling, name), type) and issubclass(made, Sampler) and not isabstract(made)
    }
    assert of_package == {type(one) for one in SAMPLERS.values()}


@each_sampler
def test_nobody_is_in_a_cohort_twice_and_rounds_that_there_are_not_ask_nobody(name):
    one = SAMPLERS[name]
    cohorts = drawn(one)
    for cohort in cohorts:
        assert np.all(np.diff(cohort) > 0)
        assert 0 <= cohort.min(initial=0) <= cohort.max(initial=0) < USERS
    again = replace(one)
    for index in reversed(range(one.rounds)):  # in whatever order they are asked
        np.testing.assert_array_equal(again.cohort(index), cohorts[index])
    for index in (-1, one.rounds):
        with pytest.raises(BadInput):
            one.cohort(index)
    for rounds in (-1, one.rounds + 1):
        with pytest.raises(BadInput):
            one.epsilon(NOISE, 1e-6, rounds)


@each_sampler
def test_what_divides_a_sum_follows_from_no_draw(name):
    one = SAMPLERS[name]
    other = replace(one, seed=5)
    assert one.expected_batch == other.expected_batch
    if hasattr(one, "expected"):
        assert [one.expected(k) for k in range(one.rounds)] == [other.expected(k) for k in range(one.rounds)]
    assert any(not np.array_equal(*two) for two in zip(drawn(one), drawn(other), strict=True)) or name == "all"


@each_sampler
def test_a_promise_is_of_the_samplers_relation_and_says_first_what_the_price_rests_on(name):
    one = SAMPLERS[name]
    said = one.guarantee(NOISE, 1e-6, "whoever", ("another",))
    assert (said.unit, said.relation, said.holds, said.delta) == ("user", RELATIONS[name], True, 1e-6)
    assert one.sensitivity_factor == (2 if said.relation == MANY else 1)
    assert said.assumptions == (one.assumption, "another")
    assert said.epsilon == one.epsilon(NOISE, 1e-6) > 0
    if name in SECRET:
        assert "secret" in one.assumption
    else:
        assert "public" in one.assumption
    assert ("which of them are empty is not published" in one.assumption) == (name == "places")
    assert (said.adversary == "whoever") == (name != "fixed size")
    assert ("server is trusted" in said.adversary) == (name == "fixed size")


@each_sampler
def test_the_noise_of_a_mean_is_made_for_what_the_worst_user_moves_it(name):
    """A user who is replaced takes its vector from the sum and adds the opposite one."""
    one, vector = SAMPLERS[name], np.array([0.42, -0.56])
    moved = np.linalg.norm((vector - -vector if RELATIONS[name] == MANY else vector) / one.expected_batch)
    mechanism = one.mean_mechanism(0.7, NOISE)
    assert mechanism.l2_sensitivity == pytest.approx(moved, rel=1e-12)
    assert mechanism.standard_deviation == pytest.approx(NOISE * moved, rel=1e-12)


@pytest.mark.parametrize("name", SECRET)
def test_who_takes_part_comes_from_no_seed_where_that_is_secret_and_noise_is_secure(name):
    one, noise = SAMPLERS[name], NOISE
    for seed in (0, 7):
        with pytest.raises(BadInput, match="who takes part must stay secret"):
            replace(one, seed=seed).ledger(noise, Privacy(50.0, 1e-6, noise="secure"))
    replace(one, seed=None).ledger(noise, Privacy(50.0, 1e-6, noise="secure"))
    for cohort in (each for _ in range(20) for each in drawn(replace(one, seed=None))):
        assert np.all(np.diff(cohort) > 0)
        assert name != "fixed size" or len(cohort) == one.batch


@pytest.mark.parametrize("name", PUBLIC)
def test_where_cohorts_are_public_a_run_costs_what_its_most_asked_user_met(name):
    """However many rounds it had; and what is calibrated costs no more than was asked for."""
    one = SAMPLERS[name]
    own = np.zeros((one.rounds, USERS))
    for index, cohort in enumerate(drawn(one)):
        own[index, cohort] = one.multiplier(index, NOISE) ** -1
    met = np.square(own)
    if isinstance(one, sampling.CorrelatedBatches):
        # One mechanism of all rounds: its rows move by C times the rounds that the user was asked in.
        encoder = one.factorisation.encoder()
        rows = np.array([encoder.add(row) for row in (own > 0).astype(float)])
        met = np.square(rows / (one.sensitivity * NOISE))
    for rounds in range(one.rounds + 1):
        most = met[:rounds].sum(axis=0).max(initial=0.0)
        for delta in DELTAS:
            least = epsilon_of(Cost(noise_multiplier=most**-0.5), 1, delta) if most else 0.0
            assert one.epsilon(NOISE, delta, rounds) >= least * (1 - 1e-9)
            assert (one.epsilon(NOISE, delta, rounds) > 0) == (rounds > 0)
    noise = one.calibrate(2.0, 1e-5)
    assert 1.9 < one.epsilon(noise, 1e-5) <= 2.0 * (1 + 1e-6)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_claim_of_one_gaussian_or_of_rho_is_so_at_every_delta(name):
    one = SAMPLERS[name]
    said = [one.guarantee(NOISE, delta, "whoever", ()) for delta in DELTAS]
    if said[0].is_one_gaussian:
        sizes = [calibrate_noise(each.epsilon, each.delta, 1) for each in said]
    else:
        assert said[0].is_zero_concentrated
        sizes = [largest_rho(each.epsilon, each.delta) for each in said]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-5)


@pytest.mark.parametrize("name", SECRET)
def test_no_claim_of_one_gaussian_is_made_for_secret_cohorts(name):
    said = SAMPLERS[name].guarantee(NOISE, 1e-6, "whoever", ())
    assert not said.is_one_gaussian
    assert not said.is_zero_concentrated
