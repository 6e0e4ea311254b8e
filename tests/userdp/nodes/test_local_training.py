"""Local training: torch's optimisers step by step, epochs that use every sample once, and users who do not meet."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neural_cases import case, windows
from torch import nn

from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.nodes.local_training import OPTIMISERS, SCHEDULES, LocalTraining, local_update, trained
from userdp.problems import Logistic, Quadratic, TorchProblem

CURVED = np.array([[1.0, 0.3], [0.3, 0.2]])
SHIFT = np.array([[0.5, -1.0], [2.0, 0.1], [-0.3, 0.7]])
KINDS = ("momentum", "adam", "sgd")


def slope(model, user):
    """The slope of a quadratic with a minimum for each user, plus a third power so that no two steps are alike."""
    return (model - SHIFT[user]) @ CURVED + 0.1 * (model - SHIFT[user]) ** 3


def path(training, users=3):
    """Models of users with one sample each after local training on `slope`."""

    def gradients(models, own, weights):
        assert (own == 0).all()
        assert (weights == 1).all()
        return np.stack([slope(model, user) for user, model in enumerate(models)])

    return trained(np.ones((users, 2)), np.ones(users, dtype=np.int64), training, gradients)


def torch_path(user, steps, make, schedule=None):
    parameter = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimiser = make([parameter])
    following = schedule(optimiser) if schedule else None
    for _ in range(steps):
        parameter.grad = torch.tensor(slope(parameter.detach().numpy(), user))
        optimiser.step()
        if following:
            following.step()
    return parameter.detach().numpy()


# Optimisers -----------------------------------------------------------------------------------------------------------

THEIRS = {
    "sgd": ({}, lambda given: torch.optim.SGD(given, lr=0.1)),
    "momentum": ({"momentum": 0.8}, lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.8)),
    "adam": (
        {"momentum": 0.7, "second_moment": 0.95, "adaptivity": 1e-3},
        lambda given: torch.optim.Adam(given, lr=0.1, betas=(0.7, 0.95), eps=1e-3),
    ),
    "adam, decoupled decay": ({"weight_decay": 0.3}, lambda given: torch.optim.AdamW(given, lr=0.1, weight_decay=0.3)),
    # Of plain steps decay is the same whether it goes through the gradient or not.
    "sgd, decay": ({"weight_decay": 0.3}, lambda given: torch.optim.SGD(given, lr=0.1, weight_decay=0.3)),
}


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("name", THEIRS)
def test_every_step_is_that_of_torchs_optimiser(name, steps):
    numbers, make = THEIRS[name]
    training = LocalTraining.of(name.partition(",")[0], "constant", step_size=0.1, steps=steps, **numbers)
    found = path(training)
    for user in range(3):
        np.testing.assert_allclose(found[user], torch_path(user, steps, make), rtol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [("linear", lambda done: 1 - done), ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2)],
)
@pytest.mark.parametrize("optimiser", KINDS)
def test_schedules_fall_to_zero_over_a_users_own_steps(optimiser, schedule, factor):
    steps, (numbers, make) = 7, THEIRS[optimiser]
    training = LocalTraining.of(optimiser, schedule, step_size=0.1, steps=steps, **numbers)

    def theirs(optimiser):
        return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: factor(step / steps))

    for user, row in enumerate(path(training)):
        np.testing.assert_allclose(row, torch_path(user, steps, make, theirs), rtol=1e-12)
    rates = [training.rates(step, np.array([3, 7, 1])) for step in range(8)]
    for step, row in enumerate(rates):
        expected = [0.1 * factor(step / own) if step < own else 0.0 for own in (3, 7, 1)]
        np.testing.assert_allclose(row, expected, atol=1e-15)


def test_the_pull_back_is_that_of_fedprox():
    start, mu = np.ones(2), 0.7
    found = path(LocalTraining(step_size=0.1, steps=5, proximal=mu))
    for user in range(3):
        model = start
        for _ in range(5):
            model = model - 0.1 * (slope(model, user) + mu * (model - start))
        np.testing.assert_allclose(found[user], model, rtol=1e-13)
    free = path(LocalTraining(step_size=0.1, steps=5))
    assert (np.linalg.norm(found - 1, axis=1) < np.linalg.norm(free - 1, axis=1)).all()


# Minibatches ----------------------------------------------------------------------------------------------------------

sizes_of_users = st.lists(st.integers(1, 30), min_size=1, max_size=6).map(np.array)


@settings(max_examples=60)
@given(sizes_of_users, st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**53 - 1))
def test_an_epoch_uses_every_sample_once(sizes, batch, epochs, key):
    training = LocalTraining(step_size=0.1, epochs=epochs, batch_size=batch, key=key)
    steps = training.steps_of(sizes)
    np.testing.assert_array_equal(steps, epochs * -(-sizes // batch))
    used = [[] for _ in sizes]
    for step in range(steps.max()):
        own, weights = training.batch(step, sizes)
        assert weights.shape[1] <= batch
        np.testing.assert_allclose(weights.sum(axis=1), 1.0)
        assert ((own >= 0) & (own < sizes[:, None])).all()
        for user in np.flatnonzero(step < steps):
            there = own[user][weights[user] > 0]
            np.testing.assert_allclose(weights[user][weights[user] > 0], 1 / len(there))
            used[user] += there.tolist()
    for size, found in zip(sizes, used, strict=True):
        for epoch in range(epochs):
            assert sorted(found[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_epochs_have_orders_of_their_own_and_so_have_keys():
    sizes = np.array([200])
    orders = [
        LocalTraining(step_size=0.1, epochs=2, batch_size=200, key=key).batch(step, sizes)[0][0].tolist()
        for key, step in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(200)) for order in orders)


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(0, 1000))
def test_the_place_of_a_sample_follows_from_its_own_mark(size, key):
    """However many samples come after it, and whoever else is computed."""
    training = LocalTraining(step_size=0.1, batch_size=1, key=key)
    first = [training.batch(step, np.array([size, 1]))[0][0, 0] for step in range(size)]
    longer = [training.batch(step, np.array([size + 5, 3]))[0][0, 0] for step in range(size + 5)]
    assert [place for place in longer if place < size] == first


def labelled(sizes, columns, seed):
    """Users of these sizes, their samples of two classes."""
    rng, offsets = np.random.default_rng(seed), np.concatenate([[0], np.cumsum(sizes)])
    features, classes = rng.normal(size=(sizes.sum(), columns)), rng.integers(0, 2, sizes.sum())
    return Block(features.astype(np.float32), offsets, classes.astype(np.float32))


def assert_alone_as_together(problem, x, block, numbers, **tolerance):
    alone = [local_update(problem, x, block.part(user, user + 1), **numbers)[0] for user in range(block.users)]
    np.testing.assert_allclose(local_update(problem, x, block, **numbers), alone, **tolerance)


@settings(max_examples=40)
@given(
    sizes_of_users, st.integers(0, 12), st.sampled_from(KINDS), st.sampled_from(SCHEDULES), st.integers(0, 5), st.data()
)
def test_users_computed_together_or_alone_give_the_same(sizes, batch, optimiser, schedule, key, data):
    block = labelled(sizes, 2, data.draw(st.integers(0, 2**31)))
    problem = Logistic(2, 10.0, 0.5, intercept=True)
    numbers = LocalTraining.of(
        optimiser, schedule, step_size=0.4, epochs=2, batch_size=batch, key=key, weight_decay=0.1, proximal=0.2
    ).parameters()
    assert_alone_as_together(problem, np.array([0.1, -0.3, 0.2]), block, numbers, rtol=1e-9, atol=1e-12)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 4), st.sampled_from(KINDS))
def test_users_of_a_sequence_module_computed_together_or_alone_give_the_same(sizes, batch, optimiser):
    problem, block = READER, windows(sizes=sizes)
    numbers = LocalTraining.of(optimiser, "cosine", step_size=0.05, epochs=2, batch_size=batch, key=3).parameters()
    assert_alone_as_together(problem, problem.initial(), block, numbers, rtol=1e-6, atol=1e-9)


READER, _ = case("gru", execution="grouped")


def test_a_plain_loop_of_one_user_gives_the_same():
    problem, block = case("perceptron", execution="grouped")
    training = LocalTraining.of("adam", "linear", step_size=0.03, epochs=3, batch_size=2, key=11)
    x = problem.initial()
    found = problem.local_updates(x, block, training)
    for user in range(block.users):
        own = block.part(user, user + 1)
        size = np.array([own.samples])
        model, first, second, steps = x, np.zeros_like(x), np.zeros_like(x), 3 * -(-own.samples // 2)
        for step in range(steps):
            places, weights = training.batch(step, size)
            drawn = places[0][weights[0] > 0]
            part = own.gathered(drawn, np.array([0, len(drawn)]))
            gradient = problem.user_gradients(model, part)[0]
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            root = np.sqrt(second / (1 - 0.999 ** (step + 1)))
            model = model - 0.03 * (1 - step / steps) * first / (1 - 0.9 ** (step + 1)) / (root + 1e-8)
        np.testing.assert_allclose(found[user], model - x, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("batch", [0, 1, 3, 100])
@pytest.mark.parametrize("optimiser", KINDS)
def test_arrays_and_modules_with_the_same_loss_agree(batch, optimiser):
    block = labelled(np.array([4, 1, 9, 2]), 3, seed=2)
    logistic = Logistic(3, 50.0, 1e6, intercept=True)
    module = TorchProblem(lambda: nn.Linear(3, 1), "bce_with_logits", 3, precision="double", execution="grouped")
    numbers = LocalTraining.of(optimiser, "constant", step_size=0.1, epochs=4, batch_size=batch, key=5).parameters()
    x = np.array([0.3, -0.2, 0.1, 0.05])
    np.testing.assert_allclose(
        local_update(logistic, x, block, **numbers), local_update(module, x, block, **numbers), rtol=1e-7, atol=1e-10
    )


# What others do -------------------------------------------------------------------------------------------------------


class Exploding(Quadratic):
    """Its gradient is not finite at models that have gone as far as two steps go."""

    def user_gradients_at(self, models, block):
        rows = np.ones_like(models)
        rows[models[:, 0] < -1.5] = np.inf
        return rows

    def user_gradients(self, x, block):
        return np.ones((block.users, len(x)))


def test_who_is_done_is_left_alone_however_long_others_go_on():
    """Else the number of somebody's samples would decide whether another's update is finite."""
    problem, x = Exploding(1, 100.0, 100.0), np.zeros(1)
    numbers = {"step_size": 1.0, "batch_size": 1.0}
    block = Block(np.zeros((5, 1), dtype=np.float32), np.array([0, 2, 5]))
    alone = local_update(problem, x, block.part(0, 1), **numbers)
    together = local_update(problem, x, block, **numbers)
    assert alone.tolist() == [[-2.0]]
    assert together[0].tolist() == [-2.0]
    assert together[1].tolist() == [-100.0]


def test_full_gradient_steps_are_projected_steps_bit_for_bit():
    rng = np.random.default_rng(4)
    block = Block(rng.normal(size=(12, 2)).astype(np.float32), np.array([0, 3, 4, 12]))
    problem, x = Quadratic(2, 5.0, 0.4), np.array([0.3, -0.4])
    models = np.broadcast_to(x, (3, 2))
    for step in range(4):
        gradients = problem.user_gradients(x, block) if step == 0 else problem.user_gradients_at(models, block)
        models = problem.domain.project(models - 0.3 * gradients)
    np.testing.assert_array_equal(local_update(problem, x, block, step_size=0.3, steps=4.0), models - x)
    assert (np.abs(models) == 0.4).any()  # some step left the domain


# Messages and refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_message_holds_numbers_that_read_back_as_the_same(optimiser, schedule):
    training = LocalTraining.of(
        optimiser, schedule, step_size=0.1, epochs=2, batch_size=7, momentum=0.3, proximal=0.1, key=9
    )
    said = training.parameters()
    assert LocalTraining(**{name: float(value) for name, value in said.items()}) == training
    assert LocalTraining(step_size=0.1, steps=3).parameters() == {"step_size": 0.1, "steps": 3}


WHOLE, POSITIVE, FINITE, SHARE = (
    *("must be a whole number, zero or more", "must be positive and finite"),
    *("must be finite, zero or more", r"must lie in \[0, 1\)"),
)
BAD = {
    "step_size": (POSITIVE, 0.0, math.inf, math.nan),
    "adaptivity": (POSITIVE, 0.0),
    **dict.fromkeys(("steps", "epochs", "batch_size", "key"), (WHOLE, -1.0, 1.5, math.nan, 2.0**53)),
    **dict.fromkeys(("weight_decay", "proximal"), (FINITE, -1.0, math.inf)),
    **dict.fromkeys(("momentum", "second_moment"), (SHARE, -0.1, 1.0)),
}
UNKNOWN = [({"optimiser": 3.0}, "knows .*'sgd', 'momentum', 'adam'"), ({"schedule": 3.0}, "knows .*'cosine'")]
OUT = [({name: value}, f"{name} = {value}: {told}") for name, (told, *values) in BAD.items() for value in values]


@pytest.mark.parametrize(("numbers", "told"), [*OUT, *UNKNOWN, ({"epochs": 0.0}, "needs steps or epochs")])
def test_numbers_out_of_range_are_refused(numbers, told):
    with pytest.raises(BadInput, match=told):
        LocalTraining(**{"step_size": 0.1} | numbers)
