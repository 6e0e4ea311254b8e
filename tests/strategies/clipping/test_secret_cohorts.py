"""Cohorts that must stay secret: drawn once per round by the operating system, asked and accounted as drawn."""

import json

import numpy as np
import pytest
from any_strategy import options_of
from examples import changed
from helpers import federation_of, local_grid, strategy_of

from simulations.config.run_config import parse_config
from simulations.runs.run import run as run_config
from strategies import STRATEGIES, AdaptiveClipping, DPFedAvg, DPFedSGD, ProjectedSGD, PublicFacts
from userdp.accounting import Privacy
from userdp.problems import Quadratic
from userdp.settings import choices

USERS, ROUNDS = 60, 4
PROBLEM = Quadratic(2, 5.0, 5.0)
PEOPLE = federation_of(np.random.default_rng(0).normal(size=(USERS, 2)))
SECRET = ("poisson", "fixed_size", "allocation")
each_sampling = pytest.mark.parametrize("sampling", SECRET)


def drawn(sampling, cohort):
    return {"sampling": sampling} | ({"participations": 2} if sampling == "allocation" else {"cohort": cohort})


def method_of(kind, sampling, noise="secure", users=USERS, cohort=30, **options):
    if kind is ProjectedSGD:
        options["sparsity"] = 2
    privacy = Privacy(4.0, 1e-3, noise=noise)
    options |= {"rounds": ROUNDS} | drawn(sampling, cohort)
    return strategy_of(kind, PROBLEM, PublicFacts(users), privacy, seed=3, **options)


def cohorts_asked(method, federation=PEOPLE, users_per_node=7):
    """The users that each round of a whole run asks."""
    asked, ask = [], method.request_of
    method.request_of = lambda index: asked.append(ask(index)) or asked[-1]
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
    assert method.program.own.ledger.rounds == ROUNDS
    assert method.spent_epsilon == method.plan.guarantee.epsilon <= 4.0
    assert len({tuple(cohort) for cohort in cohorts}) == ROUNDS
    seeded = method_of(kind, sampling, "seeded").scheme.sampler
    assert not any(np.array_equal(cohort, seeded.cohort(index)) for index, cohort in enumerate(cohorts))
    assert {tuple(cohort) for cohort in cohorts_asked(method_of(kind, sampling))}.isdisjoint(map(tuple, cohorts))


@pytest.mark.sweep(1)
@each_sampling
def test_a_configured_secure_run_with_secret_cohorts_writes_its_release(sampling, tmp_path):
    strategy = {"kind": "dp_fed_sgd", "rounds": 2} | drawn(sampling, 100)
    outcome = run_config(parse_config(changed(privacy__noise="secure", strategy=strategy)), directory=tmp_path)
    assert np.isfinite(outcome.model).all()
    told = json.loads((tmp_path / "guarantee.json").read_text())
    assert told["holds"]
    assert any("stays secret" in assumption for assumption in told["assumptions"])


# --- The ledger ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in STRATEGIES.items() if kind.about.without_secure_noise is None)
)
@pytest.mark.parametrize("sampling", ["disjoint", "cyclic", "poisson", "fixed_size", "amplified", None])
def test_no_strategy_with_secure_noise_draws_what_must_stay_secret_from_its_seed(name, sampling):
    kind = STRATEGIES[name]
    field = kind.model_fields.get("sampling")
    if sampling not in ((None,) if field is None else choices(field)):
        return
    options = options_of(name) | ({"sampling": sampling} if sampling else {})
    facts = PublicFacts(300, max_samples=2, samples=400)
    method = strategy_of(kind, PROBLEM, facts, Privacy(4.0, 1e-3, noise="secure"), seed=3, **options)
    sampler = method.scheme.sampler
    secret = sampling in {*SECRET, "amplified"}
    assert (sampler is not None and sampler.secret) == secret
    assert not (secret and sampler.seed is not None)
