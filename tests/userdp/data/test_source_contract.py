"""The contract of sources of data: those of the house keep to it, and faults of others are noticed."""

from functools import cached_property
from typing import ClassVar

import numpy as np
import pytest

from userdp.data import Block, ColumnarFederation, Datasets, DataSettings, Shape
from userdp.data.registry import DATA_SOURCES
from userdp.data.synthetic.source import synthetic_settings
from userdp.errors import BadInput, ContractBroken
from userdp.testing import check_source


def test_sources_of_the_house_keep_to_the_contract(tmp_path):
    rows = [f"u{user},{17 * user % 80},{'yn'[user % 7 == 0]}" for user in range(60) for _ in range(1 + user % 3)]
    (tmp_path / "table.csv").write_text("\n".join(["who,age,kept", *rows]), encoding="utf-8")
    table = {"kind": "table", "path": str(tmp_path / "table.csv"), "user": "who", "features": ["age"]}
    for held_out in ({"all_users": 60, "test_fraction": 0.25}, {"split_column": "kept", "split_test": "n"}):
        check_source(DATA_SOURCES["table"], **table, ranges={"age": [0, 50]}, **held_out)
    for tail in ({}, {"samples_tail": 1.5}):
        settings = {"kind": "synthetic", "population": "linear_regression", "users": 50, "dimension": 3}
        check_source(synthetic_settings("linear_regression"), **settings, **tail)


class Right(DataSettings):
    """Thirty users of two samples each."""

    @property
    def declared_users(self):
        return 30

    @property
    def declared_samples(self):
        return 60

    @property
    def sample_limits(self):
        return 2, 2

    @cached_property
    def sample_shape(self):
        return Shape(1, has_target=True, bound=1.0, feature_norm=1.0, target_range=(-1.0, 1.0))

    def cells(self):
        return np.linspace(-1, 1, 60, dtype=np.float32)

    def load(self, seed, hidden=lambda: False):
        cells = self.cells()
        return Datasets(ColumnarFederation(Block(cells[:, None], np.arange(0, 61, 2), cells)), None, None)


class Fewer(Right):
    @property
    def declared_users(self):
        return 29


class Longer(Right):
    @property
    def sample_limits(self):
        return 1, 1


class Unbounded(Right):
    def cells(self):
        return 2 * super().cells()


class UnboundedBelow(Right):
    def cells(self):
        return np.minimum(2 * super().cells(), 1)


class NotFinite(Right):
    def cells(self):
        return np.where(super().cells() > 0.9, np.inf, 0).astype(np.float32)


class Changing(Right):
    def cells(self):
        return np.random.default_rng().uniform(-1, 1, 60).astype(np.float32)


class OtherShape(Right):
    @cached_property
    def sample_shape(self):
        return Shape(2, has_target=True)


class SaysNothing(Right):
    def load(self, seed, hidden=lambda: False):
        return Datasets(super().load(seed).users, super().load(seed).users, None)


class Alike(Right):
    def labels(self, seed):
        return np.array(["somebody"] * 30)


class FewLabels(Right):
    def labels(self, seed):
        return super().labels(seed)[1:]


class Shorter(Right):
    @property
    def sample_limits(self):
        return 3, None


class AlwaysFewer(Right):
    """Thirty users, then twenty-nine, and no number declared."""

    declared_users: ClassVar[None] = None
    declared_samples: ClassVar[None] = None

    @cached_property
    def reads(self):
        return []

    def load(self, seed, hidden=lambda: False):
        self.reads.append(seed)
        whole = super().load(seed)
        return Datasets(whole.users.select(np.arange(31 - len(self.reads))), None, None)


class SometimesTargets(Right):
    """No targets at first, and targets when it is read again."""

    @cached_property
    def reads(self):
        return []

    @cached_property
    def sample_shape(self):
        return Shape(1, has_target=False, bound=1.0, feature_norm=1.0)

    def load(self, seed, hidden=lambda: False):
        self.reads.append(seed)
        block = Block(self.cells()[:, None], np.arange(0, 61, 2), self.cells() if len(self.reads) > 1 else None)
        return Datasets(ColumnarFederation(block), None, None)


class LongRows(Right):
    @cached_property
    def sample_shape(self):
        return Shape(1, has_target=True, bound=1.0, feature_norm=0.5, target_range=(-1.0, 1.0))


class FarTargets(Right):
    @cached_property
    def sample_shape(self):
        return Shape(1, has_target=True, bound=1.0, feature_norm=1.0, target_range=(-1.0, 0.5))


class NoTargets(Right):
    @cached_property
    def sample_shape(self):
        return Shape(1, has_target=False, bound=1.0, feature_norm=1.0)


class SetAside(Right):
    """Samples out of all bounds, which do not count."""

    def load(self, seed, hidden=lambda: False):
        cells = self.cells()
        cells[::2] = np.resize([np.nan, np.inf, 9.0], 30)
        usable = np.resize([False, True], 60)
        return Datasets(ColumnarFederation(Block(cells[:, None], np.arange(0, 61, 2), cells, usable)), None, None)


class OutOfHand(SetAside):
    """The same, and one of them counts."""

    def load(self, seed, hidden=lambda: False):
        block = super().load(seed).users.block(np.arange(30))
        block.usable[4] = True
        return Datasets(ColumnarFederation(block), None, None)


@pytest.mark.parametrize("kind", [Right, SetAside])
def test_a_source_that_keeps_to_the_contract_passes(kind):
    check_source(kind)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Fewer, "declares 29 users and loads 30"),
        (Longer, "1 to 1 are declared"),
        (Unbounded, "declares bound = 1.0 of features, and 2 occurs"),
        (UnboundedBelow, "declares bound = 1.0 of features, and 2 occurs"),
        (NotFinite, "not finite"),
        (Changing, "other users when it is read again"),
        (OtherShape, "has 1 feature columns, and declares 2"),
        (SaysNothing, "let `holds_out` name the declaration"),
        (Alike, "labels two users alike"),
        (FewLabels, "labels two users alike, or not all"),
        (Shorter, "has users of 2 to 2 samples: 3 to None are declared"),
        (AlwaysFewer, "other users when it is read again"),
        (SometimesTargets, "other users when it is read again"),
        (LongRows, "declares feature_norm = 0.5 of features, and 1 occurs"),
        (FarTargets, "has targets outside of target_range"),
        (NoTargets, "has targets or none"),
        (OutOfHand, "declares bound = 1.0 of features, and 9 occurs"),
    ],
)
def test_a_source_that_breaks_the_contract_is_noticed(kind, told):
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*{told}"):
        check_source(kind)


def test_a_source_that_always_holds_people_out_does_not_let_all_of_them_train():
    class HoldsOut(Right):
        declared_held_out: ClassVar[int] = 3

    assert Right(kind="right").everybody() == Right(kind="right")
    with pytest.raises(BadInput, match=r"always holds users out; set privacy\.evaluate = false"):
        HoldsOut(kind="right").everybody()
