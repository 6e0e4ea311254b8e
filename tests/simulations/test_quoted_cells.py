"""No cell of a table is quoted: tables with every kind of fault, through every door, with one number in every cell.

What people and machines may see of a failure is gathered: the text of the error and of those it is chained to, the
log, standard output and error, replies of nodes, and every file that is left. `MARK` is in none of it.
"""

import gzip
import io
import json
import logging
import traceback
import warnings
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from examples import call
from flwr.app import Message, MessageType
from helpers import federation_of
from helpers_flower import ClientGrid
from typer.testing import CliRunner

import simulations.runs.run
import userdp
from simulations.deployment.__main__ import app as deployment
from simulations.flower import node_of
from simulations.runs.silos import FILE
from strategies import client_app
from strategies.core.mean_rounds import MeanRounds
from strategies.wire.protocol import roster_question
from userdp import Logistic, Node, find, load_model, plan, train
from userdp.data import read_table
from userdp.data.tables.reading import names_of
from userdp.errors import BadInput, MissingColumn
from userdp.nodes.computations import Computation
from userdp.nodes.row_maker import RowMaker
from userdp.sklearn import PrivateLinearRegression, PrivateLogisticRegression

MARK = "86420975"
ROUNDED = ("8.64e+07", "8.642e+07", "8.6421e+07", "8.64210e+07")
NAMES = ("pid", "slot", "age", "dose", "team", "born", "ill")
FORM = {
    "user": "pid",
    "features": ["age", "dose"],
    "ranges": {"age": [0, 100], "dose": [0, 10]},
    "categorical": {"team": ["red", "blue"]},
    "dates": {"born": ["1950-01-01", "2030-12-31"]},
    "target": "ill",
    "positive": "yes",
}
RUN = FORM | {"problem": "logistic", "users": 8, "epsilon": 8.0, "delta": 1e-3, "test_fraction": 0.0}
RUN |= {"strategy": {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 1}, "output": {"anyway": True}}
PEOPLE, ROWS = 8, 16


def row(person, **changed):
    """One line of the table: each cell holds the mark, but for those that a fault leaves as they should be."""
    cells = {"pid": f"p{MARK}-{person}", "slot": str(person), "age": f"{MARK}.{person}", "dose": f"{MARK}{person}"}
    cells |= {"team": f"t{MARK}", "born": f"31.02.{MARK}", "ill": f"{MARK}"} | changed
    return [cells[name] for name in NAMES]


LINES = [row(index % PEOPLE) for index in range(ROWS)]


def text(lines, header=NAMES, mark=",", end="\n"):
    return end.join(mark.join(line) for line in ([header] if header else []) + lines) + end


def parquet(columns=None):
    file = io.BytesIO()
    made = {name: [line[at] for line in LINES] for at, name in enumerate(NAMES)} | (columns or {})
    pq.write_table(pa.table(made), file)
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/sheet1.xml", text(LINES))
    return file.getvalue()


def named_by_cells():
    """A Parquet file that was made from a CSV file without a header: its first person's cells name its columns."""
    file = io.BytesIO()
    pq.write_table(pa.table({name + str(at): [1] * ROWS for at, name in enumerate(LINES[0])}), file)
    return file.getvalue()


