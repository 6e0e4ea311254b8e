"""Tables of which modules only look rows up: the gradients of whole tables, in the rows that users touch alone."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn
from torch.nn import functional

from userdp.arrays.fixed_order import fixed_order
from userdp.arrays.sparse_rows import dense
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.neural.look_ups import LookUps, UsedOtherwise
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import TorchProblem

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of whole bags, once in a process

ITEMS, COLUMNS, PADDING = 400, 5, 7
EVERYBODY = 3, 1, 2, 6, 1, 100  # samples; the last user has all items


class Scores(nn.Module):
    """Scores of a sum of rows."""

    def __init__(self, table):
        super().__init__()
        self.table, self.out = table, nn.Linear(4, 3)

    def forward(self, codes):
        rows = self.table(codes)
        return self.out(torch.tanh(rows.sum(1) if rows.ndim == 3 else rows))


class Several(nn.Module):
    """Two tables, one of them read twice, and one at places that are no user's."""

    def __init__(self):
        super().__init__()
        self.items, self.kinds, self.out = nn.Embedding(ITEMS, 4), nn.EmbeddingBag(90, 4, mode="sum"), nn.Linear(4, 3)
        self.places = nn.Embedding(300, 4)

    def forward(self, codes):
        twice = self.items(codes).sum(1) * self.items((codes + 1) % ITEMS).mean(1)
        return self.out(torch.tanh(twice + self.kinds(codes % 90) + self.places(torch.arange(2 * COLUMNS)).sum(0)))


class Weighted(nn.Module):
    """A bag with weights."""

    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, 3, mode="sum")

    def forward(self, codes):
        return self.items(codes, per_sample_weights=torch.linspace(0, 1, COLUMNS).expand(codes.shape))


class Tied(nn.Module):
    """Scores of items by their own embeddings; one more table is only looked up."""

    def __init__(self):
        super().__init__()
        self.items, self.others, self.out = nn.Embedding(ITEMS, 2), nn.Embedding(40 * ITEMS, 2), nn.Linear(2, ITEMS)
        self.out.weight = self.items.weight

    def forward(self, codes):
        return self.out(self.items(codes).mean(1) + self.others(codes).mean(1))


class Lengthened(Scores):
    """A table whose length counts, too, as a penalty does."""

    def forward(self, codes):
        return super().forward(codes) + self.table.weight.square().mean()


class Offsets(Scores):
    """Bags of unequal size."""

    def forward(self, codes):
        return self.out(self.table(codes.flatten(), torch.arange(0, codes.numel(), COLUMNS)))


LOOKED = {
    "embedding": lambda: Scores(nn.Embedding(ITEMS, 4)),
    "padded": lambda: Scores(nn.Embedding(ITEMS, 4, padding_idx=PADDING)),
    "sparse": lambda: Scores(nn.Embedding(ITEMS, 4, sparse=True)),
    "sum": lambda: Scores(nn.EmbeddingBag(ITEMS, 4, mode="sum")),
    "mean": lambda: Scores(nn.EmbeddingBag(ITEMS, 4, mode="mean")),
    "padded sum": lambda: Scores(nn.EmbeddingBag(ITEMS, 4, mode="sum", padding_idx=PADDING)),
    "padded mean": lambda: Scores(nn.EmbeddingBag(ITEMS, 4, mode="mean", padding_idx=-1)),
    "several": Several,
    "weights": Weighted,
    "dropout": lambda: nn.Sequential(Scores(nn.Embedding(ITEMS, 4)), nn.Dropout(0.5)),
    "tied and not": Tied,
}
WHOLE = {
    "the longest": lambda: Scores(nn.EmbeddingBag(ITEMS, 4, mode="max")),
    "by frequency": lambda: Scores(nn.Embedding(ITEMS, 4, scale_grad_by_freq=True)),
    "offsets": lambda: Offsets(nn.EmbeddingBag(ITEMS, 4, mode="sum")),
    "penalty": lambda: Lengthened(nn.Embedding(ITEMS, 4)),
    "no codes": lambda: Scores(nn.Linear(COLUMNS, 4)),
    "small": lambda: Scores(nn.Embedding(8, 4)),
}


def problem(make, execution="auto", **more):
    items = 8 if make is WHOLE["small"] else ITEMS
    levels = None if make is WHOLE["no codes"] else (items,) * COLUMNS
    return TorchProblem(make, "cross_entropy", COLUMNS, levels=levels, typical_samples=1, execution=execution, **more)


def block(sizes=EVERYBODY, seed=0):
    rng, count = np.random.default_rng(seed), sum(sizes)
    codes = rng.integers(0, ITEMS, (count, COLUMNS)).astype(np.int32)
    codes[:3, 1:] = codes[0, 1:]  # come again, in a sample and between samples
    codes[3] = PADDING
    codes[4, 2:] = ITEMS - 1
    if sizes is EVERYBODY:
        codes[-100:] = rng.permutation(500).reshape(100, COLUMNS) % ITEMS
    return Block(codes, np.concatenate([[0], np.cumsum(sizes)]), rng.integers(0, 3, count).astype(np.float32))


def model_of(asked, seed=1):
    return asked.initial() + np.random.default_rng(seed).normal(0, 0.1, asked.dimension)


def by_torch(asked, x, users):
    """Torch's gradients of the module as it is, user by user; of its own embeddings."""
    original, found = asked.engine.model.original, []
    for user in range(users.users):
        own = users.part(user, user + 1)
        leaf = torch.as_tensor(x).to(original.dtype).requires_grad_()
        named = original.parameters.named(leaf)
        outputs = torch.func.functional_call(original.module, named, (torch.as_tensor(own.dense_features).long(),))
        loss = functional.cross_entropy(outputs, torch.as_tensor(own.targets).long())
        found.append(torch.autograd.grad(loss, leaf)[0].double().numpy())
    return np.array(found)


