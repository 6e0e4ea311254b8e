"""A node answers for its own users, the same whether it keeps their samples or streams them."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import federation_of

from userdp.data import Gaussian, SyntheticFederation, federation
from userdp.errors import BadInput
from userdp.nodes import node as node_module
from userdp.nodes import pipeline as pipeline_module
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Linear, Quadratic

COMPUTATIONS = {
    "rows": Computation(),
    "sum": Computation(reduce="sum", clip_norm=0.7),
    "clipped samples": Computation("clipped_sample_sum", reduce="sum", parameters={"sample_clip_norm": 0.5}),
}


class Counted(SyntheticFederation):
    asked = 0  # users whose samples it was asked for

    def block(self, users):
        self.asked += len(users)
        return super().block(users)


def people() -> Counted:
    return Counted(Gaussian(dimension=5), users=200, seed=4, samples_per_user=2, samples_tail=1.5)


@pytest.mark.parametrize("computation", COMPUTATIONS.values(), ids=COMPUTATIONS)
@pytest.mark.parametrize("bounded", ["bytes", "users"])
@pytest.mark.parametrize("memory", [0, 3000])
def test_streaming_and_memory_give_one_answer(computation, bounded, memory, monkeypatch):
    problem, users, x = Quadratic(5, 1.0, 2.0), np.arange(20, 180), np.linspace(-1, 1, 5)
    asked = users[::3]
    kept, streamed = people(), people()
    whole = Node(problem, kept, users).compute(x, asked, computation)
    monkeypatch.setattr(node_module, "MEMORY_BYTES", memory)
    if bounded == "users":
        monkeypatch.setattr(pipeline_module, "ROW_BYTES", 7 * 8 * 5)
    else:
        slices = federation.Federation.slices
        monkeypatch.setattr(
            SyntheticFederation, "slices", lambda self, ids, **limits: slices(self, ids, max_bytes=2000, **limits)
        )
    node = Node(problem, streamed, users)
    first = streamed.asked  # those that the node keeps
    answer = node.compute(x, asked, computation)
    assert (kept.asked, first > 0, first < 80) == (len(users), memory > 0, True)
    assert streamed.asked > first
    np.testing.assert_allclose(answer.values, whole.values, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(answer.users, whole.users)
    assert answer.non_finite == whole.non_finite == 0


GRADIENTS = [
    Computation(reduce="sum", clip_norm=0.7),
    Computation("rough_user_gradient", clip_norm=0.7),
    Computation("gradient_votes"),
    Computation("improved", parameters={"most": 0.3}, arrays={"initial": np.full(5, 0.2)}),
]


class Votes(Quadratic):
    """Its gradients read more than means, and so it says nothing of means."""

    def user_gradients(self, x, block):
        return np.sign(super().user_gradients(x, block) + block.sizes[:, None] - 3)


@pytest.mark.parametrize("separate", [False, True], ids=["any order", "fixed order"])
@pytest.mark.parametrize("kind", [Quadratic, Linear, Votes])
def test_means_that_are_kept_stand_for_samples_without_a_bit_of_difference(kind, separate, monkeypatch):
    """In passes over everybody, whose samples are then made once; other cohorts add up in blocks of their own."""
    problem, x = kind(5, 1.0, 2.0), np.linspace(-1, 1, 5)
    gradients = [replace(one, separate=separate) for one in GRADIENTS]
    others = [Computation("filled", separate=separate), replace(gradients[0], separate=not separate)]
    slices = federation.Federation.slices
    monkeypatch.setattr(
        SyntheticFederation, "slices", lambda self, ids, **limits: slices(self, ids, max_bytes=900, **limits)
    )
    streamed, without = people(), Node(problem, people(), np.arange(200))
    monkeypatch.setattr(node_module, "MEMORY_BYTES", streamed.nbytes - 1)
    node = Node(problem, streamed, np.arange(200))
    fewer = [node.users[::2], *(np.delete(node.users, who) for who in (1, 5))]  # blocks also where everybody's are
    for users in (node.users, *fewer, node.users):
        for one in (*gradients, *others):
            made = streamed.asked
            answer = node.compute(x, users, one)
            np.testing.assert_array_equal(answer.values, without.compute(x, users, one).values)
            if users is node.users:
                stands = kind is not Votes and one in gradients and made > node._samples._kept
                assert (streamed.asked == made) == stands


@pytest.mark.parametrize("memory", [0, 400, 1000, 3000])
def test_means_that_are_kept_of_some_users_alone_never_stand_for_others(memory, monkeypatch):
    """Else one user's samples would be in two rows, and a clip bounds one."""
    problem, users, x = Quadratic(5, 1.0, 2.0), np.arange(200), np.linspace(-1, 1, 5)
    whole = Node(problem, people(), users).compute(x, users, GRADIENTS[2]).values
    slices = federation.Federation.slices
    monkeypatch.setattr(
        SyntheticFederation, "slices", lambda self, ids, **limits: slices(self, ids, max_bytes=900, **limits)
    )
    monkeypatch.setattr(node_module, "MEMORY_BYTES", memory)
    node = Node(problem, people(), users)
    for _ in range(3):
        np.testing.assert_array_equal(node.compute(x, users, GRADIENTS[2]).values, whole)
    assert (len(node._samples._means) > 0) == (memory > 0)
    assert len(node._samples._means) < len([*node._samples.blocks(users, None)])