FAULTS = {
    "no header.csv": text(LINES, None),
    "no header, one cell like a name.csv": text([[*LINES[0][:6], "dose"], *LINES[1:]], None),
    "no header, semicolons.csv": text(LINES, None, ";"),
    "no header, tabs.csv": text(LINES, None, "\t"),
    "semicolons.csv": text(LINES, mark=";"),
    "a mixed header.csv": text(LINES, NAMES, ";").replace(";", ",", 1),
    "a header below the first person.csv": text([list(NAMES), *LINES], LINES[0]),
    "one name misspelt.csv": text(LINES, ("pid", "slot", "age", "dosis", "team", "born", "ill")),
    "one name twice.csv": text([[*line, line[2]] for line in LINES], (*NAMES, "age")),
    "every name misspelt.csv": text(LINES, tuple(f"{name}_x" for name in NAMES)),
    "cells that are not as declared.csv": text(LINES),
    "text for numbers.csv": text([row(at % PEOPLE, age=f"x{MARK}", dose=f"y{MARK}") for at in range(ROWS)]),
    "no cells.csv": text([row(at % PEOPLE, age="", dose="nan", team="", born="", ill="") for at in range(ROWS)]),
    "nobody.csv": text([row(at, pid="") for at in range(ROWS)]),
    "endless numbers.csv": text([row(at % PEOPLE, age=MARK * 700, dose="1e" + MARK) for at in range(ROWS)]),
    "wider rows.csv": text([[*line, *line] for line in LINES]),
    "one wider row.csv": text([*LINES[:9], [*LINES[9], *LINES[9]], *LINES[10:]]),
    "shorter rows.csv": text([line[:3] for line in LINES]),
    "an open quote.csv": text(LINES).replace(f"t{MARK}", f'"t{MARK}', 1),
    "carriage returns.csv": text(LINES, end="\r"),
    "zeros.csv": text(LINES).replace("t", "\0t"),
    "UTF-16.csv": text(LINES).encode("utf-16"),
    "Latin.csv": text([row(at % PEOPLE, team=f"\xe9{MARK}") for at in range(ROWS)]).encode("latin-1"),
    "gz.csv": gzip.compress(text(LINES).encode(), 0),
    "xlsx.csv": zipped(),
    "parquet.csv": parquet(),
    "json.csv": json.dumps([dict(zip(NAMES, line, strict=True)) for line in LINES]),
    "header alone.csv": ",".join(NAMES),
    "nothing.csv": "",
    "truncated.parquet": parquet()[:-40],
    "damaged.parquet": parquet()[:60] + b"\xff" * 60 + parquet()[120:],
    "csv.parquet": text(LINES),
    "xlsx.parquet": zipped(),
    "named by cells.parquet": named_by_cells(),
    "structs.parquet": parquet({"age": [{f"a{MARK}": 1}] * ROWS}),
    "lists.parquet": parquet({"dose": [[MARK]] * ROWS}),
    "bytes.parquet": parquet({"team": [MARK.encode() + b"\xff"] * ROWS}),
    "another.gz": gzip.compress(text(LINES).encode(), 0),
}


def frame_of(path):
    """The table as somebody reads it before it is given to Python, or None if that fails in front of userdp."""
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, low_memory=False)
    except Exception:
        return None


def configured(path, **settings):
    flat = {
        key: value for key, value in RUN.items() if key not in ("problem", "epsilon", "delta", "strategy", "output")
    }
    data = {"kind": "table", "path": str(path), **flat}
    return {
        "name": "cells",
        "data": data,
        "problem": {"kind": "logistic"},
        "privacy": {"epsilon": 8.0, "delta": 1e-3},
        "strategy": RUN["strategy"],
        "output": {"anyway": True, "directory": "runs"},
        **settings,
    }