@pytest.mark.parametrize("execution", ["loop", "grouped"])
@pytest.mark.parametrize("name", [name for name in LOOKED if name != "dropout"])
def test_gradients_are_those_of_whole_tables(name, execution):
    asked, users = problem(LOOKED[name], execution), block()
    x = model_of(asked)
    found, wanted = asked.user_gradients(x, users), by_torch(asked, x, users)
    assert isinstance(found, csr_array)
    np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        asked.user_gradients_at(np.tile(x, (users.users, 1)), users), wanted, rtol=1e-4, atol=1e-6
    )
    again = csr_array((found.data, found.indices, found.indptr), shape=found.shape)
    assert again.has_canonical_format  # columns rise, and none comes twice


def test_a_module_that_draws_has_the_same_coins_for_rows_and_whole_tables():
    asked, users = problem(LOOKED["dropout"]), block()
    x = model_of(asked)
    whole = asked.user_gradients_at(np.broadcast_to(x, (users.users, asked.dimension)), users)
    assert asked.sparse
    np.testing.assert_allclose(dense(asked.user_gradients(x, users)), whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", WHOLE)
def test_tables_that_are_used_otherwise_are_computed_whole(name):
    assert not problem(WHOLE[name]).sparse


def test_a_user_has_entries_of_its_own_rows_alone():
    asked, users = problem(LOOKED["embedding"]), block()
    found = asked.user_gradients(model_of(asked), users)
    for user in range(users.users):
        own = np.unique(users.part(user, user + 1).dense_features)
        places = (4 * own[:, None] + np.arange(4)).ravel()
        np.testing.assert_array_equal(found[[user]].indices, [*places, *range(4 * ITEMS, asked.dimension)])


@pytest.mark.parametrize("execution", ["loop", "grouped"])
@pytest.mark.parametrize("name", ["embedding", "padded", "mean", "several"])
def test_in_a_fixed_order_a_row_has_the_same_bits_in_any_company(name, execution):
    asked, users = problem(LOOKED[name], execution), block((3, 1, 2, 6, 1, 5))
    x = model_of(asked)
    with fixed_order(True):
        together = asked.user_gradients(x, users).toarray()
        alone = [asked.user_gradients(x, users.part(user, user + 1)).toarray()[0] for user in range(users.users)]
        few = asked.user_gradients(x, users.part(2, 5)).toarray()
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together[2:5], few)


def test_padding_of_every_user_of_a_call_has_no_gradient():
    """torch.func.vmap's rule for embeddings leaves it to all users but the first."""
    asked, users = problem(LOOKED["padded"], "grouped"), block((2,) * 6)
    users.dense_features[:, 0] = PADDING
    x = model_of(asked)
    whole = asked.user_gradients_at(np.tile(x, (6, 1)), users)
    for rows in (whole, dense(asked.user_gradients(x, users))):
        assert not rows[:, 4 * PADDING : 4 * PADDING + 4].any()


@pytest.mark.parametrize("clip", [1e-3, 0.05, 10.0])
def test_a_node_clips_rows_and_the_rest_of_a_gradient_together(clip):
    asked, users = problem(LOOKED["several"]), block()
    node = Node(asked, ColumnarFederation(users), np.arange(users.users))
    x = model_of(asked)
    wanted = by_torch(asked, x, users)
    wanted *= np.minimum(1, clip / np.linalg.norm(wanted, axis=1))[:, None]
    rows = node.compute(x, np.arange(users.users), Computation("user_gradient", "rows", clip)).values
    np.testing.assert_allclose(dense(rows), wanted, rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(dense(rows), axis=1).max() <= clip * (1 + 1e-12)
    whole = node.compute(x, np.arange(users.users), Computation("user_gradient", "sum", clip)).values
    np.testing.assert_allclose(dense(whole)[0], wanted.sum(axis=0), rtol=1e-4, atol=1e-6)


def test_entries_of_a_sample_are_those_of_its_rows_and_of_what_is_in_no_table():
    assert problem(LOOKED["embedding"]).sample_entries == 4 * COLUMNS + 15
    assert problem(LOOKED["weights"]).sample_entries == 3 * COLUMNS


def test_a_use_that_shows_on_no_made_up_sample_counts_its_user_as_zero():
    class Sometimes(Scores):
        def forward(self, codes):
            rare = bool((codes == 11).all()) if not torch._C._functorch.is_batchedtensor(codes) else False
            return super().forward(codes) + (self.table.weight.sum() if rare else 0.0)

    asked, users = problem(lambda: Sometimes(nn.Embedding(ITEMS, 4)), "loop"), block((2, 2, 2, 2))
    users.dense_features[2:4] = 11
    node = Node(asked, ColumnarFederation(users), np.arange(4))
    answer = node.compute(model_of(asked), np.arange(4), Computation("user_gradient", "rows", 1.0))
    assert asked.sparse
    assert answer.non_finite == 1
    assert list(np.linalg.norm(dense(answer.values), axis=1) > 0) == [True, False, True, True]


def test_a_table_tells_its_shape_and_refuses_to_be_computed_with():
    tables = LookUps({"items": torch.zeros(5, 2)}, frozenset({"items"}), 1)
    table = tables.named(tables.models[0])["items"]
    assert (table.shape, len(table), table.dtype, table.device.type) == ((5, 2), 5, torch.float32, "cpu")
    for used in (lambda: table + 1, table.sum, lambda: torch.ones(1, 5) @ table, lambda: table.data):
        with pytest.raises(UsedOtherwise, match="items is used by"):
            used()
