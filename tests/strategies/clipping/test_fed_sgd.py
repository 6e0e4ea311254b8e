"""The sensitivity of a round of the clipping family, the clipped mean with noise, and training without privacy."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord
from helpers import WILD, Wild, federation_of, final, gathered, local_grid, make, run, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import (
    DPFTRL,
    AdaptiveClipping,
    DPFedAvg,
    DPFedSGD,
    LocalDP,
    NonPrivate,
    ProjectedSGD,
    RecentredClipping,
)
from strategies.wire.replies import Gathered
from userdp.data import Gaussian, SyntheticFederation
from userdp.mechanisms import LaplaceMechanism
from userdp.problems import Quadratic
from userdp.randomness import stream

codes = st.integers(0, len(WILD) - 1)


def population(users=60, d=3, m=4, seed=1):
    return SyntheticFederation(Gaussian(dimension=d), users=users, seed=seed, samples_per_user=m)


# --- Formal guarantees: what one user moves --------------------------------------------------------------------------


class WildTrainer(Wild):
    """`Wild` users whose steps go where the mean of a batch's samples says, whatever the model."""

    def user_gradients(self, x, block):
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.add.reduceat(WILD[block.features.astype(np.int64)], block.offsets[:-1])
        return rows / block.sizes[:, None]

    def user_gradients_at(self, models, block):
        return self.user_gradients(models[0], block)


def share(method, change):
    """The change of a round's releases for a change of its sums, over what their noise is made for: at most one."""
    scheme, memory, moved = method.scheme, method.memory, change / method.scheme.sampler.expected_batch
    if isinstance(method.recipe, RecentredClipping):
        parts = (
            (scheme.gradient_mechanism(memory.radius, 1.0), moved[:-1]),
            (scheme.distance_mechanism(1.0), moved[-1:]),
        )
        return max(np.linalg.norm(part) / mechanism.l2_sensitivity for mechanism, part in parts)
    if isinstance(method.recipe, AdaptiveClipping):  # sum and count are one Gaussian mechanism
        noise = np.full(len(moved), scheme.mechanism(memory.clip).standard_deviation)
        noise[-1] = scheme.count_mechanism.standard_deviation
        return np.linalg.norm(moved / noise) * method.plan.numbers["noise_multiplier"]
    if isinstance(scheme.mechanism, LaplaceMechanism):
        return np.abs(moved).sum() / scheme.mechanism.sensitivity
    return np.linalg.norm(moved) / scheme.mechanism.l2_sensitivity


FAMILY = {
    **{
        f"{kind.about.name}, {sampling}": (kind, {"sampling": sampling, "cohort": 3, "rounds": 2})
        for kind in (DPFedSGD, DPFedAvg)
        for sampling in ("disjoint", "cyclic", "fixed_size")
    },
    "adaptive_clipping": (AdaptiveClipping, {}),
    "projected_sgd": (ProjectedSGD, {"sparsity": 2}),
    "projected_sgd, pure": (ProjectedSGD, {"sparsity": 2, "delta": 0.0}),
    "recentred_clipping": (RecentredClipping, {}),
    "recentred_clipping, training": (RecentredClipping, {"local_epochs": 2, "local_rate": 0.5}),
}


@pytest.mark.parametrize("name", FAMILY)
@settings(max_examples=50)
@given(
    arrays(np.int64, (5, 3), elements=codes),
    arrays(np.int64, (3,), elements=codes),
    st.integers(0, 4),
    arrays(np.float64, 3, elements=st.floats(-3, 3)),
    st.floats(1e-3, 10),
)
def test_replacing_one_user_moves_a_round_by_at_most_its_stated_sensitivity(name, users, other, who, centre, radius):
    kind, options = FAMILY[name]
    method = make(kind, WildTrainer(3), 5, clip_norm=0.7, **{"delta": 1e-3} | options)
    if kind is RecentredClipping:  # as if earlier releases had led there
        method.memory.point, method.memory.radius = centre, radius
    neighbour = users.copy()
    neighbour[who] = other
    one, two = (
        gathered(method, federation_of(data), 0, np.array([0.1, -0.2, 5.0])).values for data in (users, neighbour)
    )
    assert share(method, one - two) <= 1 + 1e-9
    assert method.scheme.sampler.expected_batch == options.get("cohort", 5)
    if kind in (DPFedSGD, DPFedAvg, ProjectedSGD):
        assert np.linalg.norm(one - two) <= 2 * 0.7 * (1 + 1e-12)


def test_a_round_by_hand():
    problem, federation = Quadratic(3, 5.0, 2.0), population()
    method = make(DPFedSGD, problem, 60, seed=9, clip_norm=0.5, rounds=1, cohort=20, learning_rate=0.25)
    result = run(method, federation)
    cohort = method.scheme.sampler.cohort(0)
    rows = problem.user_gradients(np.zeros(3), problem.bound(federation.block(cohort))[0])
    rows *= np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True))
    noise = stream(9, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=3)
    np.testing.assert_allclose(final(result), -0.25 * (rows.mean(axis=0) + noise), rtol=1e-9)
    assert final(result).dtype == np.float64


# --- Faults of other libraries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 10, 19])
def test_flower_too_few_replies_leave_divisor_and_noise_as_planned(missing):
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, rounds=1, clip_norm=1.0, learning_rate=1.0, delta=1e-3)
    answered = np.array([1.0, 0.0]) * (20 - missing)
    x = taken(method, 0, np.zeros(2), Gathered(answered, missing, 0)).following
    noise = stream(0, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=2)
    np.testing.assert_allclose(-x, np.clip(answered / 20 + noise, -2, 2))
    assert method.scheme.mechanism.standard_deviation == pytest.approx(method.plan.numbers["noise_multiplier"] * 2 / 20)


def test_no_node_is_asked_to_evaluate_on_its_users():
    """The answers of users to an evaluation would be covered by no guarantee."""
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 20, rounds=1, delta=1e-3)
    with local_grid(method.problem, federation_of(np.zeros((20, 2)))) as grid:
        method.start(grid)
        assert list(method.configure_evaluate(1, method.result.arrays, ConfigRecord(), grid)) == []
    assert method.aggregate_evaluate(1, []) is None


@pytest.mark.parametrize(
    ("kind", "dimension"), [(DPFedSGD, 500), (DPFTRL, 500), (RecentredClipping, 500), (LocalDP, 50)]
)
def test_noise_that_drowns_the_clip_is_a_warning(kind, dimension, caplog):
    method = make(kind, Quadratic(dimension, 1.0, 1.0), 50, epsilon=0.1, delta=1e-4)
    assert method.plan.drowned
    with caplog.at_level(logging.INFO, logger="userdp"):
        method.summary()
    assert method.plan.warnings[0] in caplog.text
    assert "Doing nothing " in method.plan.warnings[0]


# --- No privacy at all -------------------------------------------------------------------------------------------


def test_non_private_divides_by_those_who_answered():
    method = make(NonPrivate, Quadratic(1, 1.0, 5.0), 10, learning_rate=1.0)
    released = taken(method, 0, np.zeros(1), Gathered(np.array([-8.0]), 2, 0)).released
    assert released == pytest.approx([1.0])
