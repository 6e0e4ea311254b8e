"""A seed that nobody gave is secret, and the guarantee of every class says where its noise comes from."""

import copy
import json
import pickle

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of, sources
from flwr.app import ArrayRecord
from helpers import final, run, strategy_of
from resumable import Kept

from strategies import STRATEGIES, DropInFedAvg, PublicFacts
from strategies.core.run_state import Resumed
from strategies.drop_in import DropIn
from userdp.accounting.guarantee import Guarantee, Privacy
from userdp.errors import BadInput
from userdp.noise import SeededNoise
from userdp.randomness import stream
from userdp.streams import DRAWN_SEED, GIVEN_SEED, SECURE_ASSUMPTIONS

FACTS = PublicFacts(400, 1, 1, samples=400)
DROP_IN = {"users": 400, "epsilon": 4.0, "delta": 1e-4, "rounds": 2}


def method_of(name, noise="seeded", **options):
    privacy = Privacy(4.0, 1e-4, STRATEGIES[name].about.units[0], noise=noise)
    return strategy_of(STRATEGIES[name], problem_of(name), FACTS, privacy, **options_of(name) | options)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_guarantee_of_every_class_says_where_its_noise_comes_from(name):
    about = STRATEGIES[name].about
    cases = {"given": {"seed": 0}, "drawn": {}, "secure": {"noise": "secure"}, "secure, given": {"noise": "secure"}}
    cases["secure, given"] |= {"seed": 0}
    for case, options in cases.items():
        if "secure" in case and about.without_secure_noise is not None:
            continue
        if case == "drawn" and not about.server_trusted:
            with pytest.raises(BadInput, match=f"noise = 'seeded' with {name}: the server would know"):
                method_of(name, **options)
            continue
        method = method_of(name, **options)
        secure = list(SECURE_ASSUMPTIONS[about.units[0]])
        expected = {"given": [GIVEN_SEED], "drawn": [DRAWN_SEED]}.get(case, secure)
        for promise in (method.plan.guarantee, method.scheme.price.guarantee):
            assert sources(promise) == (expected if promise.holds else [])
            assert Guarantee.from_dict(json.loads(json.dumps(promise.as_dict()))) == promise


@pytest.mark.parametrize("kind", DropIn.__subclasses__())
def test_the_guarantee_of_every_drop_in_says_where_its_noise_comes_from(kind):
    model = ArrayRecord([np.zeros(3)])
    told = {None: [DRAWN_SEED], 0: [GIVEN_SEED]}
    for seed, expected in told.items():
        method = kind(**DROP_IN, seed=seed)
        assert sources(method.plan.guarantee) == sources(method.plan_for(model).guarantee) == expected
    secure = kind(**DROP_IN, noise="secure")
    assert sources(secure.plan.guarantee) == list(SECURE_ASSUMPTIONS["user"])


@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.about.masked])
def test_nodes_that_hide_from_the_server_get_no_seed_that_the_server_drew(name):
    privacy = Privacy(4.0, 1e-4, STRATEGIES[name].about.units[0], trust="sum")
    with pytest.raises(BadInput, match=r"noise = 'seeded' with trust = 'sum'.*'secure', or give a seed"):
        STRATEGIES[name](**options_of(name)).strategy(problem_of(name), FACTS, privacy)


def test_a_drop_in_that_hides_from_the_server_is_refused_in_the_same_words():
    with pytest.raises(BadInput, match=r"noise = 'seeded' with trust = 'sum'.*'secure', or give a seed"):
        DropInFedAvg(users=400, epsilon=4.0, delta=1e-4, noise="seeded", trust="sum")


def test_runs_without_a_seed_release_different_models_and_none_of_them_that_of_seed_0():
    problem = problem_of("dp_fed_sgd")
    results = [run(method_of("dp_fed_sgd", **seed), halves(problem)) for seed in ({}, {}, {"seed": 0}, {"seed": 0})]
    first, second, zero, again = map(final, results)
    assert (first != second).all()
    assert (first != zero).all()
    np.testing.assert_array_equal(zero, again)
    assert [sources(one.guarantee) for one in results] == [[DRAWN_SEED]] * 2 + [[GIVEN_SEED]] * 2


