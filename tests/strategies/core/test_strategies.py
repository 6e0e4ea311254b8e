"""All strategies: options, public facts, the round loop, and the result of a run."""

import contextlib
import json
import logging
import math

import numpy as np
import pytest
from any_strategy import FACTS, halves, method_of, options_of, problem_of
from flwr.app import MetricRecord
from helpers import federation_of, final, local_grid, make, run

from strategies import STRATEGIES, DPFedSGD, Plan, PublicFacts, model_record, model_vector
from userdp.accounting import Guarantee, Privacy
from userdp.errors import BadInput, RunFailed
from userdp.problems import Quadratic
from userdp.sampling.registry import SAMPLERS

PROBLEM = Quadratic(2, 1.0, 2.0)
FEDERATION = federation_of(np.full((400, 2), 0.5))
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


# --- Before a run --------------------------------------------------------------------------------------------------


@each_strategy
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"lerning_rate": 1}, "strategy.lerning_rate = 1: .*; options are .*max_missing"),
        *(
            ({field: value}, f"strategy.{field} = {value!r}")
            for field, value in (("max_missing", 1.0), ("max_missing", -0.1))
        ),
        *(({"learning_rate": value}, f"strategy.learning_rate = {value!r}") for value in (0, "fast")),
    ],
    ids=str,
)
def test_an_option_that_is_unknown_or_out_of_range_is_refused_by_name_and_value(name, option, words):
    with pytest.raises(BadInput, match=words):
        method_of(name, **option)


@each_strategy
def test_the_unit_of_privacy_is_one_that_the_strategy_protects(name):
    if "sample" in STRATEGIES[name].about.units:
        assert method_of(name, unit="sample").plan.rounds == 3
        return
    with pytest.raises(BadInput, match=f"privacy.unit = 'sample': {name} protects user level; set privacy.unit"):
        method_of(name, unit="sample")


@each_strategy
def test_a_delta_that_permits_publishing_a_user_is_refused(name):
    with pytest.raises(BadInput, match=r"privacy.delta = 0.0025 is at least 1/n"):
        STRATEGIES[name](**options_of(name)).strategy(
            problem_of(name), PublicFacts(400, **FACTS), Privacy(4.0, 1 / 400), seed=0
        )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"users": 0}, "data.users = 0: must be a whole number, one or more"),
        ({"users": 5, "min_samples": 0}, "data.min_samples = 0: must be a whole number, one or more"),
        ({"users": 5, "min_samples": 3, "max_samples": 2}, "data.max_samples = 2 lies below data.min_samples = 3"),
    ],
)
def test_public_facts_that_cannot_be_true_are_refused(facts, message):
    with pytest.raises(BadInput, match=message):
        PublicFacts(**facts)


def test_noise_drowns_a_signal_that_is_no_larger():
    plan = Plan("s", 1, 1, 1, 1, Guarantee.none("test"), noise=2.0, signal=2.0)
    assert plan.drowned
    assert not Plan("s", 1, 1, 1, 1, Guarantee.none("test"), noise=2.0).drowned


@pytest.mark.parametrize("x", [np.zeros(3), np.array([0.0, 9.0]), np.array([np.nan, 0.0]), np.zeros((1, 2))], ids=str)
def test_an_initial_model_outside_the_domain_is_refused(x):
    with local_grid(PROBLEM, FEDERATION) as grid, pytest.raises(BadInput, match="initial_arrays must hold 2 finite"):
        make(DPFedSGD, PROBLEM, 400, rounds=2).start(grid, initial_arrays=model_record(x))


# --- The loop ------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@each_strategy
def test_a_run_hands_back_its_guarantee_and_a_record_of_every_round_and_is_not_run_again(name):
    method, seen = method_of(name), []
    result = run(method, halves(problem_of(name)), on_round=seen.append)
    assert seen == result.rounds == method.result.rounds
    assert [record.round for record in result.rounds] == list(range(1, len(seen) + 1))
    assert result.guarantee.holds == (name != "non_private")
    assert set(result.train_metrics_clientapp) == set(range(1, len(seen) + 1))
    assert (result.missing_users, result.non_finite_users, result.clipped_samples) == (0, 0, 0)
    with pytest.raises(BadInput, match="make a new one"):  # so no budget is spent twice
        run(method, halves(problem_of(name)))


