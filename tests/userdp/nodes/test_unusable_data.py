"""A sample that cannot be used leaves its person's row, and nothing else; a person without another one is zero."""

import gc
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import PATIENCE, federation_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_cases import CASES, Case
from row_cases import QUERIED, QUESTIONS, asked_of
from scipy.sparse import csr_array
from torch import nn
from typer.testing import CliRunner

from simulations.cli import app
from userdp.arrays.sparse_rows import dense
from userdp.data import Block, ColumnarFederation
from userdp.nodes.computations import Computation
from userdp.nodes.functions import INSTALLED, ROW_FUNCTIONS
from userdp.nodes.node import Node
from userdp.nodes.partition import Partition
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Logistic, Quadratic, TorchProblem
from userdp.problems.bounds import set_aside
from userdp.sampling.coins import SampleCoins

SIZES = [3, 2, 4, 1, 3]
MARKED = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0], dtype=bool)
"""One of two samples of user 1, and the only sample of user 3."""
PARAMETERS = {
    "clipped_sample_sum": {"sample_clip_norm": 0.5},
    "truncated_sample_sum": {"scale": 1.0, "inverse_variance": 4.0},
    "truncated_user_gradient": {"scale": 1.0, "inverse_variance": 4.0},
    "truncated_data_gradient": {"level": 1.0, "bound": 1.0},
    "truncated_data_sum": {"level": 1.0, "bound": 1.0},
    "local_update": {"steps": 2, "step_size": 0.1},
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_computation = pytest.mark.parametrize("name", ["user_gradient", "sample_sum", *PARAMETERS])


def answer(case: Case, block: Block, computation: Computation):
    return rows_of(case.problem, case.model(), block, computation)


@pytest.mark.sweep(3)
@every_case
@every_computation
def test_a_sample_that_cannot_be_used_leaves_its_users_row_for_every_loss(case: Case, name):
    block = case.block(SIZES)
    computation = Computation(name, parameters=PARAMETERS.get(name, {}))
    whole, none = answer(case, block, computation)
    rows, counted = answer(case, set_aside(block, MARKED), computation)
    assert isinstance(rows, csr_array) == isinstance(whole, csr_array)
    assert (none, counted) == (0, 0 if computation.function.sums_samples else 1)
    left = block.gathered(~MARKED, np.array([0, 3, 4, 8, 11]))
    np.testing.assert_array_equal(dense(rows)[[0, 1, 2, 4]], dense(answer(case, left, computation)[0]))
    np.testing.assert_array_equal(dense(rows)[3], 0)
    np.testing.assert_allclose(dense(rows)[[0, 2, 4]], dense(whole)[[0, 2, 4]], rtol=1e-5, atol=1e-9)


# --- Formal guarantee of `RowMaker` ----------------------------------------------------------------------------------

FEW = 6
AVERAGING = sorted(set(QUESTIONS) - QUERIED - {"filled"})
marks = st.lists(st.booleans(), min_size=4 * FEW, max_size=4 * FEW)
"""A mark for each of at most so many samples: true if it can be used."""
seeds = st.integers(0, 99)


def computed(name, block, reduce="rows", **more):
    problem, parameters, arrays = QUESTIONS[name]
    asked = Computation(name, reduce, parameters=parameters, arrays=arrays, **more)
    everybody, x = np.arange(block.users), np.full(problem.dimension, 0.7)
    return dense(Node(problem, ColumnarFederation(block), everybody).compute(x, everybody, asked).values), asked


def people_of(name, seed=0):
    everybody = asked_of(name)
    return everybody.block(np.sort(np.random.default_rng(seed).choice(everybody.users, FEW, replace=False)))


def marked(block, usable):
    return replace(block, usable=np.array(usable[: block.samples]))


def width_of(name):
    return Computation(name, arrays=QUESTIONS[name][2]).length(QUESTIONS[name][0].dimension)


WAYS = {
    "plain": lambda name: {},
    "separate": lambda name: {"separate": True},
    "clipped": lambda name: {"clip_norm": 0.1, "statistic": "unclipped", "separate": True},
    "l1": lambda name: {"clip_norm": 0.1, "l1_norm": 0.05, "separate": True},
    "centred": lambda name: {
        "clip_norm": 0.1,
        "statistic": "log_distance",
        "centre": np.full(width_of(name), 0.3),
        "separate": True,
    },
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def test_every_function_of_rows_is_asked_and_those_that_see_marks_are_known():
    functions = {**ROW_FUNCTIONS, **{name: INSTALLED[name] for name in INSTALLED}}
    assert set(QUESTIONS) == set(functions)
    assert {name for name, one in functions.items() if one.counts_usable} == {*QUERIED, "filled"}


@every_way
@pytest.mark.parametrize("name", AVERAGING)
@settings(max_examples=12)
@given(usable=marks, seed=seeds)
def test_a_users_row_is_that_of_its_usable_samples_bit_for_bit_and_no_other_row_moves(name, way, usable, seed):
    block, more = people_of(name, seed), way(name)
    odd = marked(block, usable)
    rows, asked = computed(name, odd, **more)
    users, left = block.thinned(odd.usable)
    nobody = np.setdiff1d(np.arange(FEW), users)
    if left is not None:
        np.testing.assert_array_equal(rows[users], computed(name, left, **more)[0])
    at_the_centre = np.zeros(rows.shape[1])
    if asked.statistic is not None:
        at_the_centre[-1] = STATISTICS[asked.statistic].compute(np.zeros((1, len(at_the_centre) - 1)), 0.1)[0]
    np.testing.assert_array_equal(rows[nobody], np.tile(at_the_centre, (len(nobody), 1)))
    if asked.separate:
        whole = np.logical_and.reduceat(odd.usable, odd.offsets[:-1])
        np.testing.assert_array_equal(rows[whole], computed(name, block, **more)[0][whole])


@pytest.mark.parametrize("name", sorted(QUESTIONS))
@settings(max_examples=12)
@given(usable=marks, others=marks, seed=seeds)
def test_whatever_can_be_used_of_a_user_and_its_substitute_a_sum_moves_no_further_than_is_priced(
    name, usable, others, seed
):
    one, other = marked(people_of(name, seed), usable), marked(people_of(name, seed + 100), others)
    for more in ({}, {"statistic": "unclipped"}, {"centre": np.full(width_of(name), 0.3)}):
        sums = []
        for last in (one, other):
            people = one.part(0, FEW - 1).followed_by(last.part(FEW - 1, FEW))
            people = replace(
                people, usable=np.concatenate([one.usable[: one.offsets[-2]], last.part(FEW - 1, FEW).usable])
            )
            moved, asked = computed(name, people, "sum", clip_norm=0.1, separate=True, **more)
            sums.append(moved[0])
        assert np.linalg.norm(sums[1] - sums[0]) <= asked.sensitivity("replace_one") * (1 + 1e-9)


@settings(max_examples=25)
@given(usable=marks, seed=seeds)
def test_what_a_user_says_of_its_usable_samples_lies_in_an_interval_of_width_one(usable, seed):
    odd = marked(people_of("filled", seed), usable)
    rows, asked = computed("filled", odd)
    shares = np.array([np.mean(odd.part(user, user + 1).usable) for user in range(FEW)])
    np.testing.assert_allclose(rows[:, 0] + 0.5, ((shares > 0) + shares) / 2, rtol=1e-15)
    assert np.linalg.norm(rows, axis=1).max() <= 0.5 * (1 + 1e-15)
    assert Computation(asked.name, "sum", 0.5).sensitivity("replace_one") == 1.0


@settings(max_examples=25)
@given(usable=marks, seed=seeds)
def test_a_sample_keeps_its_coin_and_its_slot_whichever_others_can_be_used(usable, seed):
    name, block = "clipped_sample_sum", people_of("clipped_sample_sum", seed)
    odd, keys = marked(block, usable), np.arange(FEW, dtype=np.uint64) + seed
    coins = SampleCoins(0.6, keys)
    rows = computed(name, odd, coins=coins, separate=True)[0]
    users, left = block.thinned(odd.usable & coins.draw(slice(0, FEW), block.sizes))
    expected = np.zeros_like(rows)
    if left is not None:
        expected[users] = computed(name, left, separate=True)[0]
    np.testing.assert_array_equal(rows, expected)
    groups = np.random.default_rng(seed).integers(-1, 3, (FEW, 3)).astype(np.int32)
    sums = computed(name, odd, "sum", partition=Partition(groups, 3))[0].reshape(3, -1)
    owner = np.repeat(np.arange(FEW), block.sizes)
    slot = np.arange(block.samples) - block.offsets[owner]
    group = np.where(slot < 3, groups[owner, np.minimum(slot, 2)], -1)
    for number, found in enumerate(sums):
        _, left = block.thinned(odd.usable & (group == number))
        expected = np.zeros_like(found) if left is None else computed(name, left)[0].sum(axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("statistic", ["log_distance", "unclipped"])
def test_a_user_that_cannot_be_used_counts_as_the_centre_in_the_statistic_too(statistic):
    case = next(iter(CASES.values()))
    block = set_aside(case.block(SIZES), MARKED)
    centre = np.full(case.problem.dimension, 0.3)
    computation = Computation(clip_norm=0.2, centre=centre, statistic=statistic)
    rows, counted = answer(case, block, computation)
    at_the_centre = np.append(0 * centre, STATISTICS[statistic].compute(0 * centre[None], 0.2))
    np.testing.assert_array_equal(rows[3], at_the_centre)
    assert counted == 1


def test_groups_and_coins_leave_out_what_cannot_be_used():
    problem = Quadratic(1, 1.0, 1.0)
    values = np.arange(1, 14, dtype=np.float32)[:, None] / 16
    block = set_aside(Block(values, np.concatenate([[0], np.cumsum(SIZES)])), MARKED)
    x = np.full(1, 0.5)
    left = np.where(MARKED, 0.0, 0.5 - values[:, 0])
    partition = Partition(np.tile(np.array([[0, 1, 2, 0]], np.int32), (5, 1)), 3)
    grouped = Computation("clipped_sample_sum", "sum", parameters={"sample_clip_norm": 9.0}, partition=partition)
    sums, _ = rows_of(problem, x, block, grouped)
    slots = np.concatenate([np.arange(size) for size in SIZES])
    np.testing.assert_allclose(sums[0], [left[np.isin(slots, own)].sum() for own in ([0, 3], [1], [2])])
    everybody = SampleCoins(1.0, np.arange(5, dtype=np.uint64))
    federation = ColumnarFederation(Block(np.where(MARKED[:, None], np.float32(np.nan), values), block.offsets))
    node = Node(problem, federation, np.arange(5))
    drawn = Computation("clipped_sample_sum", parameters={"sample_clip_norm": 9.0}, coins=everybody)
    rows = node.compute(x, np.arange(5), drawn).values
    np.testing.assert_allclose(rows[:, 0], np.add.reduceat(left, block.offsets[:-1]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("streamed", [False, True])
def test_one_users_value_does_not_silence_the_node(bad, streamed, monkeypatch):
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2, 1)
    wrong = values.copy()
    wrong[2, 1] = bad
    if streamed:
        monkeypatch.setattr("userdp.nodes.node.MEMORY_BYTES", 0)
    users, problem, x = np.arange(6), Quadratic(1, 1.0, 1.0), np.zeros(1)
    whole, answer = (Node(problem, federation_of(v), users).compute(x, users, Computation()) for v in (values, wrong))
    assert answer.non_finite == 0
    np.testing.assert_array_equal(np.delete(answer.values, 2, axis=0), np.delete(whole.values, 2, axis=0))
    np.testing.assert_array_equal(answer.values[2], -values[2, 0])


class Lookup(nn.Module):
    """Fails on a block that holds a feature beyond its table, as every module that looks something up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.table(features[:, 0].long())


@pytest.mark.parametrize("reduce", ["rows", "sum"])
def test_a_module_that_fails_on_one_users_data_fails_for_that_user_alone(reduce, caplog):
    problem = TorchProblem(Lookup, "cross_entropy", 1)
    features = np.array([0, 1, 2, 3, 0, 1], np.float32).reshape(6, 1, 1)
    targets, users = np.array([0, 1, 0, 1, 1, 0], np.float32), np.arange(6)
    wrong = features.copy()
    wrong[4] = 77.0
    computation = Computation(reduce=reduce, clip_norm=1.0)
    whole, answer = (
        Node(problem, federation_of(values, targets=targets), users).compute(problem.initial(), users, computation)
        for values in (features, wrong)
    )
    assert (whole.non_finite, answer.non_finite) == (0, 1)
    assert caplog.text.count("the loss fails on users' data (IndexError in ") == 1
    if reduce == "rows":
        np.testing.assert_array_equal(answer.values[4], 0)
        np.testing.assert_allclose(np.delete(answer.values, 4, 0), np.delete(whole.values, 4, 0), rtol=1e-5, atol=1e-7)
    else:
        assert np.linalg.norm(answer.values - whole.values) <= 1 + 1e-6


def test_what_a_loss_says_of_named_users_stays_unsaid(caplog):
    problem, users = TorchProblem(Lookup, "cross_entropy", 1), np.arange(1)
    node = Node(problem, federation_of(np.full((1, 1, 1), 77.0), targets=np.zeros(1)), users, labels=["ann"])
    assert node.compute(problem.initial(), users, Computation(clip_norm=1.0)).non_finite == 1
    assert f"the loss fails on users' data (IndexError in {Path(__file__).name}, line " in caplog.text
    assert "index out of range" not in caplog.text


class Sensitive(Quadratic):
    """Fails on a block that holds a sample of 0.875, whoever's it is."""

    def sample_clipped_sums(self, x, block, clip_norm):
        if np.any(block.features == 0.875):
            raise FloatingPointError
        return super().sample_clipped_sums(x, block, clip_norm)


def test_users_retried_one_by_one_keep_their_own_coins():
    values = np.tile(np.array([0.125, 0.25, 0.5, 0.75], np.float32), 4).reshape(4, 4, 1)
    values[1, 2] = 0.875
    keys, everybody = np.array([3, 1, 7, 11], dtype=np.uint64), np.arange(4)
    coins = SampleCoins(0.7, keys)
    computation = Computation("clipped_sample_sum", parameters={"sample_clip_norm": 9.0}, coins=coins)
    rows, retried = (
        Node(problem, federation_of(values), everybody).compute(np.zeros(1), everybody, computation).values
        for problem in (Quadratic(1, 1.0, 1.0), Sensitive(1, 1.0, 1.0))
    )
    drawn = coins.draw(slice(0, 4), np.full(4, 4)).reshape(4, 4)
    assert drawn[1, 2]
    assert not np.array_equal(drawn[0], drawn[2])
    np.testing.assert_array_equal(np.delete(retried, 1, axis=0), np.delete(rows, 1, axis=0))
    # Of user 1 the sample that fails adds nothing, and the others stay.
    np.testing.assert_allclose(retried[1], rows[1] + 0.875)


def test_held_out_samples_that_cannot_be_used_are_left_out_of_metrics():
    from simulations.records.evaluation import Evaluation

    features, targets = np.full((3, 2, 1), 0.5, np.float32), np.array([1, 1, 0, 0, 1, 1], np.float32)
    problem, x = Logistic(1, 1.0, 1.0), np.full(1, 0.7)
    good = Evaluation(problem, None, federation_of(features[:2], targets=targets[:4]))(x)
    features[2] = np.nan
    assert Evaluation(problem, None, federation_of(features, targets=targets))(x) == good


USERS = 800


def write_classes(path, odd) -> None:
    """A table of 800 users with one sample each and a class of three; one of them holds class 7 if ``odd``."""
    rng = np.random.default_rng(3)
    target = rng.integers(0, 3, USERS)
    target[17] = 7 if odd else target[17]
    frame = {"who": [f"u{i}" for i in range(USERS)], "a": rng.uniform(-1, 1, USERS), "y": target}
    pd.DataFrame(frame).to_csv(path, index=False)


# Ray leaves the pipes and handles of its processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_class_that_the_module_does_not_have_moves_the_model_by_no_more_than_one_user_may(tmp_path, engine):
    """The command line, from a table: what eight silent nodes of a hundred users did by fifty sensitivities."""
    models = []
    for odd in (False, True):
        write_classes(tmp_path / "table.csv", odd)
        (tmp_path / "run.toml").write_text(f"""
name = "classes"
problem = {{ kind = "torch", hidden = [], outputs = 3, loss = "cross_entropy" }}
privacy = {{ epsilon = 1.0, delta = 1e-4 }}
strategy = {{ kind = "dp_fed_sgd", rounds = 1, clip_norm = 1.0, learning_rate = 1.0 }}
engine = {{ kind = "{engine}", workers = 1, roster_timeout = {PATIENCE} }}
output = {{ anyway = true, directory = "{tmp_path / str(odd)}", reference = false }}
[data]
kind = "table"
path = "table.csv"
user = "who"
features = ["a"]
ranges = {{ a = [-1.0, 1.0] }}
target = "y"
users = {USERS}
test_fraction = 0
""")
        outcome = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), "--json"])
        assert outcome.exit_code == 0, outcome.output
        result = json.loads(outcome.stdout)
        assert result["guarantee"]["holds"]
        (directory,) = (tmp_path / str(odd)).iterdir()
        models.append(np.load(directory / "model.npz")["x"])
        plan = json.loads((directory / "plan.json").read_text())
    assert 0 < np.linalg.norm(models[1] - models[0]) <= plan["numbers"]["l2_sensitivity"] * (1 + 1e-6)
    gc.collect()  # here, where the warnings about Ray's handles are expected
