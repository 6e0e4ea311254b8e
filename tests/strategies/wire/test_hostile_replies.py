"""No reply can end the run for everybody, touch other users' rows, or count what it was not asked to count.

Contents are made by hand here, so that these tests hold whatever the reader becomes.
"""

import logging
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from helpers_hostile import damage, npy_head
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from strategies.wire.replies import Gathered, Request, gather
from strategies.wire.roster import Roster
from userdp.nodes.computations import Computation

P, MANY = 4, 8
USERS = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6, 7])]
"""The users of nodes 1, 2 and 3; the node in the middle is hostile."""
HOSTILE = 1
ROWS = np.where(np.random.default_rng(4).random((MANY, P)) < 0.5, np.random.default_rng(3).normal(size=(MANY, P)), 0.0)
REQUESTS = {
    "rows": Request(np.arange(MANY), Computation()),
    "sum": Request(np.arange(MANY), Computation(reduce="sum", clip_norm=5.0)),
}
KINDS = [(reduce, sparse) for reduce in REQUESTS for sparse in (False, True)]


pytestmark = pytest.mark.usefixtures("flower_identity")


def answer(at: int, reduce: str, sparse: bool) -> RecordDict:
    """The answer of an honest node."""
    values = ROWS[USERS[at]] if reduce == "rows" else ROWS[USERS[at]].sum(axis=0, keepdims=True)
    rows = csr_array(values)
    parts = {name: getattr(rows, name) for name in ("data", "indices", "indptr")} if sparse else {"values": values}
    arrays = {name: Array(part) for name, part in {"users": USERS[at], **parts}.items()}
    facts = {"non_finite": 0} | ({"columns": P} if sparse else {})
    return RecordDict({"answer": ArrayRecord(arrays), "facts": MetricRecord(facts)})


def made_roster() -> Roster:
    roster = Roster(MANY)
    roster._nodes = [1, 2, 3]
    for at, users in enumerate(USERS):
        roster._owner[users] = at
    return roster


def gathered(request: Request, contents: list[RecordDict]) -> Gathered:
    """The round of these replies, the first from node 1 and so on; an empty one from nobody."""
    asked = [Message(RecordDict(), node, MessageType.TRAIN) for node in (1, 2, 3)]
    replies = [Message(content, reply_to=question) for content, question in zip(contents, asked, strict=True)]
    return gather(request, made_roster(), replies, P, 1.0)


@cache
def honest(at: int, reduce: str, sparse: bool) -> RecordDict:
    """The answer of an honest node, to be left as it is."""
    return answer(at, reduce, sparse)


@cache
def without(reduce: str, sparse: bool) -> Gathered:
    """The round in which the hostile node says nothing."""
    return gathered(REQUESTS[reduce], [honest(0, reduce, sparse), RecordDict(), honest(2, reduce, sparse)])


def harmless(reduce: str, sparse: bool, hostile: RecordDict) -> bool:
    """True if the hostile reply was taken; in both cases it must have touched no values of other users."""
    result = gathered(REQUESTS[reduce], [honest(0, reduce, sparse), hostile, honest(2, reduce, sparse)])
    silent = without(reduce, sparse).values
    assert type(result.non_finite) is int
    assert 0 <= result.non_finite <= len(USERS[HOSTILE])
    assert np.isfinite(result.values).all()
    assert result.missing in (0, len(USERS[HOSTILE]))
    if reduce == "rows":
        others = np.concatenate([USERS[0], USERS[2]])
        assert result.values[others].tobytes() == ROWS[others].tobytes() == silent[others].tobytes()
    if result.missing:
        assert result.values.tobytes() == silent.tobytes()
    elif reduce == "sum":
        assert np.linalg.norm(result.values - silent) <= len(USERS[HOSTILE]) * 5.0 * (1 + 1e-6)
    return not result.missing


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("reduce", "sparse"), KINDS)
def test_damaged_answers_count_as_missing_and_touch_nobody_else(reduce, sparse, caplog):
    """Four times 600 of them (rosters and models are elsewhere); some are damaged in numbers alone, and are taken."""
    caplog.set_level(logging.ERROR)
    rng, taken = np.random.default_rng(11), 0
    for _ in range(600):
        hostile = answer(HOSTILE, reduce, sparse)
        damage(hostile, rng)
        taken += harmless(reduce, sparse, hostile)
    assert 20 < taken < 300


def numpy_file(
    descr: str, shape: tuple[int, ...] | str, data: bytes = b"", envelope: tuple[int, ...] = (2, P)
) -> Array:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    return Array("float64", envelope, "numpy.ndarray", npy_head(head, len(head) + 1) + data)