def test_metrics_are_of_the_released_model_before_the_first_and_after_every_round():
    def evaluate(number, arrays):
        return MetricRecord({"round": number, "first": float(model_vector(arrays)[0])})

    start = np.array([0.25, -0.5])
    result = run(method_of("dp_fed_sgd"), FEDERATION, evaluate_fn=evaluate, initial_arrays=model_record(start))
    assert result.initial_metrics == {"round": 0.0, "first": 0.25}
    assert [record.metrics["round"] for record in result.rounds] == [1.0, 2.0, 3.0]
    assert result.rounds[-1].metrics["first"] == final(result)[0]


def test_samples_outside_the_declared_bounds_are_clipped_and_reported():
    values = np.full((400, 2), 0.5)
    values[:7] = 3.0
    assert run(method_of("dp_fed_sgd"), federation_of(values)).clipped_samples == 7


def test_a_round_that_was_not_asked_for_gives_nothing():
    assert method_of("dp_fed_sgd").aggregate_train(1, []) == (None, None)


def test_the_log_holds_the_plan_the_guarantee_and_the_warnings(caplog):
    with caplog.at_level(logging.INFO, logger="userdp"):
        run(method_of("sample_clipped_sgd"), FEDERATION)
    assert "sample_clipped_sgd: 3 rounds of 400 of 400 users" in caplog.text
    assert "differential privacy for replacing one whole user" in caplog.text


def test_before_anything_is_run_nothing_is_promised():
    method = method_of("dp_fed_sgd")
    assert method.result.guarantee.sentence() == "no privacy guarantee: nothing was run"
    assert math.isinf(method.result.guarantee.epsilon)


@each_strategy
def test_pure_privacy_is_refused_by_strategies_that_cannot_promise_it(name):
    if STRATEGIES[name].about.pure:
        assert method_of(name, PROBLEM, delta=0.0).plan.guarantee.delta in (0, 1)
    else:
        with pytest.raises(BadInput, match="cannot promise pure privacy"):
            method_of(name, PROBLEM, delta=0.0)


@pytest.mark.parametrize("name", [name for name, kind in STRATEGIES.items() if "relation" in kind.model_fields])
def test_where_users_may_come_and_go_nobody_is_assumed_to_know_who_takes_part(name):
    drawn, seen = [{}], []
    if "sampling" in STRATEGIES[name].model_fields:
        drawn += [{"sampling": one} for one in (*SAMPLERS, "amplified")]
    for options in drawn:
        with contextlib.suppress(BadInput):  # some cohorts are priced for one of the relations
            promise = method_of(name, PROBLEM, relation="add_or_remove", **options).plan.guarantee
            assert promise.relation == "add_or_remove"
            assert not any(one.startswith(("n is public", "n and who")) for one in promise.assumptions)
            seen.append(options)
    assert seen


def test_a_saved_result_is_the_model_with_its_promise(tmp_path):
    result = run(method_of("dp_fed_sgd", PROBLEM), FEDERATION)
    result.save(tmp_path / "a new" / "folder")
    with np.load(tmp_path / "a new" / "folder" / "model.npz", allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["x"], final(result))
    promised = json.loads((tmp_path / "a new" / "folder" / "guarantee.json").read_text(encoding="utf-8"))
    assert promised == json.loads(json.dumps(result.guarantee.as_dict()))


@pytest.mark.parametrize("sampling", ["disjoint", "poisson", "fixed_size"])
def test_a_step_that_fails_was_charged_before_it_began(sampling, monkeypatch):
    """Everything that a step released before it failed, or leaves in a log, has been paid for."""
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, delta=1e-3, rounds=2, cohort=10, sampling=sampling)
    assert method.spent_epsilon == 0
    spent = []

    def failing(scheme, *given):
        spent.append(method.spent_epsilon)
        raise RunFailed("the step fails")

    monkeypatch.setattr(type(method.scheme), "take", failing)
    with pytest.raises(RunFailed, match="the step fails"):
        run(method, federation_of(np.zeros((20, 2))))
    assert spent == [method.spent_epsilon]
    assert spent[0] > 0


@pytest.mark.parametrize("excess", [1e-8, 1e-4])
def test_a_run_that_spends_a_hair_more_than_it_promises_is_refused(excess):
    plan = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 200, 4.0, 1e-5, rounds=2, clip_norm=1.0).plan
    plan.check_spent(plan.guarantee.epsilon)
    with pytest.raises(RunFailed):
        plan.check_spent(plan.guarantee.epsilon * (1 + excess))
