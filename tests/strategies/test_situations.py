"""Situations at the edge of what people meet: extreme budgets, far too many users, equal values, audits of chance."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from examples import changed
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from helpers_flower import ClientGrid

from simulations.config.run_config import parse_config
from simulations.runs.run import run
from strategies import DropInAuto, DropInFedAvg
from strategies.auto.releases import Movement
from userdp.audit import guessed, one_run_lower_bound
from userdp.errors import RunFailed
from userdp.mechanisms import Grid, UserQuantile
from userdp.nodes.node import Node
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


FOUR_OF_45 = {
    "disjoint": {"cohort": 10},  # epochs of four rounds and five people left over; four left over of 44
    "cyclic": {"cohort": 9},  # five batches of 45 people, and four of 44
    "fixed_size": {"cohort": 10},
    "poisson": {"cohort": 10},  # at a rate of 10 / 45
    "allocation": {"participations": 2},  # 22.5 people a round on average, which is rounded, and 22 of 44
}
"""Cohorts of 45 people in four rounds that would be others for 44."""
CHANGES = [(name, "replace_one") for name in FOUR_OF_45]
CHANGES += [(name, "add_or_remove") for name in ("poisson", "allocation")]


@pytest.mark.parametrize(("sampling", "relation"), CHANGES)
def test_no_cohort_and_no_divisor_is_rounded_by_whether_a_person_is_there(sampling, relation, tmp_path, monkeypatch):
    """Under add-or-remove the person is in the table or not; under replace-one no cell of theirs is usable."""
    drawn = np.random.default_rng(0).uniform(0, 1, (2, 90))
    people = pd.DataFrame({"who": [f"person {number:02}" for number in range(45)] * 2, "x": drawn[0], "y": drawn[1]})
    there = people["who"] != "person 07"
    without = people[there] if relation == "add_or_remove" else people.assign(**people[["x", "y"]].where(there))
    strategy = {"kind": "dp_fed_sgd", "rounds": 4, "clip_norm": 1.0, "sampling": sampling, "relation": relation}
    columns = {"user": "who", "features": ["x"], "ranges": {"x": [0.0, 1.0]}, "target": "y", "all_users": 45}
    asked, compute = [], Node.compute
    monkeypatch.setattr(
        Node, "compute", lambda node, x, users, how: asked.append(len(users)) or compute(node, x, users, how)
    )
    plans, facts, counts = [], [], []
    for name, table in (("with", people), ("without", without)):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        data = {"kind": "table", "path": str(tmp_path / f"{name}.csv"), "test_fraction": 0.0, **columns}
        raw = changed(data=data, strategy=strategy | FOUR_OF_45[sampling], privacy={"epsilon": 8.0, "delta": 1e-3})
        raw |= {"problem": {"kind": "squared", "target_range": [0.0, 1.0]}, "preparation": "none"}
        raw |= {"engine": {"users_per_node": 45}}
        directory = run(parse_config(raw), directory=tmp_path / name, report=False).directory
        plans.append((directory / "plan.json").read_bytes())
        facts.append(pd.read_parquet(directory / "rounds.parquet", columns=["spent_epsilon", "fact.noise_deviation"]))
        counts.append(np.array(asked))
        asked.clear()
    assert plans[0] == plans[1]
    pd.testing.assert_frame_equal(*facts)
    missing = counts[0] - counts[1]
    assert set(missing) <= ({0} if relation == "replace_one" else {0, 1})
    assert missing.any() == (relation == "add_or_remove")
