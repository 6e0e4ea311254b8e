"""Messages survive the journey, and what does not follow the protocol counts as missing."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from helpers import federation_of, local_grid
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import client_app
from strategies.protocol import (
    SharedArray,
    answer_content,
    answer_message,
    model_record,
    model_vector,
    read_answer,
    read_model,
    read_request,
    roster_content,
    train_content,
)
from userdp.computations import Computation
from userdp.errors import BadInput
from userdp.node import Answer, Node
from userdp.problems import Quadratic

ANSWER = Answer(np.array([2, 5]), np.array([[0.1, np.pi], [1e300, -5e-324]]), 1)
computations = st.builds(
    Computation,
    name=st.sampled_from(["user_gradient", "clipped_sample_sum"]),
    reduce=st.sampled_from(["rows", "sum"]),
    clip_norm=st.none() | st.floats(1e-9, allow_infinity=True),
    parameters=st.dictionaries(st.sampled_from(["sample_clip_norm", "name", "clip_norm"]), st.floats(allow_nan=False)),
)


@pytest.fixture(autouse=True, scope="module")
def _identity():
    """Flower's messages can only be made inside a run; a grid sees to that."""
    local_grid(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((1, 1)))).close()


def message(content: RecordDict, kind: str = MessageType.TRAIN) -> Message:
    return Message(content, 1, kind)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=8))
def test_a_model_survives_bit_for_bit(values):
    x = np.array(values)
    np.testing.assert_array_equal(model_vector(model_record(x)), x)


@pytest.mark.parametrize("names", [[], ["y"], ["x", "y"]])
def test_a_model_of_other_arrays_is_refused(names):
    with pytest.raises(BadInput, match="model_record"):
        model_vector(ArrayRecord({name: Array(np.zeros(2)) for name in names}))


@settings(deadline=None, max_examples=60)
@given(computations)
def test_a_request_survives_with_its_clip_and_parameters(computation):
    sent = message(train_content(model_record(np.array([1.5, -2.0])), np.array([3, 8]), computation))
    users, received = read_request(sent)
    assert received == computation
    np.testing.assert_array_equal(users, [3, 8])
    np.testing.assert_array_equal(read_model(sent), [1.5, -2.0])


@pytest.mark.parametrize("share", [True, False])
def test_an_answer_survives_bit_for_bit(share):
    received = read_answer(message(answer_content(ANSWER, share=share)))
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


def _with(users=None, values=None, facts=None) -> RecordDict:
    content = answer_content(ANSWER, share=False)
    arrays = {"users": Array(ANSWER.users), "values": Array(ANSWER.values)}
    arrays |= {name: array for name, array in (("users", users), ("values", values)) if array is not None}
    content["answer"] = ArrayRecord(arrays)
    if facts is not None:
        content["facts"] = facts
    return content


MALFORMED = {
    "nothing": RecordDict(),
    "only facts": RecordDict({"facts": MetricRecord({"non_finite": 0})}),
    "no facts": RecordDict({"answer": answer_content(ANSWER, share=False)["answer"]}),
    "other arrays": RecordDict({"answer": ArrayRecord({"weights": Array(np.zeros(2))})}),
    "numbers for arrays": RecordDict(
        {"answer": MetricRecord({"users": 1, "values": 2.0}), "facts": MetricRecord({"non_finite": 0})}
    ),
    "text for arrays": RecordDict(
        {"answer": ConfigRecord({"users": "a", "values": "b"}), "facts": MetricRecord({"non_finite": 0})}
    ),
    "other facts": _with(facts=MetricRecord({"loss": 0.0})),
    "a count that is not a number": _with(facts=MetricRecord({"non_finite": float("nan")})),
    "an infinite count": _with(facts=MetricRecord({"non_finite": float("inf")})),
    "a list for a count": _with(facts=MetricRecord({"non_finite": [1, 2]})),
    "empty bytes": _with(values=Array(dtype="float64", shape=(2, 2), stype="numpy.ndarray", data=b"")),
    "damaged bytes": _with(values=Array(dtype="float64", shape=(2, 2), stype="numpy.ndarray", data=b"\x93NUMPY\x01")),
    "a pickle": _with(values=Array(dtype="O", shape=(1,), stype="numpy.ndarray", data=b"\x80\x04N.")),
    "another kind of array": _with(values=Array(dtype="float64", shape=(2, 2), stype="other", data=b"x")),
    "words": _with(values=Array(np.array([["a", "b"], ["c", "d"]]))),
    "complex numbers": _with(values=Array(np.array([[1j, 0], [0, 0]]))),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_reply_that_does_not_follow_the_protocol_is_refused(content):
    with pytest.raises(BadInput, match="does not follow the protocol"):
        read_answer(message(content))


def test_a_node_answers_queries_and_training():
    node = Node(Quadratic(2, 1.0, 1.0), federation_of([[0.5, 9.0], [0.0, 0.0], [0.25, 0.5]]), np.array([0, 2]))
    roster = answer_message(node, message(RecordDict(), MessageType.QUERY)).content
    np.testing.assert_array_equal(roster["roster"]["users"].numpy(), [0, 2])
    assert roster["facts"]["clipped_samples"] == 1
    request = message(train_content(model_record(np.zeros(2)), np.array([2]), Computation()))
    answer = read_answer(answer_message(node, request))
    np.testing.assert_array_equal(answer.values, [[-0.25, -0.5]])
    foreign = message(train_content(model_record(np.zeros(2)), np.array([1]), Computation()))
    with pytest.raises(BadInput, match="does not hold"):
        answer_message(node, foreign)


def test_a_roster_survives():
    content = roster_content(np.array([4, 7]), 3)
    np.testing.assert_array_equal(content["roster"]["users"].numpy(), [4, 7])
    assert content["facts"]["clipped_samples"] == 3


def test_a_client_app_answers_from_the_node_that_its_loader_returns():
    node = Node(Quadratic(2, 1.0, 1.0), federation_of([[0.5, 0.0], [0.25, 0.5]]), np.arange(2))
    contexts = []
    app = client_app(lambda context: contexts.append(context) or node)
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    request = message(train_content(model_record(np.zeros(2)), np.array([1]), Computation()))
    np.testing.assert_array_equal(read_answer(app(request, context)).values, [[-0.25, -0.5]])
    roster = app(message(RecordDict(), MessageType.QUERY), context).content
    np.testing.assert_array_equal(roster["roster"]["users"].numpy(), [0, 1])
    assert contexts == [context, context]