def test_rows_are_in_the_order_asked_and_belong_to_their_users():
    values = np.arange(12, dtype=float).reshape(6, 2)
    node = Node(Quadratic(2, 100.0, 1.0), federation_of(values), np.array([1, 3, 4]))
    answer = node.compute(np.zeros(2), np.array([1, 4]), Computation())
    np.testing.assert_array_equal(answer.values, -values[[1, 4]])
    total = node.compute(np.zeros(2), np.array([1, 4]), Computation(reduce="sum"))
    np.testing.assert_array_equal(total.values, -values[[1, 4]].sum(axis=0, keepdims=True))


@pytest.mark.parametrize("memory", [0, node_module.MEMORY_BYTES])
def test_samples_are_clipped_into_the_declared_bounds_and_counted(memory, monkeypatch):
    monkeypatch.setattr(node_module, "MEMORY_BYTES", memory)
    node = Node(Quadratic(1, 1.0, 1.0), federation_of([[0.5], [9.0], [-7.0]]), np.arange(3))
    assert node.clipped_samples == (2 if memory else 0)  # of what is made anew nobody counts them
    values = node.compute(np.zeros(1), np.arange(3), Computation()).values
    np.testing.assert_array_equal(values, [[-0.5], [-1.0], [1.0]])


@pytest.mark.parametrize(
    ("held", "users"), [*(([2, 3, 4], users) for users in ([0], [2, 5], [9], [], [-1])), ([], [0])]
)
def test_users_that_the_node_does_not_hold_are_refused(held, users):
    node = Node(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((8, 1))), np.array(held, dtype=np.int64))
    with pytest.raises(BadInput, match="users that it does not hold"):
        node.compute(np.zeros(1), np.array(users, dtype=np.int64), Computation())


@pytest.mark.parametrize("users", [[2, 2], [2, 3, 3], [3, 2, 3], [4, 2], [2, 3, 4, 4]])
def test_nobody_counts_twice_however_often_a_question_names_them(users):
    """A clip bounds one row of a user, and no guarantee covers two of them in a sum."""
    node = Node(Quadratic(1, 9.0, 1.0), federation_of(np.ones((8, 1))), np.array([2, 3, 4]))
    with pytest.raises(BadInput, match="users of a question must rise: each user once"):
        node.compute(np.zeros(1), np.array(users), Computation(reduce="sum", clip_norm=1.0))


