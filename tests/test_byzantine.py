"""Hostile users of research/byzantine.py do what they are said to do, within the clip."""

import numpy as np
import pytest
from helpers import federation_of

from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, 5)) + 1.0


@pytest.fixture(scope="module")
def byzantine(module_of):
    return module_of("byzantine")


@pytest.mark.parametrize("attack", ["sign_flip", "large_norm", "alie", "inner_product", "collude"])
@pytest.mark.parametrize("reduce", ["rows", "sum"])
def test_a_hostile_node_clips_what_its_users_say(byzantine, attack, reduce):
    node = Node(Quadratic(5, 9.0, 9.0), federation_of(ROWS), np.arange(40))
    asked = Computation(reduce=reduce, clip_norm=0.5)
    values = byzantine.HostileNode(node, attack, 0.2, 0).compute(np.zeros(5), np.arange(40), asked).values
    honest = node.compute(np.zeros(5), np.arange(40), asked).values
    assert values.shape == honest.shape
    assert not np.allclose(values, honest)
    most = 0.5 if reduce == "rows" else 20.0
    assert np.linalg.norm(values, axis=1).max() <= most * (1 + 1e-9)


def test_what_each_attack_says(byzantine):
    mean, spread = ROWS.mean(axis=0), ROWS.std(axis=0)
    said = {name: attack(ROWS, 0.5, 0.2, np.random.default_rng(1)) for name, attack in byzantine.ATTACKS.items()}
    np.testing.assert_array_equal(said["sign_flip"], -ROWS)
    assert np.linalg.norm(said["large_norm"], axis=1).min() > 1e5
    # Three in eight honest users are needed for a majority of five in ten: those 0.32 deviations off, and more.
    np.testing.assert_allclose(said["alie"], np.tile(mean - 0.31864 * spread, (40, 1)), atol=1e-4)
    np.testing.assert_allclose(0.8 * mean + 0.2 * said["inner_product"].mean(axis=0), -0.8 * mean)
    np.testing.assert_allclose(said["collude"], np.tile(-0.5 * mean / np.linalg.norm(mean), (40, 1)))


def test_where_nothing_is_clipped_colluders_are_as_long_as_anybody(byzantine):
    said = byzantine.collude(ROWS, np.inf, 0.2, RNG)
    np.testing.assert_allclose(np.linalg.norm(said, axis=1), np.linalg.norm(ROWS, axis=1).max())


@pytest.mark.slow
def test_a_cell_measured_anew_is_the_one_in_the_table(byzantine):
    table = byzantine.measured()
    one = table[(table["strategy"] == "dp_fed_sgd") & (table["attack"] == "collude") & (table["seed"] == 0)].iloc[0]
    again = byzantine.cell(one["task"], one["strategy"], one["attack"], one["hostile"], 0)
    assert again["way"] == pytest.approx(one["way"], rel=1e-2, abs=1e-3)
    assert again["guarantee"] == one["guarantee"]
