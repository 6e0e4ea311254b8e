"""Messages survive the journey, and what does not follow the protocol counts as missing."""

import logging
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from helpers import content_of, federation_of
from helpers_hostile import npy_head
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from strategies import client_app
from strategies.wire.protocol import (
    SharedArray,
    answer_content,
    answer_message,
    failure,
    read_answer,
    read_roster,
    roster_content,
    roster_question,
)
from strategies.wire.questions import Reader, common_records, model_record, model_vector, read_keys, train_content
from strategies.wire.untrusted import read_exactly
from userdp.errors import BadInput
from userdp.masking.masks import KEY_BYTES
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.node import Answer, Node
from userdp.nodes.partition import Partition
from userdp.problems import Quadratic
from userdp.sampling.coins import SampleCoins

ANSWER = Answer(np.array([2, 5]), np.array([[0.1, np.pi], [1e300, -5e-324]]), 1)
computations = st.builds(
    Computation,
    name=st.sampled_from(["user_gradient", "clipped_sample_sum"]),
    reduce=st.sampled_from(["rows", "sum"]),
    clip_norm=st.none() | st.floats(1e-9, allow_infinity=True),
    parameters=st.dictionaries(st.sampled_from(["sample_clip_norm", "name", "clip_norm"]), st.floats(allow_nan=False)),
)


pytestmark = pytest.mark.usefixtures("flower_identity")


def message(content: RecordDict, kind: str = MessageType.TRAIN) -> Message:
    return Message(content, 1, kind)


@settings(max_examples=60)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=8))
def test_a_model_survives_bit_for_bit(values):
    x = np.array(values)
    np.testing.assert_array_equal(model_vector(model_record(x)), x)
    assert model_record(x)["x"].data == Array(x).data  # as numpy and Flower write it


@pytest.mark.parametrize("names", [[], ["y"], ["x", "y"]])
def test_a_model_of_other_arrays_is_refused(names):
    with pytest.raises(BadInput, match="model_record"):
        model_vector(ArrayRecord({name: Array(np.zeros(2)) for name in names}))


@settings(max_examples=60)
@given(computations)
def test_a_request_survives_with_its_clip_and_parameters(computation):
    sent = message(content_of(np.array([1.5, -2.0]), np.array([3, 8]), computation))
    users, received = Reader().request(sent)
    assert received == computation
    np.testing.assert_array_equal(users, [3, 8])
    np.testing.assert_array_equal(Reader().model(sent), [1.5, -2.0])


@pytest.mark.parametrize(
    "asked",
    [
        Computation(clip_norm=0.5, centre=np.array([0.1, -2.0]), statistic="log_distance"),
        *(Computation(clip_norm=1.0, noise=LocalNoise(2.5, seed, 3)) for seed in (2**40, None)),
    ],
    ids=["a centre and a number", "seeded noise", "secure noise"],
)
def test_what_a_round_asks_beside_survives(asked):
    users, read = Reader().request(message(content_of(np.zeros(2), np.arange(2), asked)))
    np.testing.assert_array_equal(users, [0, 1])
    assert read == asked
    assert read.noise == asked.noise
    assert asked.centre is None or np.array_equal(read.centre, asked.centre)


def test_a_node_draws_the_samples_and_adds_up_the_groups_that_it_is_asked_for():
    coins = SampleCoins(0.25, np.arange(9, dtype=np.uint64) << np.uint64(40), 3)
    asked = Computation("clipped_sample_sum", "sum", parameters={"sample_clip_norm": 1.0}, coins=coins)
    _, read = Reader().request(message(content_of(np.zeros(2), np.array([2, 5]), asked)))
    assert (read.coins.rate, read.coins.most, read.coins.keys.tolist()) == (0.25, 3, [2 << 40, 5 << 40])
    groups = Partition(np.array([[0, 1, -1], [1, 2, 0]], dtype=np.int32), 3)
    _, read = Reader().request(
        message(content_of(np.zeros(2), np.arange(2), replace(asked, coins=None, partition=groups)))
    )
    assert (read.partition.count, read.partition.groups.tolist()) == (3, groups.groups.tolist())


