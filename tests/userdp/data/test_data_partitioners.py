"""Partitions of flwr-datasets: who becomes a user, what replacing one can move, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from strategies import DPFedSGD, PublicFacts
from strategies.wire.protocol import read_roster, roster_question
from userdp import Logistic, Node, Privacy
from userdp.data import from_partitioner, read_table
from userdp.errors import BadInput, PopulationTooSmall
from userdp.nodes.computations import Computation

datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
partitioners = pytest.importorskip("flwr_datasets.partitioner")

FORM = {"features": ["x"], "ranges": {"x": [-1, 1]}, "target": "y", "positive": 1}
LOSS = Logistic(columns=1, feature_norm=2.0, radius=5.0, intercept=True)
CLIP = 0.05
NATURAL = {
    "one id a node": lambda: partitioners.NaturalIdPartitioner("who"),
    "two ids a node": lambda: partitioners.GroupedNaturalIdPartitioner("who", 2),
    "two ids a node, sorted": lambda: partitioners.GroupedNaturalIdPartitioner("who", 2, sort_unique_ids=True),
}
ARTIFICIAL = {
    "iid": lambda: partitioners.IidPartitioner(4),
    "dirichlet": lambda: partitioners.DirichletPartitioner(3, "y", 1.0, min_partition_size=2, seed=1),
}


def people(rows=60, users=7, seed=0):
    rng = np.random.default_rng(seed)
    who = np.concatenate([np.arange(users), rng.integers(0, users, rows - users)])
    return pd.DataFrame({"who": rng.permutation(who), "x": rng.uniform(-3, 3, rows), "y": rng.integers(0, 2, rows)})


def partitioned(make, frame, folder=None):
    """A partitioner of a frame, through a local Parquet file where a folder is given."""
    partitioner = make()
    if folder is None:
        partitioner.dataset = datasets.Dataset.from_pandas(frame, preserve_index=False)
    else:
        frame.to_parquet(folder / "rows.parquet")
        partitioner.dataset = datasets.Dataset.from_parquet(
            str(folder / "rows.parquet"), cache_dir=str(folder / "cache")
        )
    return partitioner


def samples(federation, user):
    block = federation.block(np.array([user]))
    return block.dense_features.tobytes(), block.targets.tobytes()


def total(made, problem=LOSS):
    """The sum of all users' clipped gradients, over all nodes, as a round takes it."""
    asked = Computation(clip_norm=CLIP, reduce="sum")
    nodes = [Node(problem, made.table.federation, users=users) for users in made.nodes]
    return sum(node.compute(np.array([0.3, -0.2]), node.users, asked).values[0] for node in nodes)


@pytest.mark.parametrize("kind", NATURAL)
def test_a_natural_id_is_one_user_with_all_its_samples(kind, tmp_path):
    frame = people()
    made = from_partitioner(partitioned(NATURAL[kind], frame, tmp_path), **FORM)
    plain = read_table(tmp_path / "rows.parquet", user="who", **FORM)
    assert made.table.labels.tolist() == plain.labels.tolist()
    for user in range(7):
        assert samples(made.table.federation, user) == samples(plain.federation, user)
    assert np.array_equal(np.sort(np.concatenate(made.nodes)), np.arange(7))
    partitioner = partitioned(NATURAL[kind], frame)
    for number, users in enumerate(made.nodes):
        there = set(partitioner.load_partition(number)["who"])
        assert {int(made.table.labels[user]) for user in users} == there
    assert made.facts["users"] == 7
    assert made.facts["user_is"] is None


def test_that_users_with_few_samples_are_left_out_is_an_assumption_of_the_guarantee():
    for least in (1, 2):
        made = from_partitioner(partitioned(NATURAL["one id a node"], people()), **FORM, min_samples=least)
        said = DPFedSGD(rounds=2).strategy(LOSS, PublicFacts(**made.facts), Privacy(4.0, 1e-3), seed=0).plan.guarantee
        assert ("who holds at least 2 samples is public" in said.assumptions) == (least == 2)


@pytest.mark.parametrize("kind", ARTIFICIAL)
def test_a_partition_of_any_other_kind_is_a_user_and_the_guarantee_says_so(kind, caplog):
    partitioner = partitioned(ARTIFICIAL[kind], people())
    made = from_partitioner(partitioner, **FORM)
    assert [len(users) for users in made.nodes] == [1] * partitioner.num_partitions
    for number, (user,) in enumerate(made.nodes):
        assert made.table.labels[user] == str(number)
        assert made.table.federation.sizes[user] == len(partitioner.load_partition(number))
    sentence = f"a user is a partition of {type(partitioner).__name__}, not a person"
    assert sentence in caplog.text
    strategy = DPFedSGD(rounds=2).strategy(LOSS, PublicFacts(**made.facts), Privacy(4.0, 1e-3), seed=0)
    assert strategy.plan.guarantee.sentence().endswith(f"; {sentence}")


