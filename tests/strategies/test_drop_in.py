"""Ordinary Flower clients under user-level privacy: the page's app, and what each of their replies can do."""

import importlib.util
import logging
import re
import shutil
import sys
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from helpers_coupling import taped
from helpers_flower import ClientGrid, run_on_flower
from helpers_hostile import damaged, npy_head

from simulations.testing.tape import Tape
from strategies import (
    DropInAdaptiveClipping,
    DropInAuto,
    DropInFedAvg,
    DropInRecentredClipping,
    LearnCoordinates,
    private_updates,
)
from strategies.drop_in import ClientSideLoss
from strategies.wire.model_layout import ModelLayout
from strategies.wire.replies import gather
from userdp.accounting.guarantee import rounded_up
from userdp.data import Block
from userdp.errors import BadInput, RunFailed

PAGE = (Path(__file__).resolve().parents[2] / "docs/drop-in.md").read_text(encoding="utf-8")
APP, *CHANGED = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
LINE = re.search(r"^    strategy = .*\n", APP, flags=re.MULTILINE).group()
LINES = [LINE, *CHANGED]
MASKED = (
    APP.replace("import Drop", "import private_updates, Drop")
    .replace("@client.train()", "@client.train(mods=[private_updates()])")
    .replace(LINE, LINE.replace(")", ', trust="sum")'))
)
KINDS = [DropInFedAvg, DropInAdaptiveClipping, DropInAuto, DropInRecentredClipping]
WITH_A_CLIP = [kind for kind in KINDS if kind is not DropInAuto]  # from the first round on


# The page's app --------------------------------------------------------------------------------------------------


def imported(folder: Path, code: str):
    path = folder / "app.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("drop_in_app", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["drop_in_app"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.sweep(1)
@pytest.mark.parametrize("line", LINES, ids=["fed_avg", "auto", "adaptive", "recentred"])
def test_the_app_of_the_page_learns_under_each_strategy_by_one_line(line, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("strategies.core.base.secrets.randbits", lambda bits: 1)
    app = imported(tmp_path, APP.replace(LINE, line))
    run_config = {"users": 30, "rounds": 4, "output": str(tmp_path / "model.pt")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ClientGrid(app.client, 30) as grid:
            app.server(grid, Context(1, 0, {}, RecordDict(), run_config))
    finally:
        torch.set_num_threads(threads)
    assert "(8, 0.0001)-differential privacy for replacing one whole user" in capsys.readouterr().out
    trained, initial = torch.load(tmp_path / "model.pt"), app.make_model().state_dict()
    assert list(trained) == list(initial)
    assert all(trained[name].dtype == initial[name].dtype for name in initial)
    assert trained["1.num_batches_tracked"] == 0
    assert all(bool(torch.isfinite(values).all()) for values in trained.values())
    accuracy = app.evaluate(4, ArrayRecord(trained))["accuracy"]
    assert accuracy > 0.8  # chance is 0.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [*(APP.replace(LINE, line) for line in LINES), MASKED],
    ids=["fed_avg", "auto", "adaptive", "recentred", "masked"],
)
def test_the_app_of_the_page_runs_on_flowers_own_engine(code, tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "app.py").write_text(code)
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    (folder / "pyproject.toml").write_text(settings)
    run_on_flower(tmp_path / "flower", folder, 6, {"users": 6, "rounds": 2, "output": str(tmp_path / "model.pt")})
    trained = torch.load(tmp_path / "model.pt")
    assert trained["0.weight"].shape == (4, 1, 3, 3)
    assert all(bool(torch.isfinite(values).all()) for values in trained.values())


def test_one_line_of_the_server_changes():
    (change,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert [line[0] for line in change.splitlines()] == ["-", "+"]
    assert all(len(line.splitlines()) == 1 for line in CHANGED)


QUICKSTART = Path(__file__).resolve().parents[2] / "research" / "quickstart"


def test_ten_lines_make_the_quickstart_app_private(module_of):
    changed = module_of("making.drop_in").changes()
    assert 0 < len(changed) <= 10
    assert any("DropInFedAvg" in line for line in changed)
    shared = {path.name for path in (QUICKSTART / "digits").glob("*.py")} - {"server_app.py", "private_server_app.py"}
    assert shared == {"__init__.py", "task.py", "client_app.py"}  # nothing else differs
    assert "userdp" not in "".join((QUICKSTART / "digits" / name).read_text() for name in shared)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("settings", ["pyproject.toml", "private.toml"], ids=["as it was", "private"])
def test_the_quickstart_app_runs_on_flowers_own_engine(settings, tmp_path):
    data = tmp_path / "writers.parquet"
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, 784, dtype=np.uint8).tobytes() for _ in range(80)]
    table = {"part": ["train", "test"] * 40, "writer": np.arange(80) % 8, "digit": np.arange(80) % 10, "pixels": pixels}
    pd.DataFrame(table).to_parquet(data)
    folder = shutil.copytree(QUICKSTART, tmp_path / "app")
    (folder / settings).replace(folder / "pyproject.toml")
    given = {"data": str(data), "rounds": 2, "output": str(tmp_path / "model.pt")}
    given |= {"users": 4, "epsilon": 100.0} if settings == "private.toml" else {}
    run_on_flower(tmp_path / "flower", folder, 4, given)
    assert torch.load(tmp_path / "model.pt")["linear.weight"].shape == (10, 288)