def test_a_reader_reads_shared_records_once_and_others_apart():
    asked = [Computation(clip_norm=norm, centre=np.full(2, norm)) for norm in (1.0, 2.0)]
    rounds = [common_records(model_record(np.full(2, float(index))), one) for index, one in enumerate(asked)]
    reader = Reader()
    for index, (common, one) in enumerate(zip(rounds, asked, strict=True)):
        sent = [message(train_content(common, np.array([user]), one)) for user in (3, 5)]
        read = [reader.request(each) for each in sent]
        assert [(users.tolist(), found) for users, found in read] == [([3], one), ([5], one)]
        assert read[0][1] is read[1][1]
        np.testing.assert_array_equal(read[0][1].centre, one.centre)
        assert reader.model(sent[0]) is reader.model(sent[1])
        np.testing.assert_array_equal(reader.model(sent[0]), [index, index])


@pytest.mark.parametrize("share", [True, False])
def test_an_answer_survives_bit_for_bit(share):
    content = answer_content(ANSWER, counts=True, share=share)
    received = read_answer(message(content), ANSWER.users, Computation(), 2)
    np.testing.assert_array_equal(received.users, ANSWER.users)
    np.testing.assert_array_equal(received.values, ANSWER.values)
    assert received.non_finite == 1
    assert np.shares_memory(received.values, ANSWER.values) == share


def test_a_shared_array_is_the_array_itself_and_serialises_like_any_other():
    values = np.arange(6.0).reshape(2, 3)
    shared = SharedArray(values)
    assert shared.numpy() is values
    assert (shared.dtype, tuple(shared.shape), shared.stype) == ("float64", (2, 3), "numpy.ndarray")
    assert shared.data == Array(values).data
    copied = Array(dtype=shared.dtype, shape=shared.shape, stype=shared.stype, data=shared.data)
    np.testing.assert_array_equal(copied.numpy(), values)


def shared(held) -> SharedArray:
    """A shared array that holds something else than its envelope says."""
    array = SharedArray(np.zeros((2, 2)))
    array.__dict__["array"] = held
    return array


def _with(users=None, values=None, facts=None, **others) -> RecordDict:
    content = answer_content(ANSWER, counts=True, share=False)
    arrays = {"users": Array(ANSWER.users), "values": Array(ANSWER.values)}
    arrays |= {name: array for name, array in (("users", users), ("values", values)) if array is not None}
    content["answer"] = ArrayRecord()
    for name, array in (arrays | others).items():  # a record made from a dictionary would serialise shared arrays
        content["answer"][name] = array
    if facts is not None:
        content["facts"] = facts
    return content