@pytest.mark.parametrize("kind", NATURAL | ARTIFICIAL)
def test_replacing_a_user_moves_the_sum_of_all_nodes_by_its_sensitivity_at_most(kind):
    make, frame = (NATURAL | ARTIFICIAL)[kind], people()
    first = partitioned(make, frame)
    made, rng = from_partitioner(first, **FORM), np.random.default_rng(3)
    bound, farthest = 2 * CLIP, 0.0
    for user, label in enumerate(made.table.labels):
        if kind in NATURAL:
            others, replaced = frame[frame["who"] != int(label)], {"who": int(label)}
            own = pd.DataFrame(replaced | {"x": rng.normal(0, 1e3, 9), "y": 1 - frame["y"].iloc[0]})
            changed = pd.concat([others, own]).sample(frac=1, random_state=user)
            # The others' rows keep their order: a shuffle is public, and what a user's rows do to it is not.
            changed.loc[changed["who"] != int(label)] = others.to_numpy()
            after = from_partitioner(partitioned(make, changed.astype({"who": int})), **FORM)
        else:
            after = from_partitioner(Replaced(first, int(label), rng), **FORM)
        assert after.table.labels.tolist() == made.table.labels.tolist()
        for other in set(range(made.table.federation.users)) - {user}:
            assert samples(after.table.federation, other) == samples(made.table.federation, other)
        moved = float(np.linalg.norm(total(after) - total(made)))
        assert moved <= bound * (1 + 1e-9)
        farthest = max(farthest, moved)
    assert farthest > 0.5 * bound


class Replaced(partitioners.Partitioner):
    """The partitions of another partitioner, one of them with other rows."""

    def __init__(self, within, number, rng):
        super().__init__()
        self.dataset, self._within, self._number = within.dataset, within, number
        rows = {"who": [0] * 9, "x": rng.normal(0, 1e3, 9), "y": [1] * 9}
        self._rows = datasets.Dataset.from_dict(rows, features=within.dataset.features)

    @property
    def num_partitions(self):
        return self._within.num_partitions

    def load_partition(self, partition_id):
        return self._rows if partition_id == self._number else self._within.load_partition(partition_id)


def test_bounds_and_missing_cells_are_those_of_tables(tmp_path):
    frame = people()
    frame.loc[::5, "x"] = np.nan
    form = FORM | {"impute": {"x": 0.5}, "max_samples": 3, "seed": 4}
    made = from_partitioner(partitioned(NATURAL["two ids a node, sorted"], frame, tmp_path), **form)
    plain = read_table(tmp_path / "rows.parquet", user="who", **form)
    assert all(samples(made.table.federation, user) == samples(plain.federation, user) for user in range(7))
    assert made.table.report == plain.report
    assert made.facts["max_samples"] == made.table.federation.sizes.max() == 3


def test_a_declared_number_of_users_leaves_some_out_and_their_nodes_hold_nobody():
    made = from_partitioner(partitioned(NATURAL["one id a node"], people()), users=5, **FORM)
    assert sorted(len(users) for users in made.nodes) == [0, 0, 1, 1, 1, 1, 1]
    assert made.facts["users"] == 5
    with pytest.raises(PopulationTooSmall, match="8"):
        from_partitioner(partitioned(NATURAL["one id a node"], people()), users=8, **FORM)


class Split(partitioners.NaturalIdPartitioner):
    """Puts every second row into another partition."""

    num_partitions = 2

    def load_partition(self, partition_id):
        return self.dataset.select(range(partition_id, len(self.dataset), 2))


class Narrow(Replaced):
    """The first partition lacks a column."""

    def load_partition(self, partition_id):
        part = self._within.load_partition(partition_id)
        return part.remove_columns("who") if partition_id == 0 else part


class Empty(Replaced):
    def load_partition(self, partition_id):
        return self._within.load_partition(partition_id).select([])


def with_ids(ids):
    return people().assign(who=pd.Series(ids * 30, dtype=object).iloc[:60].to_numpy())


GROUPED = partitioners.GroupedNaturalIdPartitioner
IID = ARTIFICIAL["iid"]