# One round, reply by reply ---------------------------------------------------------------------------------------

INITIAL = {
    "half": np.array([0.5, -0.25], dtype=np.float16),
    "single": np.array([[1.0], [2.0]], dtype=np.float32),
    "double": np.array(3.0),
    "counter": np.array(7, dtype=np.int64),
    "flags": np.array([True, False]),
}


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def moved(by: float) -> dict[str, np.ndarray]:
    """The initial model with all its floats moved, and its counter as clients move it."""
    floats = {name: INITIAL[name] + np.asarray(by, dtype=INITIAL[name].dtype) for name in ("half", "single", "double")}
    return INITIAL | floats | {"counter": np.array(99)}


def clients(replies, weights=None) -> ClientApp:
    """A client app that answers, at node i, with ``replies[i]``: arrays, a whole content, or an error to raise."""
    app = ClientApp()

    @app.train()
    def train(message: FlowerMessage, context: Context) -> FlowerMessage:
        user = context.node_config["partition-id"]
        reply = replies[user]
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, RecordDict):
            metrics = MetricRecord({"num-examples": 1 if weights is None else weights[user]})
            reply = RecordDict({"arrays": record(reply), "metrics": metrics})
        return FlowerMessage(reply, reply_to=message)

    return app


def least_rounds(kind):
    return 2 if kind is DropInAuto else 1


def strategy(kind=DropInFedAvg, users=5, **options):
    given = {"epsilon": 4.0, "delta": 1e-4, "rounds": least_rounds(kind), "seed": 3} | options
    return kind(users=users, **given)


def train(replies, kind=DropInFedAvg, weights=None, nodes=None, initial=INITIAL, start=None, **options):
    method = strategy(kind, **({"users": len(replies)} | options))
    with ClientGrid(clients(replies, weights), len(replies) if nodes is None else nodes) as grid:
        return method.start(grid, record(initial), **({"roster_timeout": 0} | (start or {}))), grid