MALFORMED = {
    "nothing": RecordDict(),
    "only facts": RecordDict({"facts": MetricRecord({"non_finite": 0})}),
    "no facts": RecordDict({"answer": answer_content(ANSWER, counts=True, share=False)["answer"]}),
    "other arrays": RecordDict({"answer": ArrayRecord({"weights": Array(np.zeros(2))})}),
    "numbers for arrays": RecordDict(
        {"answer": MetricRecord({"users": 1, "values": 2.0}), "facts": MetricRecord({"non_finite": 0})}
    ),
    "text for arrays": RecordDict(
        {"answer": ConfigRecord({"users": "a", "values": "b"}), "facts": MetricRecord({"non_finite": 0})}
    ),
    "arrays for facts": _with(facts=ArrayRecord({"non_finite": Array(np.zeros(1))})),
    "other facts": _with(facts=MetricRecord({"loss": 0.0})),
    "more facts": _with(facts=MetricRecord({"non_finite": 0, "loss": 0.0})),
    "more arrays": _with(weights=Array(np.zeros(2))),
    "more records": RecordDict({**answer_content(ANSWER, counts=True, share=False), "more": MetricRecord()}),
    "facts as settings": RecordDict(
        {"answer": answer_content(ANSWER, counts=True, share=False)["answer"], "facts": ConfigRecord({"non_finite": 0})}
    ),
    "empty bytes": _with(values=Array(dtype="float64", shape=(2, 2), stype="numpy.ndarray", data=b"")),
    "damaged bytes": _with(values=Array(dtype="float64", shape=(2, 2), stype="numpy.ndarray", data=b"\x93NUMPY\x01")),
    "a pickle": _with(values=Array(dtype="O", shape=(1,), stype="numpy.ndarray", data=b"\x80\x04N.")),
    "another kind of array, and numpy's bytes": _with(
        values=Array(dtype="float64", shape=(2, 2), stype="other", data=Array(np.zeros((2, 2))).data)
    ),
    "another kind of array": _with(values=Array(dtype="float64", shape=(2, 2), stype="other", data=b"x")),
    "words": _with(values=Array(np.array([["a", "b"], ["c", "d"]]))),
    "complex numbers": _with(values=Array(np.array([[1j, 0], [0, 0]]))),
    "words in a shared array": _with(values=SharedArray(np.array([["a", "b"], ["c", "d"]]))),
    "a shared array of another shape": _with(values=SharedArray(np.zeros((2, 3)))),
    "no numpy array in a shared one": _with(values=shared({"a": 1})),
    "longer words than every machine has": _with(values=SharedArray(np.zeros((2, 2), np.longdouble))),
    "another user": _with(users=Array(np.array([2, 6]))),
    "users in another order": _with(users=Array(np.array([5, 2]))),
    "users twice": _with(users=Array(np.array([2, 2]))),
    "a user more": _with(users=Array(np.array([2, 5, 7]))),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_reply_that_does_not_follow_the_protocol_is_refused(content):
    with pytest.raises(BadInput, match="does not follow the protocol"):
        read_answer(message(content), ANSWER.users, Computation(), 2)


@pytest.mark.parametrize("told", [-1, 3, 10**18, 2**64, 0.0, 1.0, np.nan, np.inf, [], [1], [1.0, 2.0]], ids=str)
def test_a_count_of_users_is_a_whole_number_of_those_who_were_asked(told):
    """Flower makes no record of bools; two users give a count from zero to two."""
    for count in (0, 1, 2):
        right = _with(facts=MetricRecord({"non_finite": count}))
        assert read_answer(message(right), ANSWER.users, Computation(), 2).non_finite == count
    with pytest.raises(BadInput, match="non_finite must be a whole number from 0 to 2"):
        read_answer(message(_with(facts=MetricRecord({"non_finite": told}))), ANSWER.users, Computation(), 2)


def test_keys_and_shares_are_read_as_they_are_or_not_at_all():
    """Wider numbers, as a node might send, would be longer keys; a cut one would be another."""
    for dtype in (np.uint16, np.uint64):
        with pytest.raises(BadInput, match="must be of type uint8"):
            read_exactly(Array(np.zeros(KEY_BYTES, dtype=dtype)), "key", np.uint8, (KEY_BYTES,))
    assert read_keys(bytes(2 * KEY_BYTES)) == (bytes(KEY_BYTES), bytes(KEY_BYTES))
    for cut in (1, KEY_BYTES - 1, KEY_BYTES + 1):
        with pytest.raises(BadInput, match=f"{KEY_BYTES} bytes each"):
            read_keys(bytes(cut))


def test_rows_that_lie_by_columns_or_narrow_are_read_without_harm():
    for values in (np.asfortranarray(np.arange(4.0).reshape(2, 2)), np.arange(4, dtype=np.float32).reshape(2, 2)):
        read = read_answer(message(_with(values=Array(values))), ANSWER.users, Computation(), 2)
        np.testing.assert_array_equal(read.values, [[0, 1], [2, 3]])
        assert read.values.dtype == np.float64


@pytest.mark.parametrize("share", [True, False])
def test_nothing_to_tell_is_told_too(share):
    """A silo without users, and a sparse sum without entries."""
    nobody = roster_content(np.empty(0, dtype=np.int64), 0)
    assert read_roster(message(nobody), counts=True).users.shape == (0,)
    nothing = Answer(ANSWER.users, csr_array((1, 3)), 0)
    content = answer_content(nothing, counts=True, share=share)
    read = read_answer(message(content), ANSWER.users, Computation(reduce="sum", clip_norm=1.0), 3)
    np.testing.assert_array_equal(read.values.toarray(), np.zeros((1, 3)))


def test_an_array_is_read_without_a_copy_of_its_bytes():
    values = np.zeros((1, 1 << 20))
    content = answer_content(Answer(np.array([4]), values, 0), counts=True, share=False)
    tracemalloc.start()
    read = read_answer(message(content), np.array([4]), Computation(), 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read.values.shape == values.shape
    assert peak < values.nbytes / 8


def test_an_array_that_claims_more_than_it_holds_takes_no_memory():
    """The claim is of a shape that was asked for, so only the bytes can refute it."""
    many = 1 << 27
    head = npy_head(f"{{'descr': '<f8', 'fortran_order': False, 'shape': (1, {many}), }}")
    arrays = ArrayRecord({"users": Array(np.array([4]))})
    arrays["values"] = Array(dtype="float64", shape=(1, many), stype="numpy.ndarray", data=head + b"\0" * 64)
    tracemalloc.start()
    with pytest.raises(BadInput, match="as many bytes as its shape says"):
        read_answer(
            message(RecordDict({"answer": arrays, "facts": MetricRecord({"non_finite": 0})})),
            np.array([4]),
            Computation(),
            many,
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_sparse_values_of_more_entries_than_there_are_places_take_no_memory():
    """16 MiB of entries on the wire would be 128 as the numbers that are used here; six entries fit."""
    arrays = ArrayRecord({"users": Array(ANSWER.users), "indptr": Array(np.array([0, 3, 6]))})
    arrays["indices"] = Array(np.tile(np.arange(3), 2))
    arrays["data"] = Array(np.zeros(1 << 24, dtype=np.int8))
    content = RecordDict({"answer": arrays, "facts": MetricRecord({"non_finite": 0, "columns": 3})})
    tracemalloc.start()
    with pytest.raises(BadInput, match=r"sparse values must be numbers of shape \(at most 6\)"):
        read_answer(message(content), ANSWER.users, Computation(), 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    arrays["data"] = Array(np.zeros(6, dtype=np.int8))
    assert read_answer(message(content), ANSWER.users, Computation(), 3).values.nnz == 6


def test_an_array_whose_numbers_begin_amid_a_word_is_moved():
    """Compiled code reads whole words; a header may have any length."""
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }"
    data = npy_head(text, length=len(text) + 4) + np.arange(4.0).tobytes()
    values = Array(dtype="float64", shape=(2, 2), stype="numpy.ndarray", data=data)
    read = read_answer(message(_with(values=values)), ANSWER.users, Computation(), 2)
    np.testing.assert_array_equal(read.values, [[0, 1], [2, 3]])
    assert read.values.flags.aligned


def test_where_users_add_the_noise_an_answer_tells_no_count_and_one_that_does_is_refused():
    noisy = Computation(clip_norm=1.0, noise=LocalNoise(1.0, 1, 0))
    quiet = answer_content(ANSWER, counts=False, share=False)
    assert not quiet["facts"]
    assert read_answer(message(quiet), ANSWER.users, noisy, 2).non_finite == 0
    with pytest.raises(BadInput, match="facts must be one MetricRecord of nothing"):
        read_answer(message(answer_content(ANSWER, counts=True, share=False)), ANSWER.users, noisy, 2)
    with pytest.raises(BadInput, match="facts must be one MetricRecord of non_finite"):
        read_answer(message(quiet), ANSWER.users, Computation(), 2)


def test_a_node_answers_queries_and_training():
    node = Node(Quadratic(2, 1.0, 1.0), federation_of([[0.5, 9.0], [0.0, 0.0], [0.25, 0.5]]), np.array([0, 2]))
    roster = answer_message(node, message(roster_question(b"", counts=True), MessageType.QUERY)).content
    np.testing.assert_array_equal(roster["roster"]["users"].numpy(), [0, 2])
    assert roster["facts"]["clipped_samples"] == 1
    request = message(content_of(np.zeros(2), np.array([2]), Computation()))
    answer = read_answer(answer_message(node, request), np.array([2]), Computation(), 2)
    np.testing.assert_array_equal(answer.values, [[-0.25, -0.5]])
    foreign = message(content_of(np.zeros(2), np.array([1]), Computation()))
    with pytest.raises(BadInput, match="does not hold"):
        answer_message(node, foreign)
    with pytest.raises(BadInput, match="a question does not follow the protocol"):
        answer_message(node, message(RecordDict(), MessageType.QUERY))


def test_a_node_that_is_not_asked_for_counts_tells_none():
    node = Node(Quadratic(2, 1.0, 1.0), federation_of([[0.5, 9.0], [0.25, 0.5]]), np.arange(2))
    query = message(roster_question(b"", counts=False), MessageType.QUERY)
    assert set(answer_message(node, query).content["facts"]) == {"protocol"}
    noisy = Computation(reduce="sum", clip_norm=1.0, noise=LocalNoise(1.0, 1, 0))
    request = message(content_of(np.zeros(2), np.arange(2), noisy))
    assert not answer_message(node, request).content["facts"]


def test_a_client_app_answers_from_the_node_that_its_loader_returns():
    node = Node(Quadratic(2, 1.0, 1.0), federation_of([[0.5, 0.0], [0.25, 0.5]]), np.arange(2))
    contexts = []
    app = client_app(lambda context: contexts.append(context) or node)
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    request = message(content_of(np.zeros(2), np.array([1]), Computation()))
    read = read_answer(app(request, context), np.array([1]), Computation(), 2)
    np.testing.assert_array_equal(read.values, [[-0.25, -0.5]])
    roster = app(message(roster_question(b"", counts=True), MessageType.QUERY), context).content
    np.testing.assert_array_equal(roster["roster"]["users"].numpy(), [0, 1])
    assert contexts == [context, context]


class Sick(Exception):
    """Its text quotes data, as those of parsers and databases do."""


@pytest.mark.parametrize("noise", [None, LocalNoise(1.0, 1, 0)], ids=["counts are sent", "noise is local"])
def test_of_a_client_app_that_fails_the_server_learns_the_kind_at_most(noise, caplog):
    def load(context):
        raise Sick("patient 34 of Bern weighs 171 kg")

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    computation = Computation(reduce="sum", clip_norm=1.0, noise=noise)
    request = message(content_of(np.zeros(2), np.array([1]), computation))
    with caplog.at_level(logging.ERROR, logger="userdp"):
        reply = client_app(load)(request, context)
    assert reply.has_error()
    assert reply.error.reason == ("Sick" if noise is None else None)
    assert "Sick" in caplog.text
    assert "Bern" not in caplog.text  # others read the logs of a node's machine
    query = message(roster_question(b"", counts=noise is None), MessageType.QUERY)
    assert client_app(load)(query, context).error.reason == ("Sick" if noise is None else None)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("OSError", "OSError"),
        ("<class 'ValueError'>:<'patient 34 of Bern'>", "ValueError"),
        ("<class 'package.module.Sick'>:<'two\nlines'>", "package.module.Sick"),
        ("patient 34 of Bern", "error 2"),
        ("ValueError: patient 34 of Bern", "error 2"),
        ("Bern" * 100, "error 2"),
        ("", "error 2"),
        (None, "error 2"),
    ],
    ids=str,
)
def test_of_an_error_reply_only_the_kind_is_shown(reason, shown):
    assert (
        failure(Message(Error(2, reason), reply_to=message(RecordDict())))
        == f"its app failed: {shown} (see that node's log)"
    )
