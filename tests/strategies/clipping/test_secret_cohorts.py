"""Cohorts that must stay secret: drawn once a round by the operating system, asked and accounted as drawn."""

import json
from dataclasses import replace

import numpy as np
import pytest
from any_strategy import options_of
from examples import changed
from helpers import federation_of, local_grid, with_scheme

from simulations.config.run_config import parse_config
from simulations.runs.run import run as run_config
from strategies import STRATEGIES, AdaptiveClipping, DPFedAvg, DPFedSGD, ProjectedSGD, PublicFacts
from userdp.accounting import Privacy, RoundLedger
from userdp.errors import BadInput, RunFailed
from userdp.problems import Quadratic
from userdp.sampling import FixedSizeBatches, PoissonBatches, PoissonSamples

USERS, ROUNDS = 60, 4
PROBLEM = Quadratic(2, 5.0, 5.0)
PEOPLE = federation_of(np.random.default_rng(0).normal(size=(USERS, 2)))
SECRET = {
    "poisson": lambda: PoissonBatches(USERS, 0.5, 9, None),
    "fixed_size": lambda: FixedSizeBatches(USERS, 30, 9, None),
}
each_sampling = pytest.mark.parametrize("sampling", SECRET)


def method_of(kind, sampling, noise="secure", users=USERS, cohort=30, **options):
    if kind is ProjectedSGD:
        options["sparsity"] = 2
    privacy = Privacy(4.0, 1e-3, noise=noise)
    options |= {"sampling": sampling, "cohort": cohort, "rounds": ROUNDS}
    return kind(PROBLEM, PublicFacts(users), privacy, seed=3, **options)


def cohorts_asked(method, federation=PEOPLE, users_per_node=7):
    """Those that a whole run asks, round by round."""
    asked, ask = [], method._ask
    method._ask = lambda index: asked.append(ask(index)) or asked[-1]
    with local_grid(method.problem, federation, users_per_node) as grid:
        result = method.start(grid)
    assert len(result.rounds) == method.plan.rounds
    return [request.users for request in asked]


# --- Runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@each_sampling
@pytest.mark.parametrize("kind", [DPFedSGD, DPFedAvg, AdaptiveClipping, ProjectedSGD])
def test_secure_noise_with_secret_cohorts_runs_to_the_end(kind, sampling):
    method = method_of(kind, sampling)
    cohorts = cohorts_asked(method)
    assert method._ledger.rounds == ROUNDS
    assert method.spent_epsilon == method.plan.guarantee.epsilon <= 4.0
    assert len({tuple(cohort) for cohort in cohorts}) == ROUNDS
    seeded = method_of(kind, sampling, "seeded").scheme.sampler
    assert not any(np.array_equal(cohort, seeded.cohort(index)) for index, cohort in enumerate(cohorts))
    assert {tuple(cohort) for cohort in cohorts_asked(method_of(kind, sampling))}.isdisjoint(map(tuple, cohorts))


@pytest.mark.slow
def test_secure_rounds_that_draw_nobody_release_noise_and_are_charged():
    method = method_of(DPFedSGD, "poisson", users=3, cohort=1)
    with_scheme(method, sampler=PoissonBatches(3, 1e-9, ROUNDS, None))
    method._ledger = method.scheme.sampler.ledger(50.0, method.privacy)
    assert [len(cohort) for cohort in cohorts_asked(method, federation_of(np.zeros((3, 2))))] == [0] * ROUNDS
    assert method._ledger.rounds == ROUNDS


@pytest.mark.sweep(1)
@each_sampling
def test_a_configured_secure_run_with_secret_cohorts_writes_its_release(sampling, tmp_path):
    strategy = {"kind": "dp_fed_sgd", "rounds": 2, "cohort": 100, "sampling": sampling}
    outcome = run_config(parse_config(changed(privacy__noise="secure", strategy=strategy)), directory=tmp_path)
    assert np.isfinite(outcome.model).all()
    told = json.loads((tmp_path / "guarantee.json").read_text())
    assert told["holds"]
    assert any("stays secret" in assumption for assumption in told["assumptions"])


# --- A cohort is drawn once ------------------------------------------------------------------------------------------


@each_sampling
def test_a_round_asked_for_again_has_the_cohort_that_was_drawn(sampling):
    sampler = SECRET[sampling]()
    first = sampler.cohort(0).copy()
    for _ in range(5):
        np.testing.assert_array_equal(sampler.cohort(0), first)
    second = sampler.cohort(1)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(sampler.cohort(1), second)