def vector(result) -> np.ndarray:
    return ModelLayout(record(INITIAL)).vector(result.arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_num_examples_are_ignored(kind):
    """Flower's wrapper lets the user with 1000 of 1009 examples move the mean by 0.99; here it is one of ten."""
    replies = [moved(0.1)] * 9 + [moved(-50.0)]
    heavy, _ = train(replies, kind, weights=[1] * 9 + [1000], clip_norm=1.0)
    light, _ = train(replies, kind, clip_norm=1.0)
    np.testing.assert_array_equal(vector(heavy), vector(light))
    if kind is not DropInRecentredClipping:  # whose filter scales what it releases by a number from the release
        without, _ = train([moved(0.1)] * 10, kind, clip_norm=1.0)  # the same seed, and so the same noise
        rounding = 1e-3 * np.sqrt(5)  # of the model's float16
        assert np.linalg.norm(vector(heavy) - vector(without)) <= 2 * 1.0 / 10 + rounding


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_of_clients_are_published_nowhere(kind):
    """No noise is added to them."""
    sent = [MetricRecord({"num-examples": 1, "loss": 41.0 + user}) for user in range(5)]
    replies = [RecordDict({"arrays": record(moved(0.1)), "metrics": metrics}) for metrics in sent]
    result, grid = train(replies, kind, rounds=2)
    nobody = {"missing_users_private": 0, "non_finite_users_private": 0}
    assert {at: dict(values) for at, values in result.train_metrics_clientapp.items()} == {1: nobody, 2: nobody}
    assert not result.evaluate_metrics_clientapp
    assert {message.metadata.message_type for message in grid.sent} == {"train"}


@pytest.mark.parametrize("kind", KINDS)
def test_types_shapes_and_order_are_kept_and_integers_untouched(kind):
    result, grid = train([moved(0.1)] * 5, kind, start={"train_config": ConfigRecord({"lr": 0.5})})
    assert list(result.arrays) == list(INITIAL)
    for name, values in INITIAL.items():
        after = result.arrays[name].numpy()
        assert (after.dtype, after.shape) == (values.dtype, values.shape)
    assert result.arrays["counter"].numpy() == 7
    np.testing.assert_array_equal(result.arrays["flags"].numpy(), INITIAL["flags"])
    assert dict(grid.sent[0].content["config"]) == {"lr": 0.5, "server-round": 1}
    assert set(grid.sent[0].content) == {"arrays", "config"}
    assert grid.sent[0].metadata.message_type == "train"


@pytest.mark.parametrize("kind", WITH_A_CLIP)
def test_zero_updates_of_all_leave_noise_alone(kind):
    result, _ = train([INITIAL] * 5, kind, clip_norm=1e-3)
    assert result.non_finite_users == result.missing_users == 0
    assert 0 < np.linalg.norm(vector(result) - ModelLayout(record(INITIAL)).vector(record(INITIAL))) < 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_a_zero_update_and_counted(kind, bad):
    result, _ = train([moved(0.1)] * 4 + [moved(0.1) | {"double": np.array(bad)}], kind)
    zero, _ = train([moved(0.1)] * 4 + [INITIAL], kind)
    assert (result.non_finite_users, result.missing_users) == (least_rounds(kind), 0)
    if kind is not DropInAuto:  # whose clip follows the lengths, which a zero update has and this one lacks
        np.testing.assert_array_equal(vector(result), vector(zero))


def test_the_mean_of_clipped_updates_is_what_is_released():
    """Three users move all five floats by 0.125, two by far more than the clip, with next to no noise."""
    result, _ = train([moved(0.125)] * 3 + [moved(40.0)] * 2, epsilon=1e7, clip_norm=1.0)
    per_float = (3 * 0.125 + 2 / np.sqrt(5)) / 5
    start = ModelLayout(record(INITIAL)).vector(record(INITIAL))
    np.testing.assert_allclose(vector(result) - start, per_float, atol=3e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_each_strategy_moves_to_the_mean_of_the_clients_models(kind):
    clip = {} if kind is DropInAuto else {"clip_norm": 10.0}  # else about half of the users are clipped
    result, _ = train([moved(0.125)] * 5, kind, epsilon=1e7, **clip)
    start = ModelLayout(record(INITIAL)).vector(record(INITIAL))
    np.testing.assert_allclose(vector(result) - start, 0.125, atol=0.02)


COMING = {"sampling": "poisson"}  # All of them come, but each is one that may be added or removed
NO_MODELS = {
    "not a number": moved(np.nan),
    "update": {name: np.asarray(one * 0 + 0.1) for name, one in INITIAL.items()},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", NO_MODELS.values(), ids=NO_MODELS)
def test_most_replies_that_are_no_models_end_the_run_and_some_count_as_zero(kind, bad):
    with pytest.raises(RunFailed, match="most clients' replies count as zero, by a count with noise"):
        train([bad] * 24, kind, rounds=3)
    mixed, _ = train([bad] * 4 + [moved(0.1)] * 20, kind)
    zero, _ = train([INITIAL] * 4 + [moved(0.1)] * 20, kind)
    assert (mixed.non_finite_users, mixed.missing_users) == (4 * least_rounds(kind), 0)
    np.testing.assert_array_equal(vector(mixed), vector(zero))
    quiet = train([bad] * 24, kind, epsilon=0.2)[0]
    assert quiet.non_finite_users == 24 * least_rounds(kind)  # so much noise could pass for all of them


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_a_round_and_the_verdict_on_its_replies_cost_no_more_than_the_round(kind, relation):
    """Squared moves over the noise, of all that a round draws, by brute force over one user's replies."""
    variants = [moved(0.1), moved(-9.0), moved(9.0), *NO_MODELS.values(), ValueError("away")]
    options = {"relation": relation} if kind is DropInRecentredClipping or relation == "replace_one" else COMING
    tapes = []
    for variant in variants:
        tape = Tape(tapes[0].draws if tapes else None)
        with taped(tape), ClientGrid(clients([variant] + [moved(0.1)] * 23), 24) as grid:
            method = strategy(kind, users=24, **options)
            method.start(grid, record(INITIAL), roster_timeout=0)
        tapes.append(tape)
    assert all(len(tape.draws) == len(tapes[0].draws) > (1 if kind is DropInFedAvg else 2) for tape in tapes)
    pairs = combinations(tapes, 2) if relation == "replace_one" else [(tape, tapes[-1]) for tape in tapes]
    moves = [
        sum((a.distance(b) / a.scale) ** 2 for a, b in zip(one.draws, other.draws, strict=True)) for one, other in pairs
    ]
    allowed = least_rounds(kind) * method.plan.numbers["noise_multiplier"] ** -2
    assert allowed / 2 < max(moves) <= allowed * (1 + 1e-9)


FORMS = {
    "float16": np.array([0.5, -0.25, 0.125], dtype=np.float16),
    "one number": np.array(0.5, dtype=np.float32),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3) / 10),
    "every other row": (np.arange(12.0, dtype=np.float32) / 10).reshape(4, 3)[::2],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("later", ["float16", "float32", "float64", "int64", "bool"])
def test_updates_of_any_form_and_type_are_clipped_averaged_and_released_in_the_models_own(form, later):
    """The type of replies changes in the second of two rounds; there is next to no noise."""
    app, models, initial = ClientApp(), [], {"w": form, "nothing": np.zeros((0, 3)), "counter": np.array(7)}

    def reply_to(sent, user, number):
        return (sent + sent.dtype.type(user + 1)).astype(later if number == 2 else sent.dtype)

    @app.train()
    def train_one(message, context):
        number, arrays = message.content["config"]["server-round"], message.content["arrays"]
        moved_to = {"w": reply_to(arrays["w"].numpy(), context.node_config["partition-id"], number)}
        reply = {"nothing": np.zeros((0, 3)), "counter": np.array(1.5)} | moved_to
        return FlowerMessage(RecordDict({"arrays": record(reply)}), reply_to=message)

    with ClientGrid(app, 5) as grid:
        started = {"evaluate_fn": lambda at, arrays: models.append({name: one.numpy() for name, one in arrays.items()})}
        strategy(epsilon=1e9, rounds=2, clip_norm=1.5).start(grid, record(initial), roster_timeout=0, **started)
    for number in (1, 2):
        sent, released = models[number - 1]["w"], models[number]
        updates = [reply_to(sent, user, number).astype(float) - sent.astype(float) for user in range(5)]
        clipped = [one * min(1.0, 1.5 / max(np.linalg.norm(one), 1e-9)) for one in updates]
        assert (released["w"].dtype, released["w"].shape) == (form.dtype, form.shape)
        np.testing.assert_allclose(
            released["w"], sent + np.mean(clipped, axis=0), atol=2 * np.finfo(form.dtype).eps + 1e-3
        )
        assert (released["nothing"].shape, released["counter"]) == ((0, 3), 7)


class Tied(torch.nn.Module):
    """A network whose last layer is its first."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        self.last.weight, self.norms = self.first.weight, torch.nn.ModuleList([torch.nn.LayerNorm(3) for _ in range(2)])


@pytest.mark.parametrize("trust", ["server", "sum"])
def test_tied_weights_are_clipped_noised_and_released_as_one_array(trust):
    model, app = Tied(), ClientApp()
    initial = ArrayRecord(model.state_dict())

    @app.train(mods=[private_updates()] if trust == "sum" else [])
    def train_one(message, context):
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            model.first.weight += 9.0
        return FlowerMessage(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    method = strategy(epsilon=40.0, rounds=2, clip_norm=1.0, trust=trust, noise="seeded")
    assert method._within(ModelLayout(initial)).problem.dimension == 9 + 4 * 3  # constants may be equal by chance
    with ClientGrid(app, 5) as grid:
        released = method.start(grid, initial, roster_timeout=1).arrays
    first, last = (released[f"{name}.weight"].numpy() for name in ("first", "last"))
    np.testing.assert_array_equal(first, last)
    assert np.linalg.norm(first - initial["first.weight"].numpy()) == pytest.approx(2.0, abs=0.3)  # two clips
    assert np.any(released["norms.0.weight"].numpy() != released["norms.1.weight"].numpy())


def test_arrays_that_are_equal_at_the_start_alone_are_refused():
    initial = {"a": np.arange(3.0), "b": np.arange(3.0)}
    with pytest.raises(RunFailed, match="its arrays 'a' and 'b' differ, which are equal in initial_arrays"):
        train([{"a": np.arange(3.0), "b": np.ones(3)}] * 5, initial=initial)
    assert ModelLayout(record(initial), frozen=("b",)).dimension == 3


BAD_REPLIES = {
    "error": ValueError("the disk is full"),
    "shape": INITIAL | {"single": np.zeros((3, 1), np.float32)},
    "names": {"half": INITIAL["half"]},
    "type": INITIAL | {"double": np.array(1j)},
    "no arrays": RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
    "two records": RecordDict({"a": record(INITIAL), "b": record(INITIAL)}),
    "no numbers": RecordDict({"arrays": ArrayRecord({**record(INITIAL), "double": Array("float64", (), "x", b"")})}),
}


@pytest.mark.parametrize("bad", BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_a_reply_that_is_no_model_counts_as_missing_and_too_many_end_the_run(bad):
    result, _ = train([moved(0.1)] * 4 + [bad])
    zero, _ = train([moved(0.1)] * 4 + [INITIAL])
    assert (result.missing_users, result.non_finite_users) == (1, 0)
    np.testing.assert_array_equal(vector(result), vector(zero))
    with pytest.raises(RunFailed, match="too many users of a cohort did not answer"):
        train([moved(0.1)] * 3 + [bad] * 2)


def one_round(users=5):
    """A strategy in its first round, and from the replies' contents to what it gathers."""
    arrays = record(INITIAL)
    method = strategy(users=users)._within(ModelLayout(arrays))
    with ClientGrid(clients([]), users) as grid:
        method._roster.gather(grid, 0)
        asked = list(method.configure_train(1, arrays, ConfigRecord(), grid))

    def gathered(contents):
        replies = [FlowerMessage(content, reply_to=question) for content, question in zip(contents, asked, strict=True)]
        read = partial(method.wire.read, sent=method.state.x)
        return gather(method._request, method._roster, replies, method.problem.dimension, 1.0, read)

    return method, gathered


def model_reply(by=0.1):
    return RecordDict({"arrays": record(moved(by)), "metrics": MetricRecord({"num-examples": 1})})


@pytest.mark.slow
def test_damaged_models_count_as_missing_and_touch_nobody_else(caplog):
    """600 of them, from one user of five; some are damaged in their numbers alone, which the clip bounds."""
    caplog.set_level(logging.ERROR)
    method, gathered = one_round()
    honest, rng, seen = [model_reply() for _ in range(4)], np.random.default_rng(5), {0: 0, 1: 0}
    without = gathered([*honest, RecordDict()])
    for _ in range(600):
        hostile = model_reply()
        del hostile["metrics"]
        key = str(rng.choice(list(INITIAL)))
        hostile["arrays"][key] = damaged(hostile["arrays"][key], rng)
        result = gathered([*honest, hostile])
        seen[result.missing] += 1
        assert result.non_finite in (0, 1)
        if result.missing:
            assert result.values.tobytes() == without.values.tobytes()
        assert np.linalg.norm(result.values - without.values) <= method.recipe.clip_norm * (1 + 1e-9)
    assert min(seen.values()) > 100


def file_of(head: str) -> Array:
    return Array("float64", (), "numpy.ndarray", npy_head(head, len(head) + 1) + bytes(8))


BREAKING = {
    "an archive": Array("float64", (), "numpy.ndarray", b"PK\x03\x04" + bytes(60)),
    "a header without an end": file_of("{'descr': ("),
    "a header that nests": file_of("-" * 9000 + "1"),
    "objects": file_of("{'descr': '|O', 'fortran_order': False, 'shape': (), }"),
    "structures": file_of("{'descr': [('Bern', '<f8')], 'fortran_order': False, 'shape': (), }"),
    "more than there is": Array(
        "float64",
        (10**13,),
        "numpy.ndarray",
        npy_head("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"),
    ),
}


@pytest.mark.parametrize("array", BREAKING.values(), ids=BREAKING)
def test_an_array_that_breaks_a_reader_is_no_model(array, caplog):
    _, gathered = one_round()
    hostile = model_reply()
    hostile["arrays"]["double"] = array
    assert gathered([*(model_reply() for _ in range(4)), hostile]).missing == 1
    assert "node 5 counts as missing: its array 'double' cannot be used" in caplog.text
    assert "Bern" not in caplog.text


# Who takes part -------------------------------------------------------------------------------------------------


def test_nodes_beyond_the_users_are_not_asked():
    _, grid = train([moved(0.1)] * 5, nodes=7)
    assert [message.metadata.dst_node_id for message in grid.sent] == [1, 2, 3, 4, 5]


def test_where_clients_come_and_go_nothing_says_how_many_there_are(caplog):
    """A node is a user, and a user may be added or removed: by poisson cohorts, at least."""
    caplog.set_level(logging.INFO)
    method = strategy(users=51, sampling="poisson", cohort=5)
    with ClientGrid(clients([moved(0.1)] * 37), 37) as grid, pytest.raises(RunFailed, match="too few users") as told:
        method.start(grid, record(INITIAL), roster_timeout=0.3)
    assert "37" not in f"{told.value} {caplog.text}"


def test_too_few_nodes_count_as_missing_or_end_the_run_before_it_starts():
    result, _ = train([moved(0.1)] * 5, nodes=4)
    assert result.missing_users == 1
    with pytest.raises(RunFailed, match=r"_timeout = 0 s \(3 nodes were registered\): .* needs 4 of the 5;"):
        train([moved(0.1)] * 5, nodes=3)


def test_the_strategy_waits_until_all_nodes_are_registered():
    class Late(ClientGrid):
        asked, complete = 0, False

        def get_node_ids(self):
            self.asked += 1
            return self._node_ids[: self.asked + 2][::-1]

    with Late(clients([moved(0.1)] * 5), 5) as grid:
        result = strategy().start(grid, record(INITIAL), roster_timeout=30)
    assert (grid.asked, result.missing_users) == (3, 0)


# Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_guarantee_says_who_is_protected_before_the_run_and_is_the_ledgers_after_it(kind):
    method = strategy(kind, users=5, rounds=3)
    before = method.plan.guarantee
    assert (before.unit, before.relation, before.delta) == ("user", "replace_one", 1e-4)
    assert any("a node is a user" in assumption for assumption in before.assumptions)
    assert not any("nodes clip" in assumption for assumption in before.assumptions)
    with ClientGrid(clients([moved(0.1)] * 5), 5) as grid:
        result = method.start(grid, record(INITIAL))
    assert result.guarantee == before
    assert result.rounds[-1].spent_epsilon == pytest.approx(before.epsilon, rel=1e-3)
    with ClientGrid(clients([moved(0.1)] * 5), 5) as grid, pytest.raises(BadInput, match="has run already"):
        method.start(grid, record(INITIAL))


@pytest.mark.parametrize("kind", WITH_A_CLIP)
def test_before_the_model_is_known_a_plan_states_no_noise_and_numbers_that_hold_for_any_model(kind):
    method = strategy(kind, users=200, clip_norm=0.5)
    known = method.plan_for(record({"weights": np.zeros(4000)}))
    assert (method.plan.noise, method.plan.forecast, method.plan.drowned) == (None, None, False)
    assert "known once start has initial_arrays" in method.plan.warnings[0]
    assert method.plan.numbers
    assert method.plan.numbers.items() <= known.numbers.items()
    assert known.noise == pytest.approx(20 * method.plan_for(record({"weights": np.zeros(10)})).noise)
    assert method.plan_for(record(INITIAL)).guarantee == method.plan.guarantee


@pytest.mark.parametrize("kind", WITH_A_CLIP)
def test_a_plan_whose_noise_drowns_the_updates_warns_before_and_during_the_run(kind, caplog):
    method = strategy(kind, users=200, clip_norm=0.5, rounds=8)
    assert not method.plan_for(record({"weights": np.zeros(10)})).warnings
    method = strategy(kind, clip_norm=0.5, epsilon=1.0)
    with ClientGrid(clients([moved(0.1)] * 5), 5) as grid:
        result = method.start(grid, record(INITIAL))
    assert method.plan.noise > method.plan.signal
    assert "noise drowns the updates" in method.plan.warnings[-1]
    assert f"{method.plan.noise:.3g}" in method.plan.warnings[-1]
    assert any("noise drowns" in line for line in caplog.messages)
    assert not any("[strategy]" in line for line in (*method.plan.warnings, *caplog.messages))  # there is none
    assert method.plan == method.plan_for(record(INITIAL))
    assert result.rounds


def logged(method, replies, **start):
    """Return the result of a run, and the lines that it writes to Flower's logger."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda line: lines.append(line.getMessage())
    flower = logging.getLogger("flwr")
    flower.addHandler(handler)
    try:
        with ClientGrid(clients(replies), len(replies)) as grid:
            result = method.start(grid, record(INITIAL), **({"roster_timeout": 0} | start))
    finally:
        flower.removeHandler(handler)
    return result, [line for line in lines if "Waiting" not in line]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_logged_as_those_of_flowers_own_strategies_with_what_it_spends(kind):
    method, seen = strategy(kind, users=6, rounds=3, max_missing=0.5), []
    replies = [moved(0.1)] * 5 + [ValueError("no")]
    measured = {"evaluate_fn": lambda at, arrays: MetricRecord({"accuracy": 0.5}), "on_round": seen.append}
    result, lines = logged(method, replies, **measured)
    promise = str(method.plan.guarantee)
    assert lines[0] == f"Starting {kind.__name__} strategy: 3 rounds of 6 of 6 users"
    assert lines[2].endswith(f"Guarantee: {promise}")
    at = [lines.index(f"[ROUND {number}/3]") for number in (1, 2, 3)]
    for start, entry in zip(at, result.rounds, strict=True):
        asked, received, spent, metrics = lines[start + 1 : start + 5]
        assert asked == "configure_train: Planned cohort of 6 users (out of 6)"
        assert received.startswith("aggregate_train: 1 failures")
        assert float(rounded_up(entry.spent_epsilon)) >= entry.spent_epsilon
        assert f"epsilon {rounded_up(entry.spent_epsilon)} of {rounded_up(result.guarantee.epsilon)} is spent" in spent
        assert "{'accuracy': 0.5}" in metrics
    assert lines[-2].startswith("Strategy execution finished in ")
    assert lines[-1] == f"Guarantee: {promise}"
    assert seen == result.rounds


def test_no_line_of_a_run_depends_on_what_a_user_sends():
    """Times aside; an update that is not finite is counted in the result alone."""
    logs = []
    for odd in (moved(0.1), moved(0.1) | {"double": np.array(np.nan)}, moved(-50.0)):
        _, lines = logged(strategy(rounds=2), [moved(0.1)] * 4 + [odd])
        logs.append([re.sub(r"[\d.e-]+ s$", "", line) for line in lines])
    assert logs[0] == logs[1] == logs[2]


def test_noise_differs_between_runs_unless_a_seed_is_given():
    first, second = (train([INITIAL] * 5, seed=None)[0] for _ in range(2))
    assert np.all(vector(first) != vector(second))


def test_what_the_clients_decide_and_what_is_no_option_is_refused():
    with pytest.raises(BadInput, match="local_steps is for the clients to choose"):
        strategy(local_steps=3)
    with pytest.raises(BadInput, match="local_rate is for the clients to choose"):
        strategy(DropInAdaptiveClipping, local_rate=0.1)
    with pytest.raises(BadInput, match="at least 1/n"):
        strategy(users=10, delta=0.2)
    for more in ({"compare_with_initial": True}, {"preparation": LearnCoordinates}):
        with pytest.raises(BadInput, match="clients of an ordinary Flower app cannot answer"):
            strategy(**more)


WRONG = {
    "an option of start": (
        {"roster_timeout": 120},
        r"give it to start: strategy\.start\(\.\.\., roster_timeout=\.\.\.\)",
    ),
    "no option": ({"clip": 1.0}, r"clip is no option of DropIn\w+: leave it out; options are .*clip_norm"),
    "a share of clients": (
        {"fraction_train": 0.5},
        r"fraction_train is no option of DropIn\w+: give cohort, the number",
    ),
    "who evaluates": (
        {"fraction_evaluate": 0.5},
        "no option of .*: give held_out, a number of further nodes, or leave",
    ),
    "users in text": ({"users": "5"}, "data.users = '5'"),
    "part of a user": ({"users": 400.5}, "data.users = 400.5"),
    "no users": ({"users": None}, "data.users = None"),
    "a flag for users": ({"users": True}, "data.users = True"),
    "more users than there are people": ({"users": 10**12}, "data.users = 1000000000000: .* 1 to 1,000,000,000"),
    "more nodes than there are people": ({"held_out": 10**12, "metrics": {"a": (0, 1)}}, "held_out = 1000000000000: "),
    "metrics without ranges": ({"held_out": 9, "metrics": ["a"]}, r"metrics = \['a'\]: give the public range of each"),
    "a metric in text": ({"held_out": 9, "metrics": {"a": "01"}}, r"metrics = \{'a': '01'\}: give the public range"),
    "half a range": ({"held_out": 9, "metrics": {"a": 1}}, r"metrics = \{'a': 1\}: give the public range of each"),
    "epsilon in text": ({"epsilon": "1"}, "privacy.epsilon = '1' is a str: give a number"),
    "a flag for epsilon": ({"epsilon": True}, "privacy.epsilon = True is a bool"),
    "rounds in text": ({"rounds": "x"}, "strategy.rounds = 'x'"),
    "part of a node": ({"held_out": 2.5, "metrics": {"a": (0, 1)}}, "held_out = 2.5: it is a number of nodes"),
    "a flag for nodes": ({"held_out": True, "metrics": {"a": (0, 1)}}, "held_out = True: it is a number of nodes"),
    "one pattern": ({"frozen": "0.*"}, r"frozen = '0\.\*': give patterns"),
    "numbered arrays": ({"nonnegative": (3,)}, r"nonnegative = \(3,\): give patterns"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_a_setting_of_another_kind_is_refused_in_a_sentence(kind, options, said):
    with pytest.raises(BadInput, match=said):
        strategy(kind, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_strategy_to_wrap_is_refused_and_what_the_refusal_says_to_write_works(kind):
    with pytest.raises(BadInput, match="takes the place of FedAvg and wraps no strategy: write ") as told:
        kind(FedAvg(), users=5, epsilon=1.0, delta=1e-4)
    said = re.search(r"write (.*), with", str(told.value)).group(1)
    assert eval(said, {kind.__name__: kind}).plan.users == 200


@pytest.mark.parametrize("kind", KINDS)
def test_the_options_that_a_refusal_names_can_be_given(kind):
    with pytest.raises(BadInput, match="options are ") as told:
        strategy(kind, clip=1.0)
    fields = kind.strategy.model_fields
    for option in str(told.value).partition("options are ")[2].split(", "):
        strategy(kind, **{option: fields[option].default})


def test_what_held_out_clients_alone_would_get_is_said_where_there_are_none(caplog):
    train([INITIAL] * 5, start={"evaluate_config": ConfigRecord({"batch": 32})})
    assert "evaluate_config is not sent" in caplog.text


def test_starting_needs_a_model_and_the_planned_rounds():
    with ClientGrid(clients([]), 1) as grid:
        with pytest.raises(BadInput, match="initial_arrays is missing"):
            strategy().start(grid)
        with pytest.raises(BadInput, match="num_rounds = 4"):
            strategy().start(grid, record(INITIAL), num_rounds=4)
        for more in ({"keeper": object()}, {"resumed": object()}):
            with pytest.raises(BadInput, match="such a run cannot be resumed: do not pass keeper"):
                strategy().start(grid, record(INITIAL), **more)
        with pytest.raises(BadInput, match="call start with initial_arrays"):
            strategy().configure_train(1, record(INITIAL), ConfigRecord(), grid)


def test_the_server_evaluates_and_flowers_own_result_has_it():
    result, _ = train([INITIAL] * 5, start={"evaluate_fn": lambda at, arrays: MetricRecord({"names": len(arrays)})})
    assert {at: dict(metrics) for at, metrics in result.evaluate_metrics_serverapp.items()} == {
        0: {"names": 5.0},
        1: {"names": 5.0},
    }


def test_the_server_does_not_know_the_loss():
    loss, block = ClientSideLoss(2), Block(np.zeros((1, 1), np.float32), np.array([0, 1]), None)
    for ask in (loss.user_gradients, loss.sample_gradients, loss.sample_losses):
        with pytest.raises(BadInput, match="not known to the server"):
            ask(np.zeros(2), block)
    with pytest.raises(BadInput, match="not known to the server"):
        loss.bound(block)


# The layout -----------------------------------------------------------------------------------------------------


def test_frozen_arrays_keep_their_value_and_do_not_use_up_the_clip():
    layout = ModelLayout(record(INITIAL), frozen=("half", "sing*"))
    assert layout.dimension == 1
    after = layout.record(np.array([5.0]))
    assert after["double"].numpy() == 5.0
    np.testing.assert_array_equal(after["single"].numpy(), INITIAL["single"])
    with pytest.raises(BadInput, match="frozen = 'triple' matches no array"):
        ModelLayout(record(INITIAL), frozen=("triple",))


def test_variances_stay_nonnegative_and_huge_values_within_their_type():
    layout = ModelLayout(record(INITIAL | {"0.running_var": np.ones(2)}), nonnegative=("*running_var",))
    after = layout.record(np.full(layout.dimension, -1e6))
    np.testing.assert_array_equal(after["0.running_var"].numpy(), [0.0, 0.0])
    np.testing.assert_array_equal(after["half"].numpy(), np.full(2, np.finfo(np.float16).min))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.array([1, 2])}, r"no float array to train \('a' of int64\)"),
        ({"a": np.array([1.0, np.nan])}, "not finite"),
        ({"a": np.array([1j])}, r"\['a'\] is of type complex128: give plain numbers, as by .astype\('float32'\)"),
        ({"a": np.array([1.0], dtype=">f4")}, r"\['a'\] is of type >f4"),
        ({}, "no array"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(arrays, message):
    with pytest.raises(BadInput, match=message):
        ModelLayout(record(arrays))


def test_layouts_go_there_and_back():
    layout = ModelLayout(record(INITIAL))
    x = layout.vector(record(INITIAL))
    np.testing.assert_array_equal(x, [0.5, -0.25, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(layout.vector(layout.record(x)), x)
