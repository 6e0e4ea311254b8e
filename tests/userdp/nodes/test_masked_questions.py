"""The questions that are masked: plain sums of clipped rows, each asked about one model."""

from dataclasses import fields, replace

import numpy as np
import pytest

from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.partition import Partition
from userdp.problems.in_coordinates import Coordinates
from userdp.sampling.coins import SampleCoins

X = np.array([0.5, -1.0])


def asked(**changes):
    masked = MaskedSum(IntegerGrid.finest(5.0, 40, 0.5), 5.0)
    return replace(Computation(reduce="sum", clip_norm=0.5, masked=masked), **changes)


def test_another_model_is_another_question_and_a_sum_without_a_clip_is_none():
    assert asked().question(np.nextafter(X, 1)) != asked().question(X) == asked().question(X.copy())
    with pytest.raises(BadInput, match="cannot be masked"):
        asked(clip_norm=None)


CHANGED = {
    "name": {"name": "sample_sum"},
    "reduce": {"reduce": "rows"},
    "clip_norm": {"clip_norm": np.nextafter(0.5, 1)},
    "l1_norm": {"l1_norm": 0.5},
    "parameters": {"parameters": {"steps": 1.0}},
    "centre": {"centre": np.zeros(2)},
    "statistic": {"statistic": "log_norm", "masked": replace(asked().masked, weight=0.5)},
    "noise": {"noise": LocalNoise(1.0, 0, 0)},
    "separate": {"separate": True},
    "partition": {
        "name": "clipped_sample_sum",
        "parameters": {"sample_clip_norm": 0.5},
        "partition": Partition(np.zeros((3, 1), dtype=np.int32), 1),
    },
    "coins": {"coins": SampleCoins(0.5, np.zeros(3, dtype=np.uint64))},
    "arrays": {"arrays": {"scales": X}},
    "lengths": {"lengths": True},
    "coordinates": {"coordinates": Coordinates(X, np.eye(2))},
}
"""Each attribute of a masked computation but the sum, changed."""
SUMMED = {
    "grid": IntegerGrid(-3),
    "deviation": 6.0,
    "seed": 1,
    "round": 1,
    "keys": (b"1" * 32, b"2" * 32),
    "weight": 0.25,
}


@pytest.mark.parametrize("name", [field.name for field in fields(Computation) if field.name != "masked"])
def test_whatever_changes_is_another_question_or_is_not_masked(name):
    """Else a node could be made to answer another question under the masks of the first."""
    if name not in {"name", "clip_norm", "parameters", "statistic", "separate"}:
        with pytest.raises(BadInput, match="cannot be masked"):
            asked(**CHANGED[name])
    else:
        assert asked(**CHANGED[name]).question(X) != asked().question(X)


@pytest.mark.parametrize("name", [field.name for field in fields(MaskedSum)])
def test_sums_that_differ_are_asked_by_other_questions(name):
    one = asked(**CHANGED["statistic"])
    other = replace(one, masked=replace(one.masked, **{name: SUMMED[name]}))
    assert other.question(X) != one.question(X)
    assert replace(one, statistic="log_size").question(X) != one.question(X)


def test_a_parameter_counts_by_its_name_and_value_in_no_order():
    first, again, other = (
        asked(parameters=one).question(X) for one in ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}, {"a": 2, "b": 1})
    )
    assert first == again != other
