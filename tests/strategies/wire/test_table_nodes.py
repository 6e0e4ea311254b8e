"""Nodes from tables: whose numbers users have, what is refused, and what replacing a user can move."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message, MessageType
from helpers_flower import ClientGrid

from simulations.engines.grids import LocalGrid
from strategies import DPFedSGD, PublicFacts, client_app, model_vector
from strategies.wire.frames import TableNodes
from strategies.wire.protocol import roster_question
from userdp import Logistic, Node, Privacy
from userdp.data import read_table
from userdp.errors import BadInput, RunFailed
from userdp.nodes.computations import Computation

LOSS = Logistic(columns=1, feature_norm=2.0, radius=5.0, intercept=True)
FORM = {"user": "who", "features": ["x"], "ranges": {"x": [-1, 1]}, "target": "y", "positive": 1}
TABLES = TableNodes(LOSS, "slot", None, FORM)


def people(users=12, rows=90, seed=0):
    rng = np.random.default_rng(seed)
    slot = rng.permutation(np.concatenate([np.arange(users), rng.integers(0, users, rows - users)]))
    names = np.array([f"person {7 * user % users}" for user in range(users)])[slot]
    return pd.DataFrame({"who": names, "slot": slot, "x": rng.uniform(-2, 2, rows), "y": rng.integers(0, 2, rows)})


def trained(grid):
    strategy = DPFedSGD(rounds=3).strategy(LOSS, PublicFacts(users=12), Privacy(4.0, 1e-3), seed=5)
    return model_vector(strategy.start(grid).arrays)


def parts(frame):
    return [frame[frame["slot"] % 3 == part] for part in range(3)]


def app_of(tables):
    return client_app(lambda context: tables[context.node_config["partition-id"]], problem=LOSS, number="slot", **FORM)


def test_the_model_is_that_of_one_table_whichever_nodes_its_rows_lie_in(tmp_path):
    frame = people()
    frame.to_parquet(tmp_path / "rows.parquet")
    table = read_table(tmp_path / "rows.parquet", **FORM)
    slots = frame.drop_duplicates("who").set_index("who")["slot"]
    order = np.argsort(slots[table.labels].to_numpy())
    with LocalGrid([Node(LOSS, table.federation, np.arange(12), order)]) as grid:
        whole = trained(grid)
    with ClientGrid(app_of(parts(frame)), 3) as grid:
        np.testing.assert_allclose(trained(grid), whole, rtol=1e-12)


def test_a_data_set_of_hugging_face_is_read_like_a_frame():
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    frame = people()
    made = [TABLES.node(data) for data in (frame, datasets.Dataset.from_pandas(frame, preserve_index=False))]
    answers = [node.compute(np.array([0.3, 0.1]), node.users, Computation(clip_norm=1.0)) for node in made]
    assert np.array_equal(answers[0].values, answers[1].values)
    assert made[0].labels == made[1].labels
    assert TABLES.node(frame) is TABLES.node(frame)


@pytest.mark.parametrize("reduce", ["rows", "sum"])
def test_replacing_a_user_moves_its_own_row_alone(reduce):
    frame, clip = people(), 0.05
    asked, x = Computation(clip_norm=clip, reduce=reduce), np.array([0.3, -0.2])
    before = TABLES.node(frame).compute(x, np.arange(12), asked).values
    farthest = 0.0
    for user in range(12):
        others, who = frame[frame["slot"] != user], frame[frame["slot"] == user]["who"].iloc[0]
        own = pd.DataFrame({"who": who, "slot": user, "x": [1e30, np.nan, -5.0], "y": [0, 1, 1 - user % 2]})
        after = TABLES.node(pd.concat([own, others])).compute(x, np.arange(12), asked).values
        changed = np.linalg.norm(after - before, axis=1)
        assert changed.max() <= 2 * clip * (1 + 1e-9)
        if reduce == "rows":
            assert not np.delete(changed, user).any()
        farthest = max(farthest, changed.max())
    assert farthest > 0.9 * clip


def slots(change):
    frame = people().astype({"slot": object})
    change(frame)
    return frame


def one_cell(value):
    return slots(lambda frame: frame.isetitem(1, [value, *frame["slot"].iloc[1:]]))


REFUSED = {
    "missing": (one_cell(None), r"1 cell \(the first in row 1\) without a whole number"),
    "half": (one_cell(0.5), "without a whole number"),
    "negative": (one_cell(-1), "without a whole number"),
    "infinite": (one_cell(float("inf")), "without a whole number"),
    "two numbers of a user": (one_cell(40), "a user has one number"),
    "one number of two": (people().assign(slot=3), "one number to two users"),
    "no user": (people().assign(who=None), "without a user"),
    "no column": (people().drop(columns="slot"), "has no column 'slot'"),
    "a list": ([1, 2], "list"),
    "a path": ("people.parquet", "load returned a path"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_whose_users_are_not_numbered_is_refused(case):
    data, match = REFUSED[case]
    with pytest.raises(BadInput, match=match):
        TABLES.node(data)


def test_a_person_in_two_nodes_ends_the_run_under_one_number_or_two():
    frame = people()
    again = frame[frame["slot"] == 0]
    for number, match in ((0, "user"), (11, "label|person")):
        first, second = frame[frame["slot"] < 6], frame[(frame["slot"] >= 6) & (frame["slot"] < 11)]
        tables = [first, pd.concat([second, again.assign(slot=number)])]
        with ClientGrid(app_of(tables), 2) as grid, pytest.raises(RunFailed, match=match):
            trained(grid)


@pytest.mark.parametrize("given", [{"problem": LOSS}, {"number": "slot"}, {"user": "who"}])
def test_declarations_are_all_given_or_none(given):
    with pytest.raises(BadInput, match="give problem, number, user and features"):
        client_app(lambda context: people(), **given)


def test_a_table_without_declarations_is_an_error_in_the_nodes_own_log(caplog):
    question = Message(roster_question(b"", counts=True), 1, MessageType.QUERY)
    with ClientGrid(client_app(lambda context: people()), 1) as grid:
        (reply,) = grid.send_and_receive([question])
    assert reply.error.reason == "BadInput"
    assert "load returned a DataFrame" in caplog.text


def test_held_out_users_would_train_so_a_split_is_refused():
    with pytest.raises(BadInput, match="split_column"):
        TableNodes(LOSS, "slot", None, FORM | {"split_column": "part", "split_test": 1})