def test_a_secret_seed_is_drawn_anew_and_its_noise_is_that_of_no_small_seed():
    methods = [method_of("dp_fed_sgd") for _ in range(2)]
    seeds = {method.noise_seed for method in methods} | {method.seed for method in methods}
    assert len(seeds) == 4  # what cohorts and messages show of one seed tells nothing about the noise
    assert min(seeds) > 1 << 64  # by chance with probability 2^-63


@pytest.mark.parametrize("made", [method_of, lambda _, **how: DropInFedAvg(**DROP_IN, **how)])
def test_a_strategy_whose_noise_is_secret_is_not_copied(made):
    """A copy would draw the same noise for other data, and spend a second time what an account was charged once."""
    for how in ({}, {"noise": "secure"}, {"noise": "secure", "seed": 3}):
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(BadInput, match="cannot be copied, because its budget is spent once: make a new one"):
                copied(made("dp_fed_sgd", **how))
    copy.deepcopy(made("dp_fed_sgd", seed=3))  # a simulation


@pytest.mark.parametrize("how", [{}, {"noise": "secure"}, {"seed": 3}], ids=str)
def test_a_fork_of_a_process_releases_nothing_with_its_noise(how, monkeypatch):
    problem, method = problem_of("dp_fed_sgd"), method_of("dp_fed_sgd", **how)
    monkeypatch.setattr("userdp.streams.os.getpid", lambda: -1)
    if "seed" in how:
        run(method, halves(problem))
        return
    with pytest.raises(BadInput, match="cannot be copied"):
        run(method, halves(problem))
    np.testing.assert_array_equal(final(method.result), problem.initial())


def test_one_given_seed_is_that_of_everything():
    assert (method_of("dp_fed_sgd", seed=7).seed, method_of("dp_fed_sgd", seed=7).noise_seed) == (7, 7)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.about.server_trusted])
def test_no_text_and_no_request_of_a_run_has_the_seed_of_its_noise(name):
    method = method_of(name, held_out=0 if name == "non_private" else 40)
    parts = (method, method.plan, method.scheme, method.testers, method.recipe, method.state, method.program.own.given)
    asked = method.request_of(1).computation
    assert not any(str(method.noise_seed) in repr(part) for part in (*parts, asked))
    assert (asked.noise, asked.masked) == (None, None)
    assert float(method.noise_seed) not in asked.parameters.values()


def test_no_node_is_told_a_seed_that_the_server_drew_whatever_a_recipe_says_of_trust():
    class Stranger(STRATEGIES["local_dp"]):
        about = STRATEGIES["local_dp"].about.model_copy(update={"server_trusted": True})

    privacy, told = Privacy(4.0, 1e-4), {}
    for seed in (None, 3):
        method = Stranger(**options_of("local_dp")).strategy(problem_of("local_dp"), FACTS, privacy, seed=seed)
        told[seed] = method.request_of(1).computation.noise.seed
    assert told == {None: None, 3: 3}  # None: each user's own machine draws


def test_whoever_knows_the_seed_of_cohorts_does_not_know_the_noise():
    method, zeros = method_of("dp_fed_sgd"), np.zeros(3)
    known = SeededNoise(stream(method.seed, "noise", 0, 0)).gaussian(zeros, 1.0)
    assert (method._noise(0).gaussian(zeros, 1.0) != known).all()


def test_a_run_without_a_seed_is_neither_kept_nor_resumed():
    """Another seed would draw users for more rounds than they are charged, and other noise for the same data."""
    problem, keeper = problem_of("dp_fed_sgd"), Kept()
    run(method_of("dp_fed_sgd", seed=5), halves(problem), keeper=keeper)
    for noise in ("seeded", "secure"):
        for resumption in ({"keeper": Kept()}, {"resumed": Resumed(keeper.kept[1])}):
            with pytest.raises(BadInput, match=r"seed is missing: .* give the strategy a seed"):
                run(method_of("dp_fed_sgd", noise), halves(problem), **resumption)
    with pytest.raises(BadInput, match="with seed 5, and this one has seed 6"):
        run(method_of("dp_fed_sgd", seed=6), halves(problem), resumed=Resumed(keeper.kept[1]))
    again = run(method_of("dp_fed_sgd", seed=5), halves(problem), resumed=Resumed(keeper.kept[1]))
    assert sources(again.guarantee) == [GIVEN_SEED]
