"""Local privacy: noise that each user adds, its budget, and its behaviour."""

import numpy as np
import pytest
from flwr.app import Message, MessageType
from helpers import Wild, federation_of, final, gathered, make, run

from strategies import LocalDPSGD
from strategies.protocol import model_record, read_request, train_content
from userdp.accounting import Cost, epsilon_of
from userdp.computations import Computation, LocalNoise
from userdp.data import Gaussian, SyntheticFederation
from userdp.node import Node
from userdp.problems import Quadratic


def rows_of(method, federation, index=0):
    """What each user sends."""
    node = Node(method.problem, federation, np.arange(federation.users))
    asked = method._ask(index)
    single = Computation(clip_norm=asked.computation.clip_norm, noise=asked.computation.noise)
    return node.compute(method.problem.initial(), asked.users, single).values


def test_a_users_data_move_what_it_sends_by_at_most_the_sensitivity_its_noise_is_for():
    method = make(LocalDPSGD, Wild(2), 6, delta=1e-3, clip_norm=0.7)
    rng = np.random.default_rng(0)
    most = 0.0
    for _ in range(200):
        data = rng.integers(0, 10, (6, 2))
        neighbour = data.copy()
        neighbour[2] = rng.integers(0, 10, 2)
        moved = rows_of(method, federation_of(data)) - rows_of(method, federation_of(neighbour))
        np.testing.assert_array_equal(np.delete(moved, 2, axis=0), 0.0)
        most = max(most, float(np.linalg.norm(moved[2])))
    assert 1.3 < most <= 1.4 * (1 + 1e-9)
    assert method._deviation == pytest.approx(1.4 * method._multiplier)


@pytest.mark.parametrize(("rounds", "cohort", "takes_part"), [(1, None, 1), (4, None, 4), (4, 50, 2)])
def test_the_rounds_of_a_user_spend_the_budget(rounds, cohort, takes_part):
    method = make(LocalDPSGD, Quadratic(2, 1.0, 1.0), 100, delta=1e-4, rounds=rounds, cohort=cohort)
    epsilon = epsilon_of(Cost(noise_multiplier=method._multiplier), takes_part, 1e-4)
    assert 0.999 < epsilon <= 1 + 1e-9
    assert method.plan.guarantee.epsilon == epsilon
    assert "the server included" in method.plan.guarantee.sentence()


def test_every_user_adds_independent_noise_of_the_stated_size():
    method = make(LocalDPSGD, Quadratic(50, 1.0, 1.0), 400, delta=1e-4, rounds=2)
    federation = federation_of(np.zeros((400, 50)))
    first, second = (rows_of(method, federation, index) / method._deviation for index in (0, 1))
    assert first.std() == pytest.approx(1.0, abs=0.02)  # 20,000 normals: four standard errors
    for other in (second, np.roll(first, 1, axis=0), np.roll(first, 1, axis=1)):
        assert abs(np.mean(first * other)) < 4 / np.sqrt(first.size)


def test_a_users_noise_does_not_depend_on_its_node():
    problem, federation = Quadratic(3, 1.0, 1.0), federation_of(np.random.default_rng(0).random((30, 3)))
    method = make(LocalDPSGD, problem, 30, delta=1e-3)
    results = [final(run(method, federation, users_per_node=size)) for size in (None,)]
    again = final(run(make(LocalDPSGD, problem, 30, delta=1e-3), federation, users_per_node=7))
    np.testing.assert_allclose(results[0], again, rtol=1e-9)
    assert not np.allclose(again, final(run(make(LocalDPSGD, problem, 30, delta=1e-3, seed=1), federation)))


def test_the_noise_travels_in_the_message():
    noise = LocalNoise(2.5, 2**40, 3)
    content = train_content(model_record(np.zeros(2)), np.arange(2), Computation(clip_norm=1.0, noise=noise))
    assert read_request(Message(content, 1, MessageType.TRAIN))[1].noise == noise


def test_it_beats_the_initial_model_when_there_are_users_enough():
    federation = SyntheticFederation(Gaussian(dimension=2, mean=1.0), users=20000, seed=2, samples_per_user=10)
    problem = Quadratic(2, 9.0, 9.0)
    method = make(LocalDPSGD, problem, 20000, clip_norm=2.0)
    assert gathered(method, federation, 0, np.zeros(2)).values.shape == (2,)
    assert problem.excess_risk(final(run(method, federation)), federation) < 0.1


def test_noise_that_drowns_the_clip_is_a_warning():
    method = make(LocalDPSGD, Quadratic(50, 1.0, 1.0), 50, delta=1e-3)
    assert method.plan.drowned
    assert "trust the server" in method.plan.warnings[0]