def write_toml(raw):
    Path("file.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    return "file.toml"


FACTS = {"numbers": ["age", "dose"], "words": ["team"], "dates": ["born"]}
BUDGET = {"epsilon": 50.0, "delta": 1e-3}


def trained_model():
    """A model of people who are another hospital's, for tables that are predicted."""
    good = [row(at % PEOPLE, age="50", dose="5", team="red", born="2000-01-01", ill="yes") for at in range(ROWS)]
    Path("good.csv").write_text(text(good), encoding="utf-8")
    return train("good.csv", **RUN)


def of_frame(use):
    def door(path):
        if (frame := frame_of(path)) is not None:
            use(frame)

    return door


def fit(frame):
    inputs = frame.reindex(columns=["age", "dose"]) if "age" in frame else frame
    given = {"epsilon": 8.0, "delta": 1e-3, "classes": ["no", "yes"], "random_state": 1}
    for bounds in ({"age": (0, 100), "dose": (0, 10)}, None, (0, 1)):
        estimator = PrivateLogisticRegression(bounds=bounds, **given)
        for rows in (inputs, frame.to_numpy().ravel()):
            refused(estimator.fit, rows, frame.iloc[:, -1], groups=frame.iloc[:, 0])


def scored(frame):
    clean = pd.DataFrame({"age": np.arange(8.0), "dose": np.arange(8.0)})
    bounds = {"age": (0, 10), "dose": (0, 10)}
    common = {"epsilon": 8.0, "delta": 1e-3, "bounds": bounds, "rows_are_users": True, "random_state": 1}
    common["strategy"] = RUN["strategy"]
    classes = PrivateLogisticRegression(classes=[0, 1], **common).fit(clean, [0, 1] * 4)
    numbers = PrivateLinearRegression(target_range=(0, 1), **common).fit(clean, [0, 1] * 4)
    for model in (classes, numbers):
        for rows in (frame, frame.to_numpy(), frame.to_numpy().ravel()):
            refused(model.predict, rows)
        for targets in (frame.iloc[:8, -1], frame.to_numpy()[:8]):
            refused(model.score, clean, targets)


def node_of_frame(frame):
    declared = {key: value for key, value in FORM.items() if key not in ("categorical", "dates")}
    loss = Logistic(columns=2, feature_norm=2.0, radius=5.0)
    app = client_app(lambda _: frame, problem=loss, number="slot", **declared)
    with ClientGrid(app, 1) as grid:
        question = Message(roster_question(b"0" * 16, counts=True), 1, MessageType.QUERY)
        (reply,) = grid.send_and_receive([question])
    SEEN.append(str(reply))
    SEEN.append(str(reply.error if reply.has_error() else ""))


def failing_load(path):
    def load(_):
        raise ValueError(f"could not convert string to float: {path.read_bytes()!r}")

    with ClientGrid(client_app(load), 1) as grid:
        (reply,) = grid.send_and_receive([Message(roster_question(b"0" * 16, counts=True), 1, MessageType.QUERY)])
    SEEN.append(str(reply.error))


def silo(path):
    folder = Path("silo")
    folder.mkdir()
    (folder / FILE).write_bytes(path.read_bytes())
    run_config = {"settings": Path(write_toml(configured(path))).read_text(encoding="utf-8")}
    with ClientGrid(client_app(node_of), 1, run_config, [{"silo": str(folder)}]) as grid:
        (reply,) = grid.send_and_receive([Message(roster_question(b"0" * 16, counts=True), 1, MessageType.QUERY)])
    SEEN.append(str(reply.error))


def command(*words, app=None):
    done = call(*words) if app is None else CliRunner().invoke(app, [str(word) for word in words])
    SEEN.append(done.output)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


def query(path):
    raw = configured(path, ask=[{"statistic": "mean", "of": "age"}, {"statistic": "counts", "of": "team"}])
    raw["data"] = {key: value for key, value in raw["data"].items() if key not in ("target", "positive", "dates")}
    command("query", write_toml({key: raw[key] for key in ("name", "data", "privacy", "ask", "output")}))


def find_file(path):
    raw = {"data": {"path": str(path), "user": "pid", "all_users": PEOPLE}, "find": FACTS, "privacy": BUDGET}
    command("find", write_toml(raw))


def predicted(path):
    saved = trained_model().save("model")
    model = load_model(saved)
    refused(model.predict, path)
    refused(model.evaluate, path)
    for keep in ([], ["--keep", "pid"], ["--keep", "nobody"]):
        command("predict", saved, path, "--output", "p.csv", *keep)
        Path("p.csv").unlink(missing_ok=True)


def split(path):
    file = write_toml(configured(path))
    command("split", "--config", file, "--output", "silos", "--silos", "2", app=deployment)
    command("prepare", "--config", file, "--output", "own", app=deployment)


DOORS = {
    "read": lambda path: read_table(path, **FORM),
    "read in batches": lambda path: read_table(path, memory=0, **FORM),
    "read a frame": of_frame(lambda frame: read_table(frame, **FORM)),
    "read an Arrow table": of_frame(lambda frame: read_table(pa.Table.from_pandas(frame), **FORM)),
    "train": lambda path: train(path, **RUN),
    "train on a frame": of_frame(lambda frame: train(frame, **RUN)),
    "plan": lambda path: plan(path, **RUN),
    "run": lambda path: command("run", write_toml(configured(path))),
    "query": query,
    "find": lambda path: find(path, user="pid", all_users=PEOPLE, **FACTS, **BUDGET),
    "find in a frame": of_frame(lambda frame: find(frame, user="pid", all_users=PEOPLE, **FACTS, **BUDGET)),
    "find by a file": find_file,
    "predict": predicted,
    "prepare": split,
    "fit": of_frame(fit),
    "score": of_frame(scored),
    "node": of_frame(node_of_frame),
    "failing load": failing_load,
    "silo": silo,
}
SEEN: list[str] = []


def refused(attempt, *arguments, **named):
    """Note what a caller sees of a refusal, as Python shows it: with the errors that it is chained to."""
    try:
        attempt(*arguments, **named)
    except Exception as error:
        SEEN.append("".join(traceback.format_exception(error)))
        SEEN.append(repr(error.args))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("USERDP_DEBUG", raising=False)
    SEEN.clear()


def written(fault):
    Path("data").mkdir()
    path, content = Path("data").absolute() / f"table{Path(fault).suffix}", FAULTS[fault]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def check_nothing_is_quoted(attempt, *arguments, capfd, caplog, **named):
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        refused(attempt, *arguments, **named)
    SEEN.extend(str(one.message) for one in warned)
    SEEN.extend(map(logging.Formatter().format, caplog.records))
    SEEN.extend(capfd.readouterr())
    files = (file for file in Path("runs").rglob("*") if file.suffix in (".json", ".toml", ".csv", ".html"))
    SEEN.extend(file.read_text(encoding="utf-8") for file in files)
    told = "\n".join(SEEN)
    assert not [mark for mark in (MARK, *ROUNDED) if mark in told], told[max(0, told.find(MARK) - 1500) :][:3000]
    return told


@pytest.mark.sweep(60)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_cell_is_quoted(fault, door, capfd, caplog):
    check_nothing_is_quoted(DOORS[door], written(fault), capfd=capfd, caplog=caplog)


@pytest.mark.parametrize("door", DOORS)
def test_no_cell_of_a_table_without_a_header_is_quoted(door, capfd, caplog):
    check_nothing_is_quoted(DOORS[door], written("no header.csv"), capfd=capfd, caplog=caplog)


COLUMN = pd.Series([f"{MARK}{person}" for person in range(9)])


@pytest.mark.parametrize("call", [train, plan, userdp.find], ids=lambda call: call.__name__)
@pytest.mark.parametrize(
    "given", [COLUMN, COLUMN.to_numpy(), list(COLUMN), COLUMN.to_frame()], ids=lambda one: str(type(one))
)
def test_a_column_in_place_of_its_name_is_not_quoted(call, given, capfd, caplog):
    told = check_nothing_is_quoted(
        call, "table.csv", user=given, epsilon=1.0, delta=1e-6, all_users=9, capfd=capfd, caplog=caplog
    )
    assert "data.user = <" in told


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "no header.csv",
            "has no column 'pid' and too few of the others to tell whether it has a header: of 7 columns",
        ),
        ("semicolons.csv", 'it seems to be separated by .;.: write csv = { separator = ";" }'),
        (
            "no header, tabs.csv",
            r"none is quoted; add a header, pid,[a-z,]*\.\.\., .* if .* is its separator, write csv",
        ),
        ("one name misspelt.csv", "has no column 'dose'; it has pid, slot, age, dosis, "),
    ],
)
def test_a_missing_column_is_explained(fault, sentence):
    with pytest.raises(MissingColumn, match=sentence):
        read_table(written(fault), **FORM)