@pytest.mark.parametrize("x", [np.zeros(3), np.zeros((2, 1)), np.zeros(0)])
def test_a_model_of_another_shape_is_refused(x):
    node = Node(Quadratic(2, 1.0, 1.0), federation_of(np.zeros((8, 2))), np.arange(8))
    with pytest.raises(BadInput, match="the problem needs"):
        node.compute(x, np.array([1]), Computation())


class Explosive(Quadratic):
    """Gradients that are not finite for samples above one half."""

    def user_gradients(self, x, block):
        rows = super().user_gradients(x, block)
        rows[block.features[:, 0] > 0.5] = np.nan
        rows[block.features[:, 0] < -0.5] = -np.inf
        return rows


@pytest.mark.parametrize("reduce", ["rows", "sum"])
def test_gradients_that_are_not_finite_become_zero_and_are_counted_block_by_block(reduce, monkeypatch):
    monkeypatch.setattr(pipeline_module, "ROW_BYTES", 2 * 8)
    values = np.array([[0.25], [0.9], [-0.9], [0.25], [0.9]])
    node = Node(Explosive(1, 1.0, 1.0), federation_of(values), np.arange(5))
    answer = node.compute(np.zeros(1), np.arange(5), Computation(reduce=reduce))
    assert answer.non_finite == 3
    assert answer.values.sum() == -0.5


@pytest.mark.parametrize("memory", [0, 1500, node_module.MEMORY_BYTES], ids=["streamed", "some kept", "kept"])
def test_a_silo_answers_from_a_table_of_its_own_under_the_populations_numbers(memory, monkeypatch):
    monkeypatch.setattr(node_module, "MEMORY_BYTES", memory)
    problem, x, rows = Quadratic(5, 1.0, 2.0), np.linspace(-1, 1, 5), np.arange(40, 90)
    silo = Node(problem, people().select(rows), users=rows, rows=rows - 40)
    whole = Node(problem, people(), users=rows)
    asked = rows[::4]
    np.testing.assert_allclose(
        silo.compute(x, asked, Computation()).values, whole.compute(x, asked, Computation()).values, rtol=1e-12
    )


def test_users_that_do_not_rise_or_do_not_match_their_rows_are_refused():
    problem = Quadratic(5, 1.0, 2.0)
    with pytest.raises(BadInput, match="must rise"):
        Node(problem, people(), np.array([3, 3]))
    with pytest.raises(BadInput, match="one row per user"):
        Node(problem, people(), np.array([3, 4]), rows=np.array([0]))
    for users in (["anna"], [0.5], np.array([[1], [2]]), 3):
        with pytest.raises(BadInput, match="give whole numbers, such as") as refused:
            Node(problem, people(), users)
        assert "anna" not in str(refused.value)
    assert len(Node(problem, people(), []).users) == 0


def test_a_silo_refuses_to_tell_lengths():
    labels = [f"person {user}" for user in range(40)]
    silo = Node(Quadratic(5, 1.0, 2.0), people(), np.arange(40), labels=labels)
    asked = Computation(reduce="sum", clip_norm=0.5, lengths=True)
    with pytest.raises(BadInput, match="does not reveal their lengths"):
        silo.compute(np.zeros(5), np.arange(5), asked)
    assert silo.compute(np.zeros(5), np.arange(5), replace(asked, lengths=False)).lengths is None


def test_blocks_hold_as_many_samples_as_sparse_gradients_have_room_for(monkeypatch):
    asked, seen = Quadratic(5, 1.0, 2.0), []
    asked.sample_entries, gradients = 10, asked.user_gradients
    monkeypatch.setattr(node_module, "ROW_BYTES", 16 * asked.sample_entries * 8)
    monkeypatch.setattr(asked, "user_gradients", lambda x, block: seen.append(block.samples) or gradients(x, block))
    federation = federation_of(np.ones((30, 5)))
    Node(asked, federation, np.arange(30)).compute(np.zeros(5), np.arange(30), COMPUTATIONS["sum"])
    assert seen == [8, 8, 8, 6]
