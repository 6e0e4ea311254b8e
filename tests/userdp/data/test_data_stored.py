"""A table whose samples lie in a file is the table in memory, bit for bit, and leaves nothing behind."""

import errno
import gc
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import ColumnarFederation, Derivation, SequenceColumns, read_table, split, stored
from userdp.data.stored import SampleFile, StoredFederation
from userdp.data.tables import streamed
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

PICTURE = 3
FORMS = {
    "numbers": {
        "features": ["a", "b"],
        "ranges": {"a": [0, 2], "b": [-1, 1]},
        "categorical": {"c": ["red", "blue"]},
        "impute": {"b": 0.5, "c": "own level"},
        "missing_indicators": ["b"],
        "derive": {
            "root": Derivation(kind="log1p", of=["a"], range=[0, 1], otherwise=0.5),
            "more": Derivation(kind="difference", of=["a", "b"], range=[-1, 1]),
        },
        "target": "t",
        "target_range": [0, 1],
    },
    "classes": {"features": ["a"], "ranges": {"a": [0, 2]}, "target": "c", "positive": "red"},
    "plain target": {"categorical": {"c": ["green"]}, "target": "t"},
    "code": {"codes": "c", "levels": ["red", "blue"]},
    "codes": {"codes": ["c", "n"], "levels": {"c": ["red", "blue"], "n": 3}, "impute": {"n": 1}, "target": "t"},
    "pictures": {"images": "p", "image_shape": [PICTURE], "target": "n"},
    "dates": {
        "dates": {"d": ["1980-01-01", "1980-01-11"]},
        "date_parts": {"d": ["hour"], "c": ["weekday"]},
        "date_formats": {"d": "%d.%m.%Y"},
        "derive": {"age": Derivation(kind="days_between", of=["d", "c"], range=[-5, 5], otherwise=0)},
    },
}
NUMBERS = st.one_of(st.none(), st.floats(-2, 3, width=32), st.sampled_from([np.nan, np.inf, 1e300]))
ROW = st.tuples(
    st.integers(0, 6),
    NUMBERS,
    NUMBERS,
    st.sampled_from(["red", "blue", "green", "", None, "1980-01-02"]),
    st.one_of(st.none(), st.integers(-1, 3)),
    NUMBERS,
    st.one_of(st.none(), st.binary(min_size=PICTURE - 1, max_size=PICTURE)),
    st.sampled_from([None, "soon", "1979-12-31", "1980-01-04T07:00", "1980-01-11", "2.1.1980", "9999-12-31"]),
)
COLUMNS = {"who": None, "a": pa.float64(), "b": pa.float64(), "c": pa.string(), "n": pa.int64(), "t": pa.float64()}
COLUMNS |= {"p": pa.binary(), "d": pa.string()}


def write(folder, rows, group=100):
    """Rows as a Parquet file; every third user is held out."""
    cells = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    table = {name: pa.array(cells[name], type=kind) for name, kind in COLUMNS.items()}
    table["part"] = pa.array(["test" if user % 3 == 0 else "train" for user in cells["who"]])
    path = Path(folder) / "table.parquet"
    pq.write_table(pa.table(table), path, row_group_size=group)
    return path


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A table of 600 rows of 40 users, in no order."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.normal(size=600) for name in "ab"} | {"who": rng.integers(0, 40, 600)})
    table["t"] = rng.uniform(0, 1, 600)
    path = tmp_path_factory.mktemp("people") / "people.parquet"
    table.to_parquet(path, index=False)
    return path


FORM = {"user": "who", "features": ["a", "b"], "ranges": {"a": [-1, 1], "b": [-1, 1]}, "target": "t"}


