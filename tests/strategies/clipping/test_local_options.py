"""Users who train in minibatches and by optimisers: a whole round's sensitivity, an audit, orders, and refusals."""

import numpy as np
import pytest
from examples import changed
from helpers import WILD, federation_of, final, gathered, make, requested, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from neural_cases import LEVELS, STEPS, case, windows
from test_fed_sgd import WildTrainer, share

from simulations.config.run_config import parse_config
from simulations.runs.build import make_plan
from strategies import AdaptiveClipping, DPFedAvg, DropInAdaptiveClipping, DropInFedAvg
from userdp.data import Block, ColumnarFederation
from userdp.errors import BadInput
from userdp.problems import Linear, Logistic

CLIP = 0.7
WAYS = {
    "minibatches": {"local_epochs": 2, "local_batch": 2},
    "momentum": {"local_epochs": 1, "local_batch": 1, "local_optimiser": "momentum", "local_rate": 0.3},
    "adam": {"local_epochs": 2, "local_batch": 3, "local_optimiser": "adam", "local_schedule": "cosine"},
    "decay": {"local_steps": 3, "local_batch": 2, "local_weight_decay": 0.5, "proximal": 0.3, "local_rate": 0.5},
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
STRATEGIES = (DPFedAvg, AdaptiveClipping)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
codes = st.integers(0, len(WILD) - 1)
samples = st.lists(st.tuples(codes, codes, codes), min_size=1, max_size=5)


def moved(method, federations, x):
    """The distance between two rounds' releases, in units of what the noise is calibrated to."""
    one, other = (gathered(method, federation, 0, x).values for federation in federations)
    return share(method, one - other)


# Formal guarantees: what one user moves ------------------------------------------------------------------------------


@each_strategy
@each_way
@settings(max_examples=25)
@given(st.lists(samples, min_size=5, max_size=5), samples, st.integers(0, 4))
def test_replacing_one_user_moves_a_round_by_at_most_its_sensitivity(strategy, way, users, other, who):
    """Whatever the user's samples are, and however many."""
    method = make(strategy, WildTrainer(3), 5, delta=1e-3, clip_norm=CLIP, rounds=2, **way)
    neighbour = [*users[:who], other, *users[who + 1 :]]
    both = [
        federation_of(np.concatenate([np.array(own) for own in data]), [len(own) for own in data])
        for data in (users, neighbour)
    ]
    assert moved(method, both, np.array([0.1, -0.2, 5.0])) <= 1 + 1e-9


PROBLEM, _ = case("gru", execution="grouped")


@pytest.mark.sweep(1)
@each_strategy
@pytest.mark.parametrize("way", [WAYS["adam"], WAYS["minibatches"]], ids=["adam", "minibatches"])
@settings(max_examples=12)
@given(st.integers(1, 4), st.integers(0, 3), st.data())
def test_replacing_one_user_of_a_sequence_module_moves_a_round_by_at_most_its_sensitivity(
    strategy, way, size, who, data
):
    sizes = np.array([2, 3, 1, 2])
    cells = arrays(np.int32, (size, STEPS), elements=st.integers(-2, LEVELS))
    other, block = data.draw(cells), windows(sizes=sizes)
    features = np.concatenate([block.features[: block.offsets[who]], other, block.features[block.offsets[who + 1] :]])
    offsets = np.concatenate([[0], np.cumsum(np.where(np.arange(4) == who, size, sizes))])
    method = make(strategy, PROBLEM, 4, delta=1e-3, clip_norm=0.05, rounds=1, **way)
    federations = [ColumnarFederation(block), ColumnarFederation(Block(features, offsets))]
    assert moved(method, federations, PROBLEM.initial()) <= 1 + 1e-5


@each_strategy
def test_that_sensitivity_is_attained_by_users_who_train_opposite_ways(strategy):
    method = make(strategy, Linear(1, 1000.0, radius=1e6), 4, delta=1e-3, clip_norm=CLIP, **WAYS["minibatches"])
    both = [federation_of(np.array([[side] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3])[..., None]) for side in (9.0, -9.0)]
    expected = 1.0 if strategy is DPFedAvg else method.plan.numbers["noise_multiplier"] / method.scheme.sum_multiplier
    assert moved(method, both, np.zeros(1)) == pytest.approx(expected, rel=1e-9)


# The order of samples -------------------------------------------------------------------------------------------------


def population():
    rng = np.random.default_rng(0)
    return federation_of(rng.normal(size=(30, 6, 2)), targets=rng.integers(0, 2, 180))


@each_strategy
def test_every_round_and_seed_has_an_order_of_its_own(strategy):
    problem = Logistic(2, 5.0, 5.0)

    def key(index, **options):
        return requested(make(strategy, problem, 30, delta=1e-3, **options), index).computation.parameters.get("key")

    batches = {"local_epochs": 1, "local_batch": 2}
    keys = [key(0, **batches), key(1, **batches), key(0, seed=1, **batches)]
    assert len(set(keys)) == 3
    assert keys[0] == key(0, **batches)
    assert all(0 < each < 2**53 and each == int(each) for each in keys)
    assert key(0, local_steps=2) is None


@each_strategy
@each_way
def test_the_order_does_not_depend_on_who_is_on_which_node(strategy, way):
    problem, federation = Logistic(2, 5.0, 5.0), population()
    models = [
        final(run(make(strategy, problem, 30, delta=1e-3, rounds=3, **way), federation, users_per_node))
        for users_per_node in (None, 1, 7)
    ]
    for model in models[1:]:
        np.testing.assert_allclose(model, models[0], rtol=1e-9, atol=1e-12)


def test_minibatches_are_not_full_gradients():
    problem, federation = Logistic(2, 5.0, 5.0), population()
    found = [
        final(run(make(DPFedAvg, problem, 30, 1000.0, 1e-3, rounds=2, local_steps=3, **more), federation))
        for more in ({}, {"local_batch": 2}, {"local_batch": 6})
    ]
    assert np.abs(found[1] - found[0]).max() > 1e-4
    np.testing.assert_allclose(found[2], found[0], rtol=1e-9)


@each_strategy
@each_way
def test_training_costs_no_privacy(strategy, way):
    problem = Logistic(2, 5.0, 5.0)
    guarantees = [make(strategy, problem, 30, delta=1e-3, **options).plan.guarantee for options in (way, {})]
    assert guarantees[0] == guarantees[1]


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dp_fed_avg", "adaptive_clipping"])
def test_epochs_can_be_asked_for_in_a_file_and_in_the_file_that_a_run_writes(kind):
    config = parse_config(changed(strategy={"kind": kind, "rounds": 2, **WAYS["adam"]}))
    plan = make_plan(config)
    assert make_plan(parse_config(config.model_dump(exclude_none=True))).numbers == plan.numbers
    if kind == "dp_fed_avg":
        assert (plan.numbers["local_epochs"], plan.numbers["local_rate"]) == (2, 0.01)


@pytest.mark.parametrize("strategy", [DropInFedAvg, DropInAdaptiveClipping])
@pytest.mark.parametrize("name", ["local_epochs", "local_batch", "local_optimiser", "local_schedule", "proximal"])
def test_ordinary_clients_train_as_they_like(strategy, name):
    with pytest.raises(BadInput, match=rf"strategy\.{name} is for the clients to choose"):
        strategy(users=12, epsilon=8.0, delta=0.001, **{name: 1})