def test_names_are_quoted_of_a_header_alone():
    declared = ["pid", "age", "dose", "ill"]
    assert names_of(declared, ["pid", "age", "a", "b", "c"]) == []  # half of them may be a coincidence
    assert names_of(declared, ["pid", "age", "dose", "x" * 41]) == ["pid", "age", "dose"]
    assert names_of(declared, [" pid", "age "]) == [" pid", "age "]
    assert len(names_of(declared, [*declared, *map(str, range(50))])) == 20
    assert names_of([], ["Anna"]) == []


@pytest.mark.parametrize("names", [["34", "1.5"], ["Anna;34;1.5"], ["Anna\t34"], ["x" * 41]])
def test_an_estimator_refuses_names_that_look_like_cells(names):
    frame = pd.DataFrame(np.ones((4, len(names))), columns=names)
    estimator = PrivateLinearRegression(
        epsilon=1.0, delta=1e-6, bounds=(0, 1), target_range=(0, 1), rows_are_users=True
    )
    with pytest.raises(BadInput, match="look like the cells of a table that has no header") as caught:
        estimator.fit(frame, np.ones(4))
    assert not any(name in str(caught.value) for name in names)


def test_what_a_loss_says_is_shown_where_whole_tracebacks_are_asked_for(capfd, caplog, monkeypatch):
    problem, users = Logistic(columns=1, feature_norm=2.0, radius=5.0), np.arange(2)

    def quotes(*_):
        raise ValueError(f"could not convert {MARK}")

    monkeypatch.setattr(RowMaker, "_drawn", quotes)

    def node():
        return Node(problem, federation_of(np.ones((2, 1, 1)), targets=np.ones(2)), users)

    asked = problem.initial(), users, Computation(clip_norm=1.0)
    told = check_nothing_is_quoted(node().compute, *asked, capfd=capfd, caplog=caplog)
    assert "the loss fails on users' data (ValueError in test_quoted_cells.py, line " in told
    monkeypatch.setenv("USERDP_DEBUG", "1")
    node().compute(*asked)
    assert f"(ValueError: could not convert {MARK}): each such user" in caplog.text


def test_an_error_of_a_run_is_chained_to_no_text_of_others(monkeypatch, capfd, caplog):
    monkeypatch.setattr(MeanRounds, "take", Mock(side_effect=KeyError(MARK)))
    told = check_nothing_is_quoted(trained_model, capfd=capfd, caplog=caplog)
    assert "RunFailed: unexpected KeyError in " in told


def test_a_defect_behind_the_command_quotes_no_data(monkeypatch, capfd, caplog):
    monkeypatch.setattr(simulations.runs.run, "run", Mock(side_effect=ZeroDivisionError(MARK)))
    (path := Path("table.csv")).write_text(text(LINES), encoding="utf-8")
    told = check_nothing_is_quoted(DOORS["run"], path, capfd=capfd, caplog=caplog)
    assert "unexpected ZeroDivisionError" in told