@each_sampling
def test_a_round_that_is_over_is_never_drawn_again(sampling):
    sampler = SECRET[sampling]()
    last = sampler.cohort(4)
    for index in range(4):
        with pytest.raises(
            BadInput, match=f"the cohort of round {index} was drawn by the operating system and is gone"
        ):
            sampler.cohort(index)
    np.testing.assert_array_equal(sampler.cohort(4), last)
    with pytest.raises(BadInput, match="batch 9"):
        sampler.cohort(9)


@each_sampling
def test_nobody_can_change_the_cohort_that_is_remembered(sampling):
    with pytest.raises(ValueError, match="read-only"):
        SECRET[sampling]().cohort(0)[:] = 0


@each_sampling
def test_what_is_remembered_is_no_part_of_what_a_sampler_is(sampling):
    sampler, other = SECRET[sampling](), SECRET[sampling]()
    sampler.cohort(0)
    assert sampler == other
    assert hash(sampler) == hash(other)
    assert repr(sampler) == repr(other)
    assert not np.array_equal(sampler.cohort(0), other.cohort(0))
    assert not np.array_equal(sampler.cohort(0), replace(sampler, rounds=8).cohort(0))


# --- The ledger ------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@each_sampling
def test_the_ledger_takes_the_cohort_that_was_drawn_and_no_other(sampling):
    sampler = SECRET[sampling]()
    ledger = sampler.ledger(sampler.calibrate(1.0, 1e-3), Privacy(1.0, 1e-3, noise="secure"))
    drawn = sampler.cohort(0).copy()
    for users in (drawn[1:], np.arange(USERS), SECRET[sampling]().cohort(0)):
        with pytest.raises(RunFailed, match="users of round 1 are not those that the sampler drew"):
            ledger.charge(users)
    assert ledger.rounds == 0
    ledger.charge(drawn)
    with pytest.raises(RunFailed, match="users of round 2 are not those"):
        ledger.charge(drawn)
    ledger.charge(sampler.cohort(1))
    assert ledger.rounds == 2


@each_sampling
def test_a_resumed_run_goes_on_with_new_cohorts_and_repeats_no_round(sampling):
    before, after = SECRET[sampling](), SECRET[sampling]()
    noise, privacy = before.calibrate(1.0, 1e-3), Privacy(1.0, 1e-3, noise="secure")
    first, second = RoundLedger(before, noise, privacy), RoundLedger(after, noise, privacy)
    asked = [before.cohort(0).copy()]
    first.charge(asked[0])
    second.restore(first.state())
    with pytest.raises(RunFailed, match="users of round 2 are not those"):
        second.charge(asked[0])
    with pytest.raises(BadInput, match="round 0 was drawn"):
        after.cohort(0)
    second.charge(after.cohort(1))
    assert second.rounds == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "sampler",
    [PoissonBatches(90, 0.5, 2), FixedSizeBatches(90, 30, 2), PoissonSamples(90, 0.5, 2)],
    ids=lambda s: type(s).__name__,
)
def test_cohorts_and_coins_from_a_seed_are_refused_where_noise_is_secure(sampler):
    noise = sampler.calibrate(1.0, 1e-3)
    with pytest.raises(BadInput, match="must stay secret and would come from the seed"):
        sampler.ledger(noise, Privacy(1.0, 1e-3, noise="secure"))
    assert sampler.ledger(noise, Privacy(1.0, 1e-3)).rounds == 0


@pytest.mark.parametrize("name", sorted(name for name, kind in STRATEGIES.items() if kind.without_secure_noise is None))
@pytest.mark.parametrize("sampling", ["disjoint", "cyclic", "poisson", "fixed_size", None])
def test_no_strategy_with_secure_noise_draws_what_must_stay_secret_from_its_seed(name, sampling):
    kind = STRATEGIES[name]
    if (sampling is None) == ("sampling" in kind.Options.model_fields):
        return
    options = options_of(name) | ({"sampling": sampling} if sampling else {})
    facts = PublicFacts(300, max_samples=2, samples=400)
    method = kind(PROBLEM, facts, Privacy(4.0, 1e-3, noise="secure"), seed=3, **options)
    sampler = getattr(method.scheme, "sampler", None)
    assert (sampler is not None and sampler.secret) == (sampling in SECRET)
    assert not (sampling in SECRET and sampler.seed is not None)
