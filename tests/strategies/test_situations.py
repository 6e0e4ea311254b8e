"""Situations at the edge of what people meet: extreme budgets, far too many users, equal values, audits of chance."""

from itertools import product

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from helpers_flower import ClientGrid

from strategies import DropInAuto, DropInFedAvg
from strategies.auto.releases import Movement
from userdp.audit import guessed, one_run_lower_bound
from userdp.errors import RunFailed
from userdp.mechanisms import Grid, UserQuantile
from userdp.noise import SeededNoise


@pytest.mark.parametrize("epsilon", [1e-6, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-30, 1e-5])
def test_extreme_budgets_are_kept_to_and_calibrated_closely(epsilon, delta):
    plan = DropInFedAvg(users=1000, epsilon=epsilon, delta=delta, rounds=3).plan
    assert 0.9 * epsilon <= plan.guarantee.epsilon <= epsilon
    assert 0 < plan.numbers["noise_multiplier"] < np.inf


def test_of_400_audits_of_scores_that_tell_nothing_few_find_something():
    """At 95% one in twenty may exceed zero at most."""
    rng = np.random.default_rng(0)

    def bound():
        right = guessed(rng.normal(size=200), 100) == rng.choice([-1, 1], 200)
        return one_run_lower_bound(200, 100, int(right.sum()), 1e-5)

    assert sum(bound() > 0 for _ in range(400)) <= 20


@pytest.mark.parametrize("kind", [DropInFedAvg, DropInAuto])
def test_users_ten_times_as_many_as_there_are_end_a_run_before_anybody_is_asked(kind):
    strategy = kind(users=600, epsilon=1.0, delta=1e-4)
    with ClientGrid(ClientApp(), 60) as grid, pytest.raises(RunFailed, match="60 nodes were registered"):
        strategy.start(grid, ArrayRecord([np.zeros(4)]), roster_timeout=0)
    assert grid.sent == []
    assert strategy.inner.spent_epsilon == 0


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_quantile_of_a_million_equal_values_is_their_bin(relation, share):
    grid = Grid.even(np.arange(6.0))
    owner, values = np.arange(1_000_000), np.full(1_000_000, 3.0)
    chosen = UserQuantile(share, 1.0, relation).choose(owner, values, grid, SeededNoise(np.random.default_rng(0)))
    assert chosen == 3


def test_where_half_of_the_values_are_tied_the_quantiles_within_them_are_their_bin():
    values = np.concatenate([np.full(500, 2.0), np.linspace(0, 4.9, 500)])
    grid, owner = Grid.even(np.arange(6.0)), np.arange(1000)
    for share in (0.3, 0.5, 0.65):
        assert (
            UserQuantile(share, 1.0, "replace_one").choose(owner, values, grid, SeededNoise(np.random.default_rng(1)))
            == 2
        )


@pytest.mark.parametrize(("low", "high"), [(-1.0, 100.0), (-100.0, 1.0), (0.0, 5.0), (-5.0, 0.0)])
def test_a_range_that_is_longer_on_one_side_of_zero_is_priced_by_all_of_it(low, high):
    moved, ends = Movement.of_interval(low, high), (low, 0.0, high)
    assert moved.replaced == max(abs(one - other) for one, other in product(ends, repeat=2))
    assert moved.added == max(map(abs, ends))