CRAFTED = {
    "an archive (BadZipFile)": Array("float64", (2, P), "numpy.ndarray", b"PK\x03\x04" + bytes(60)),
    "an empty archive": Array("float64", (2, P), "numpy.ndarray", b"PK\x05\x06" + bytes(18)),
    "a header without an end (TokenError)": Array("float64", (2, P), "numpy.ndarray", npy_head("{'descr': (", 118)),
    "a header that nests (MemoryError)": Array("float64", (2, P), "numpy.ndarray", npy_head("-" * 9000 + "1", 9002)),
    "a shape of a petabyte (MemoryError)": numpy_file("'<f8'", (2, 10**14), bytes(64), (2, 10**14)),
    "a shape beyond all machines": numpy_file("'<f8'", (2, 10**30), bytes(64), (2, 10**30)),
    "a shape below zero": numpy_file("'<f8'", (-2, -P), bytes(64), (-2, -P)),
    "numbers the other way round": numpy_file("'>f8'", (2, P), bytes(64)),
    "the other way round, and saying so": Array(np.zeros((2, P), ">f8")),
    "a header that quotes data": Array("float64", (2, P), "numpy.ndarray", npy_head("{'patient 34 of Bern': 171}")),
    "objects": numpy_file("'|O'", (2, P), bytes(64)),
    "structures": numpy_file("[('a', '<f8')]", (2, P), bytes(64)),
    "structures with a text": numpy_file("[('patient 34 of Bern', '<f8')]", (2, P), bytes(64)),
    "a subarray": numpy_file(f"('<f8', ({P},))", (2,), bytes(64)),
    "words of no length": numpy_file("'<U0'", (2, P)),
    "dates": numpy_file("'<M8[s]'", (2, P), bytes(64)),
    "too few bytes": numpy_file("'<f8'", (2, P), bytes(63)),
    "too many bytes": numpy_file("'<f8'", (2, P), bytes(65)),
    "a later version": Array("float64", (2, P), "numpy.ndarray", npy_head("{}", 118, b"\x03\x00") + bytes(64)),
    "an envelope of another type": Array("float32", (2, P), "numpy.ndarray", Array(np.zeros((2, P))).data),
    "an envelope of another shape": Array("float64", (P, 2), "numpy.ndarray", Array(np.zeros((2, P))).data),
}


@pytest.mark.parametrize("values", CRAFTED.values(), ids=CRAFTED)
def test_an_array_that_breaks_a_reader_counts_as_missing(values, caplog):
    hostile = answer(HOSTILE, "rows", False)
    hostile["answer"]["values"] = values
    assert not harmless("rows", False, hostile)
    assert "node 2 counts as missing: a reply does not follow the protocol" in caplog.text
    assert "Bern" not in caplog.text


@pytest.mark.parametrize("reduce", REQUESTS)
def test_no_user_is_counted_twice(reduce):
    """A node may send what is not finite and say so: those are the same users."""
    request = replace(REQUESTS[reduce], computation=Computation(reduce=reduce))
    hostile = answer(HOSTILE, reduce, False)
    hostile["answer"]["values"] = Array(np.full((2 if reduce == "rows" else 1, P), np.nan))
    hostile["facts"]["non_finite"] = 2
    assert gathered(request, [honest(0, reduce, False), hostile, honest(2, reduce, False)]).non_finite == 2


# A generator of hostile replies ---------------------------------------------------------------------------------

NUMBERS = [0.0, 1.0, -1.0, 1e300, 5e-324, -2e-310, np.nan, np.inf, -np.inf]
dtypes = st.sampled_from(
    ["<f8", "<f8", "<f8", "<f4", "<f2", ">f8", "<i8", "|i1", "<u8", "<c16", "|b1", "<U2", "|S3", "<M8[s]"]
)


@st.composite
def numbers(draw, shape):
    """An array of about that shape: of any type, in any order in memory, with any numbers."""
    wanted = draw(
        st.just(shape) | st.sampled_from([(2, P), (1, P), (2,), (P,), (), (2, P, 1), (0, P), (3, P), (2, P + 1)])
    )
    values = np.array(draw(st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=5)))
    with np.errstate(all="ignore"):
        filled = np.resize(values, wanted)
        dtype = np.dtype(draw(dtypes))
        whole = np.nan_to_num(filled, nan=3.0, posinf=9.0, neginf=-9.0).clip(-9, 9)
        values = (
            filled.astype(dtype) if dtype.kind in "fc" else whole.astype(np.int64).astype(dtype.str.replace("V", "S"))
        )
    order = draw(st.sampled_from(["C", "F", "reversed", "strided"]))
    if values.ndim == 0:
        return np.asarray(values)
    if order == "reversed":
        return values[::-1]
    if order == "strided":
        return np.repeat(values, 2, axis=0)[::2]
    return np.asfortranarray(values) if order == "F" else values