class Repeated(GROUPED):
    """The first row of each partition is there twice."""

    def load_partition(self, partition_id):
        part = super().load_partition(partition_id)
        return part.select([0, *range(len(part))])


REFUSED = {
    "split": (lambda: partitioned(lambda: Split("who"), people()), "lies in several partitions"),
    "missing": (lambda: partitioned(lambda: GROUPED("who", 2), with_ids(["a", "b", None, "c"])), "without a user"),
    "missing, sorted": (lambda: partitioned(NATURAL["one id a node"], with_ids(["a", None])), r"\(TypeError\): fill"),
    "not finite": (
        lambda: partitioned(lambda: GROUPED("who", 2), people().assign(who=np.nan)),
        "without a user|out or rep",
    ),
    "dropped": (lambda: partitioned(lambda: GROUPED("who", 2, mode="drop-reminder"), people()), "allow-smaller"),
    "merged": (lambda: partitioned(lambda: GROUPED("who", 2), with_ids(["a", "a\0", "b", "c"])), "a NUL byte"),
    "repeated": (lambda: partitioned(lambda: Repeated("who", 2), people()), "repeats them"),
    "one text": (lambda: partitioned(lambda: GROUPED("who", 2), with_ids(["1", "1.0", "2"])), "'1' and '1.0'"),
    "columns": (lambda: Narrow(partitioned(IID, people()), 0, np.random.default_rng(0)), "partition 0 lacks"),
    "empty": (lambda: Empty(partitioned(IID, people()), 0, np.random.default_rng(0)), "partition 0 is empty"),
    "no data": (IID, "no data set"),
    "a name": (lambda: partitioned(IID, people().rename(columns={"who": "partition-id"})), "rename it"),
    "a frame": (people, "source is a DataFrame"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_guarantee_could_stand_on_is_refused(case):
    make, match = REFUSED[case]
    with pytest.raises(BadInput, match=match):
        from_partitioner(make(), **FORM)


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"user": "who"}, "user follows"),
        ({"split_column": "y"}, "partition those who train alone"),
        ({"rangs": {}}, "did you mean"),
    ],
)
def test_arguments_are_those_of_tables(declared, match):
    with pytest.raises(BadInput, match=match):
        from_partitioner(partitioned(NATURAL["one id a node"], people()), **FORM, **declared)


def test_a_federated_dataset_may_not_shuffle_natural_ids(tmp_path):
    flwr_datasets = pytest.importorskip("flwr_datasets")
    people().to_parquet(tmp_path / "rows.parquet")

    def whole(make, **shuffle):
        return flwr_datasets.FederatedDataset(
            dataset="parquet",
            data_files=str(tmp_path / "rows.parquet"),
            cache_dir=str(tmp_path / "cache"),
            partitioners={"train": make()},
            **shuffle,
        )

    with pytest.raises(BadInput, match="shuffle=False"):
        from_partitioner(whole(NATURAL["one id a node"]), **FORM)
    made = from_partitioner(whole(NATURAL["one id a node"], shuffle=False), **FORM)
    assert made.table.federation.samples == 60
    with pytest.raises(BadInput, match="no partitioner; those of the data set are train"):
        from_partitioner(whole(IID), split="test", **FORM)


def test_the_pages_examples_run(tmp_path, monkeypatch, flower_identity):
    page = (Path(__file__).resolve().parents[3] / "docs" / "flower-app.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (of_partitions,) = (code for code in blocks if "from_partitioner" in code)
    rows = people(rows=300, users=45)
    rows.rename(columns={"who": "student", "x": "age", "y": "rating"}).to_parquet("ratings.parquet")
    names = {}
    exec(of_partitions, names)
    assert names["public"].users == 45
    assert [len(names["load"](node_of(number)).users) for number in range(3)] == [20, 20, 5]
    (of_tables,) = (code for code in blocks if "read_parquet" in code)
    patients = rows.rename(columns={"who": "slot", "x": "age", "y": "ill"})
    patients.assign(dose=3.0, patient="P" + patients["slot"].astype(str)).to_parquet("patients.parquet")
    exec(of_tables, names)
    reply = names["client"](Message(roster_question(bytes(16), counts=True), 1, MessageType.QUERY), node_of(0))
    assert read_roster(reply, counts=True, keys=False).users.tolist() == list(range(45))


def node_of(number):
    return Context(1, 1, {"partition-id": number, "file": "patients.parquet"}, RecordDict(), {})
