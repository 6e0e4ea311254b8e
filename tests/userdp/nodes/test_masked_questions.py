"""The questions that are masked: plain sums of clipped rows, each asked about one model."""

from dataclasses import fields, replace
from itertools import combinations

import numpy as np
import pytest

from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.partition import Partition
from userdp.nodes.pipeline import RowPipeline
from userdp.nodes.statistics import octaves
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
    "counted": {"counted": True},
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
    if name not in {"name", "clip_norm", "parameters", "statistic", "separate", "counted"}:
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


ROWS = np.array([[0.0, 0.0], [9.0, 0.0], [-9.0, 0.0], [0.1, -0.2], [np.nan, 0.1], [np.inf, -np.inf]])


@pytest.mark.parametrize("changes", [{}, {"name": "update_octaves"}, CHANGED["statistic"] | {"statistic": "unclipped"}])
def test_rows_of_counted_users_are_as_long_and_as_far_apart_as_others(changes):
    """The rows of some users, by brute force; their first entry tells who is not finite."""
    question = asked(counted=True, **changes)
    weight = question.masked.weight or 0.0
    sent = octaves(ROWS) / 2 if question.name == "update_octaves" else ROWS  # of the length of the clip
    rows = []
    for row in sent:
        pipeline = RowPipeline(question, np.arange(1), 2)
        pipeline.add(row[None], slice(0, 1))
        rows.append(np.ldexp(pipeline._total.astype(float), question.masked.grid.exponent))
    told = ~np.isfinite(ROWS).all(axis=1)
    np.testing.assert_allclose([row[0] for row in rows], told * question.longest, rtol=1e-9)
    assert not np.any([row[1:] for row in np.array(rows)[told]])
    assert {len(row) for row in rows} == {question.width(2)}
    assert max(map(np.linalg.norm, rows)) <= question.longest * (1 + 1e-12)
    apart = max(np.linalg.norm(one - other) for one, other in combinations(rows, 2))
    assert apart <= question.sensitivity("replace_one", weight=weight) * (1 + 1e-12)


def test_users_are_counted_in_masked_sums_alone_and_beside_no_number_that_is_further_from_zero_on_one_side():
    with pytest.raises(BadInput, match="leave out counted"):
        asked(counted=True, masked=None)
    with pytest.raises(BadInput, match="its range is not about zero"):
        asked(counted=True, **CHANGED["statistic"])


def test_a_parameter_counts_by_its_name_and_value_in_no_order():
    first, again, other = (
        asked(parameters=one).question(X) for one in ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}, {"a": 2, "b": 1})
    )
    assert first == again != other