def small(patch, block, gap=8):
    """Batches, parts and pieces of a few samples."""
    patch.setattr(streamed, "BLOCK_BYTES", block)
    patch.setattr(streamed, "_OWNER_ROWS", max(1, block // 20))
    patch.setattr(stored, "BLOCK_BYTES", block)
    patch.setattr(stored, "_GAP_BYTES", gap)


def bits(block):
    targets = b"" if block.targets is None else block.targets.tobytes()
    return block.features.dtype, block.features.shape, block.features.tobytes(), targets, block.offsets.tolist()


def parts(table):
    """Everybody, and what a run makes of them: nested selections."""
    train, test = split(table.federation, test_users=1) if table.federation.users > 1 else (table.federation,) * 2
    return table.federation, train, test, train.select(np.arange(train.users)[::-1])


@settings(max_examples=40)
@given(
    st.lists(ROW, min_size=1, max_size=40),
    st.sampled_from(list(FORMS)),
    st.integers(1, 7),
    st.integers(1, 400),
    st.integers(0, 40),
    st.tuples(st.integers(1, 2), st.sampled_from([None, 2, 3]), st.sampled_from([None, 1]), st.booleans()),
    st.randoms(use_true_random=False),
)
def test_the_same_samples_in_the_same_order_with_the_same_counts(rows, form, group, block, gap, limits, order):
    fewest, most, users, marked = limits
    held_out = {"split_column": "part", "split_test": "test"} if marked else {}
    options = {"user": "who", "seed": 3, **FORMS[form], **held_out, "users": users, "max_samples": most}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = write(folder, rows, group)
        sizes = pd.Series([row[0] for row in rows]).value_counts()
        options["min_samples"] = fewest if (sizes >= fewest).any() else 1
        whole = read_table(path, **options)
        small(patch, block, gap)
        table = read_table(path, memory=0, **options)
        assert isinstance(whole.federation, ColumnarFederation)
        assert isinstance(table.federation, StoredFederation)
        assert table.report == whole.report
        assert table.labels.tolist() == whole.labels.tolist()
        assert table.feature_names == whole.feature_names
        assert (table.held_out is None) == (whole.held_out is None)
        assert table.held_out is None or table.held_out.tolist() == whole.held_out.tolist()
        for here, there in zip(parts(table), parts(whole), strict=True):
            assert (here.columns, here.sample_bytes, here.sizes.tolist()) == (
                *(there.columns, there.sample_bytes),
                there.sizes.tolist(),
            )
            everybody = list(range(here.users))
            some = order.sample(everybody, order.randint(1, here.users))
            for users in (everybody, some, sorted(some), [some[0], some[0]]):
                assert bits(here.block(np.array(users))) == bits(there.block(np.array(users)))


def test_the_file_says_what_fits(people):
    """The file has 600 samples of 12 bytes."""
    assert isinstance(read_table(people, memory=1, **FORM).federation, ColumnarFederation)
    assert isinstance(read_table(people, memory=0, **FORM).federation, StoredFederation)
    columns = streamed.Columns(**FORM)
    wide = columns.__class__(user="who", images="p", image_shape=[1 << 20], target="t")
    rows = [(0, *[None] * 7)] * 3
    path = write(people.parent, rows)
    sample = ((1 << 20) + 1) * 4
    assert streamed.outgrows(path, wide, 3 * sample // (1 << 20))
    assert not streamed.outgrows(path, wide, 3 * sample // (1 << 20) + 1)


def test_what_cannot_be_read_in_batches_stays_in_memory(tmp_path):
    table = pd.DataFrame({"who": ["a", "a", "b"], "c": [0, 1, 1], "a": [0.1, 0.2, 0.3]})
    table.to_parquet(tmp_path / "table.parquet")
    table.to_csv(tmp_path / "table.csv")
    hashed = {"codes": ["c"], "buckets": 10}
    window = {"sequence": SequenceColumns(predict="c", levels=2, window=1)}
    numbers = {"features": ["a"], "ranges": {"a": [0, 1]}}
    assert read_table(tmp_path / "table.parquet", user="who", memory=0, **numbers).federation.stored
    assert not read_table(tmp_path / "table.parquet", user="who", memory=0, **hashed).federation.stored
    assert not read_table(tmp_path / "table.csv", user="who", memory=0, **numbers).federation.stored
    assert not streamed.outgrows(tmp_path / "table.parquet", streamed.Columns(user="who", **window), 0)


def test_a_node_answers_the_same_and_counts_the_same(people, monkeypatch):
    whole, table = read_table(people, **FORM), read_table(people, memory=0, **FORM)
    small(monkeypatch, 500)
    monkeypatch.setattr("userdp.data.federation.BLOCK_BYTES", 500)
    problem, x, users = Quadratic(2, bound=0.4, radius=1.0), np.array([0.1, -0.2]), np.arange(5, 40)
    here, there = (Node(problem, each.federation, users) for each in (table, whole))
    assert here.clipped_samples == there.clipped_samples > 0
    assert here._samples._kept == 0  # nothing but a block is ever in memory
    for computation in (Computation(), Computation(reduce="sum", clip_norm=0.3)):
        answers = [node.compute(x, users[::2], computation) for node in (here, there)]
        np.testing.assert_array_equal(answers[0].values, answers[1].values)


def test_blocks_are_read_in_pieces(people, monkeypatch):
    """Never more at once than a piece, however users lie: 80 of every 100 are those of a training part."""
    whole, table = read_table(people, **FORM), read_table(people, memory=0, **FORM)
    some = np.delete(np.arange(table.federation.users), np.arange(0, table.federation.users, 5))
    small(monkeypatch, 2000, gap=10**6)
    lengths, read = [], SampleFile.read_into

    def seen(self, start, samples):
        lengths.append(len(samples[0]))
        read(self, start, samples)

    monkeypatch.setattr(SampleFile, "read_into", seen)
    block = table.federation.block(some)
    assert max(lengths) * table.federation.sample_bytes <= 2000
    assert len(lengths) < len(some)
    assert sum(lengths) > block.samples  # those of users between others are read along
    assert bits(block) == bits(whole.federation.block(some))


def test_nobody_else_can_open_the_file_and_it_goes_with_its_holder(people, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = read_table(people, memory=0, **FORM)
    handle = table.federation._file._handle()
    found = os.fstat(handle)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_nlink == 0
    assert list(tmp_path.iterdir()) == []
    assert found.st_dev == tmp_path.stat().st_dev
    del table
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


@pytest.mark.slow
def test_a_killed_process_leaves_nothing(people, tmp_path):
    script = (
        "import sys\nfrom userdp.data import read_table\n"
        f"table = read_table({str(people)!r}, memory=0, **{FORM!r})\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout.readline() == b"ready\n"
        assert any(str(tmp_path) in os.readlink(one) for one in Path(f"/proc/{child.pid}/fd").iterdir())
        child.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_reads_the_same_file_while_it_is_there(people):
    federation = read_table(people, memory=0, **FORM).federation
    expected = bits(federation.block(np.array([7])))
    pickled = pickle.dumps(federation)
    assert len(pickled) < 4000  # no samples
    copy = pickle.loads(pickled)
    assert bits(copy.block(np.array([7]))) == expected
    assert bits(pickle.loads(pickle.dumps(copy)).block(np.array([7]))) == expected
    del federation
    gc.collect()
    assert bits(copy.block(np.array([7]))) == expected
    late = pickle.loads(pickled)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"this process cannot open: use engine\.kind = 'local'"):
            late.block(np.array([7]))


def test_a_copy_does_not_take_another_file_for_its_own(people):
    """On another machine the same number may be that of any file."""
    one, other = (read_table(people, memory=0, **FORM).federation for _ in range(2))
    copy = pickle.loads(pickle.dumps(one))
    copy._file._path = f"/proc/self/fd/{other._file._handle()}"
    with pytest.raises(BadInput, match="this process cannot open"):
        copy.block(np.array([0]))


FAILURES = {
    "disk_usage": (stored.shutil, SimpleNamespace(free=7000), r"larger than data\.memory.* in /.*0 MiB are free there"),
    "gettempdir": (stored.tempfile, PermissionError(), r"cannot be written \(PermissionError\)"),
    "TemporaryFile": (stored.tempfile, PermissionError(), r"cannot be written \(PermissionError\)"),
    "pwrite": (stored.os, OSError(errno.ENOSPC, "No space left on device"), "set TMPDIR.*No space left on device"),
    "preadv": (stored.os, OSError(errno.ENOSPC, "No space left on device"), "set TMPDIR.*No space left on device"),
}


@pytest.mark.parametrize("call", FAILURES)
def test_a_disk_that_is_full_or_fails_is_told_with_its_folder_and_what_to_do(people, monkeypatch, call):
    module, found, told = FAILURES[call]

    def fail(*_, **__):
        if isinstance(found, OSError):
            raise found
        return found

    folder = tempfile.gettempdir() if module is stored.os else ""
    monkeypatch.setattr(module, call, fail)
    with pytest.raises(BadInput, match=told) as caught:
        read_table(people, memory=0, **FORM)
    assert f"{folder} (set TMPDIR" in str(caught.value)


def test_a_file_that_was_cut_short_and_less_memory_than_none_are_refused(people):
    federation = read_table(people, memory=0, **FORM).federation
    os.truncate(f"/proc/self/fd/{federation._file._handle()}", 100)
    with pytest.raises(BadInput, match="cut short"):
        federation.block(np.arange(federation.users))
    with pytest.raises(BadInput, match="memory"):
        read_table(people, memory=-1, **FORM)


def test_what_the_disk_takes_in_pieces_is_written_whole(people, monkeypatch):
    whole, pwrite, preadv = read_table(people, **FORM).federation, os.pwrite, os.preadv
    monkeypatch.setattr(stored.os, "pwrite", lambda file, data, place: pwrite(file, data[:100], place))
    monkeypatch.setattr(stored.os, "preadv", lambda file, data, place: preadv(file, [data[0][:70]], place))
    federation = read_table(people, memory=0, **FORM).federation
    assert bits(federation.block(np.arange(40))) == bits(whole.block(np.arange(40)))


def test_the_complaints_about_a_table_in_batches(people, tmp_path):
    with pytest.raises(BadInput, match="has no column 'z'"):
        read_table(people, memory=0, **FORM | {"features": ["z"], "ranges": {"z": [0, 1]}})
    dates = pd.DataFrame({"who": [1], "d": pd.to_datetime(["2024-01-01"])})
    dates.to_parquet(tmp_path / "dates.parquet")
    with pytest.raises(BadInput, match="not numbers"):
        read_table(tmp_path / "dates.parquet", user="who", features=["d"], ranges={"d": [0, 1]}, memory=0)
    path = tmp_path / "nobody.parquet"
    pd.DataFrame({"who": ["ann", "bob", "ann", None], "a": 0.5}).to_parquet(path)
    with pytest.raises(BadInput, match=r"1 cell \(the first in row 4\) without a user"):
        read_table(path, user="who", features=["a"], ranges={"a": [0, 1]}, memory=0)


def test_a_file_damaged_in_its_middle_is_told(people, tmp_path):
    content = bytearray(people.read_bytes())
    content[4:200] = b"\xff" * 196
    path = tmp_path / "damaged.parquet"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read as parquet"):
        read_table(path, memory=0, **FORM)


@pytest.mark.parametrize("rows", [599, 601])
def test_a_file_that_changes_while_it_is_read_is_refused(people, tmp_path, monkeypatch, rows):
    path = tmp_path / "growing.parquet"
    table = pd.read_parquet(people)
    table.to_parquet(path)
    owners = streamed.read_owners

    def then_changed(*arguments):
        found = owners(*arguments)
        pd.concat([table, table])[:rows].to_parquet(path)
        return found

    monkeypatch.setattr("userdp.data.tables.tabular.read_owners", then_changed)
    with pytest.raises(BadInput, match="changed while it was read"):
        read_table(path, memory=0, **FORM)
