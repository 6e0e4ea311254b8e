"""Bounds that runs prove on a claim, with made-up runs of known truth: no strategy is run."""

from dataclasses import replace

import numpy as np
import pytest
from test_audit_command import config_of, instance_of
from test_audit_report import GUARANTEE

from simulations.audit import many_runs
from simulations.audit.canaries import attacks
from simulations.audit.instance import Instance
from simulations.audit.many_runs import _best_attack, accounted_sampler, bound_of
from simulations.audit.trials import Observer, Runs
from userdp.audit.trade_off import Gaussian
from userdp.sampling import ConcentratedBatches

OTHER = replace(GUARANTEE, accountant="privacy losses", delta=1e-6)


def runs_of(mu, runs=400, canaries=32, rounds=4, seed=0):
    """Each round moves a canary's own direction by the same; together by mu standard deviations of the noise."""
    rng = np.random.default_rng(seed)
    coins = 2 * rng.integers(0, 2, (runs, canaries)) - 1
    noise = rng.normal(size=(runs, canaries, rounds))
    return Runs(noise + coins[..., None] * mu / (2 * np.sqrt(rounds)), coins), np.ones(rounds, dtype=bool)


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_the_bound_on_a_gaussian_claim_is_below_the_truth_and_comes_close(mu):
    found = bound_of(*runs_of(mu), GUARANTEE, 0.95)
    assert mu - 0.3 < found.mu <= mu
    assert found.measured == Gaussian(found.mu).epsilon(GUARANTEE.delta)
    assert found.guesses == 300 * 32
    assert found.correct / found.guesses == pytest.approx(Gaussian(mu).membership_accuracy, abs=0.03)


def test_the_bound_on_another_claim_is_below_what_such_noise_costs_and_comes_close():
    found = bound_of(*runs_of(1.5), OTHER, 0.95)
    assert found.mu is None
    assert 0.3 * Gaussian(1.5).epsilon(OTHER.delta) < found.measured <= Gaussian(1.5).epsilon(OTHER.delta)
    assert found.guesses % 2 == 0


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_the_bound_on_rounds_that_a_sampler_accounts_is_below_what_such_noise_costs(mu):
    sampler = ConcentratedBatches(100, 100, 1, 0)
    claim = sampler.guarantee(1 / mu, 1e-6, "", ())
    found = bound_of(*runs_of(mu), claim, 0.95, sampler)
    assert (found.bound, found.mu) == ("rounds", None)
    assert 0.4 * claim.epsilon < found.measured <= claim.epsilon
    assert bound_of(*runs_of(0.0), claim, 0.95, sampler).measured == 0.0


def test_a_claim_is_tested_as_its_sampler_s_where_that_accounts_all_of_it():
    rotated = Instance.all_of(config_of("winsorized_rotation", 4.0))[-1]
    assert accounted_sampler(rotated) is rotated.template.scheme.sampler
    assert accounted_sampler(instance_of("outlier_removal", 4.0)) is None


@pytest.mark.parametrize("claim", [GUARANTEE, OTHER])
def test_how_to_guess_is_not_learnt_from_what_is_guessed(claim):
    """Were the coins of the test the other ones, each guess of one would be wrong where it was right."""
    made, alike = runs_of(2.0)
    other = Runs(made.features, np.concatenate([made.coins[:100], -made.coins[100:]]))
    found, turned = bound_of(made, alike, claim, 0.95), bound_of(other, alike, claim, 0.95)
    assert found.guesses == turned.guesses == found.correct + turned.correct
    assert found.measured > turned.measured == 0.0


@pytest.mark.parametrize("claim", [GUARANTEE, OTHER])
def test_more_confidence_is_a_smaller_bound(claim):
    less, more = (bound_of(*runs_of(1.0), claim, confidence).measured for confidence in (0.5, 0.9999))
    assert more < less


def test_the_attack_is_chosen_on_runs_that_prove_nothing():
    chosen_on = []

    class Rooms:
        def runs(self, case, numbers, count):
            chosen_on.extend(numbers)
            raise StopIteration

    with pytest.raises(StopIteration):
        _best_attack(Rooms(), [(0, 0), (1, 0)], 40, 200, print)
    assert len(chosen_on) == 40
    assert not {*chosen_on} & {*range(200)}


@pytest.mark.parametrize(("mu", "exact"), [(0.05, None), (6.0, None), (0.05, 3.0)])
def test_an_audit_attacks_by_what_reaches_furthest_and_counts_each_run_once(mu, exact, monkeypatch):
    """The runs are made up; one attack sees the canaries, and all else is an audit's own."""
    config = config_of("dp_fed_sgd", rounds=2)
    best, numbers, seen = attacks(Instance.all_of(config)[0])[1].name, [], []

    def some(observer, runs):
        numbers.extend(runs)
        shape = len(runs), len(observer.attack.canaries), len(observer.alike)
        rng = np.random.default_rng([observer.number, runs[0]])
        coins = 2 * rng.integers(0, 2, shape[:2]) - 1
        moved = mu if observer.attack.name == best else 0.0
        return Runs(rng.normal(size=shape) + coins[..., None] * moved / (2 * np.sqrt(shape[2])), coins)

    monkeypatch.setattr(Observer, "some", some)
    monkeypatch.setattr(Observer, "reach", lambda observer: 0.9 if observer.attack.name == best else 0.1)
    monkeypatch.setattr(many_runs, "exact_step", lambda instance: exact)
    found = many_runs.audit(
        config, runs=200, confidence=0.9, workers=0, progress=lambda done, of: seen.append((done, of))
    )
    assert (seen[0], seen[-1]) == ((0, 400), (400, 400))  # 100 runs for each of two attacks, to choose
    assert (numbers[200:], len({*numbers})) == ([*range(200)], 300)
    assert (found.strategy, found.rounds, found.runs, found.confidence, found.exact) == (
        *("dp_fed_sgd", 2, 200, 0.9),
        exact,
    )
    assert found.guarantee == Instance.all_of(config)[0].plan.guarantee
    assert found.refuted == (mu > 1.0 or exact is not None)
    assert found.measured >= (exact or 0.0)
    if mu > 1.0:
        assert found.attack == best
        assert found.canaries * 150 == found.guesses
        assert found.canaries < found.users