places = st.lists(st.integers(-1, P + 1) | st.sampled_from([2**31 - 1, -(2**31), 2**40]), max_size=6)
people = st.sampled_from([[3, 4], [4, 3], [3, 3], [3], [3, 4, 5], [0, 1], [5, 6], [], [-1, 4], [3, 2**40]])


@st.composite
def hostile_replies(draw):
    """(reduce, sparse, content): arrays of any type and shape, csr arrays of any places, anybody's users."""
    reduce, sparse = draw(st.sampled_from(KINDS))
    content = answer(HOSTILE, reduce, sparse)
    arrays = content["answer"]
    if draw(st.booleans()):
        arrays["users"] = Array(np.array(draw(people), dtype=np.int64))
    if not sparse:
        arrays["values"] = Array(draw(numbers((2 if reduce == "rows" else 1, P))))
    else:
        integers = draw(st.sampled_from([np.int64, np.int64, np.float64, np.uint64]))
        with np.errstate(invalid="ignore"):
            for name in draw(st.sets(st.sampled_from(["indices", "indptr"]))):
                arrays[name] = Array(np.array(draw(places), dtype=np.int64).astype(integers))
        if draw(st.booleans()):
            arrays["data"] = Array(draw(numbers((draw(st.integers(0, 5)),))))
        content["facts"]["columns"] = draw(st.sampled_from([P, P, P, P + 1, 0, -1, 2**31, 2**40]))
    content["facts"]["non_finite"] = draw(st.sampled_from([0, 0, 0, 2, 3, -1, 10**18, 0.0, [0]]))
    return reduce, sparse, content


@pytest.mark.slow
@settings(max_examples=10_000, derandomize=True)
@given(hostile_replies())
@pytest.mark.long
def test_no_reply_ends_the_run_or_touches_other_users(reply):
    harmless(*reply)


@pytest.mark.parametrize("more", [{}, {"l1_norm": 5.0}, {"statistic": "unclipped"}], ids=str)
@pytest.mark.parametrize(("length", "number", "taken"), [(9.9, 0.9, True), (10.1, 0.9, False), (9.9, -1.1, False)])
def test_a_sum_that_its_users_cannot_add_up_to_counts_as_missing(more, length, number, taken):
    """Two users of at most 5 each, and a number of at most 1/2 beside them; the other nodes' users are as they were."""
    request = Request(np.arange(MANY), Computation(reduce="sum", clip_norm=5.0, **more))
    beside = [number] if "statistic" in more else []
    contents = []
    for at, users in enumerate(USERS):
        values = [length if at == HOSTILE else 1.0, 0.0, 0.0, 0.0, *(beside if at == HOSTILE else [0.0] * len(beside))]
        arrays = {"users": Array(users), "values": Array(np.array([values]))}
        contents.append(RecordDict({"answer": ArrayRecord(arrays), "facts": MetricRecord({"non_finite": 0})}))
    result = gathered(request, contents)
    refused = not taken if beside else length > 10
    assert result.missing == (2 if refused else 0)
    assert result.values[0] == (2.0 if refused else 2.0 + length)


@pytest.mark.parametrize("reduce", REQUESTS)
@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_second_reply_of_a_node_is_not_taken(reduce, again):
    """The first reply of the node is not taken back, and later replies of other nodes are taken."""
    contents = [honest(at, reduce, False) for at in (0, 1, 2)]
    once = gathered(REQUESTS[reduce], contents)
    asked = [Message(RecordDict(), node, MessageType.TRAIN) for node in (1, 2, 3)]
    replies = [Message(content, reply_to=question) for content, question in zip(contents, asked, strict=True)]
    replies.insert(0, Message(honest(again, reduce, False), reply_to=asked[again]))
    twice = gather(REQUESTS[reduce], made_roster(), replies, P, 1.0)
    assert twice.values.tobytes() == once.values.tobytes()
    assert twice.missing == once.missing == 0


@pytest.mark.parametrize("reduce", REQUESTS)
def test_a_reply_of_another_round_is_none_unless_it_answers_this_one(reduce):
    """It speaks for another cohort, or, if for the same, is as long as this round's answer may be."""
    now = replace(REQUESTS[reduce], users=np.array([0, 1, 2, 4, 5, 6, 7]))
    replies = [honest(at, reduce, False) for at in (0, 1, 2)]
    result = gathered(now, replies)
    assert result.missing == 1
    others = [at for at, user in enumerate(now.users) if user != 4]
    if reduce == "rows":
        assert result.values[others].tobytes() == ROWS[now.users[others]].tobytes()
        assert not result.values[3].any()
