"""Runs of column names."""

import pytest

from userdp.data import Derivation
from userdp.data.tables.columns import Columns
from userdp.data.tables.declared import expanded
from userdp.errors import BadInput


def test_runs_are_written_out_everywhere_before_anything_else():
    columns = Columns(
        user="who",
        features=["age", "p_[0-2]_[8-10]"],
        ranges={"age": [0, 9], "p_[0-1]_[8-10]": [0, 16], "p_2_[8-10]": [0, 1]},
        impute={"p_[0-2]_[8-10]": 0},
        missing_indicators=["p_0_[8-9]"],
        derive={"sum": Derivation(kind="product", of=["p_0_8", "age"], range=[0, 1])},
        dates={"visit_[1-2]": ["2020-01-01", "2021-01-01"]},
        date_formats={"visit_[1-2]": "%Y"},
    )
    names = [f"p_{row}_{column}" for row in range(3) for column in (8, 9, 10)]
    assert columns.samples.numbers == ["age", *names]
    assert columns.samples.names == ["age", *names, "visit_1", "visit_2", "sum", "p_0_8 is missing", "p_0_9 is missing"]
    assert columns.samples.ranges["p_1_10"] == (0, 16)
    assert columns.samples.ranges["p_2_9"] == (0, 1)
    assert columns.samples.ranges["visit_2"] == (0.0, 366.0)
    assert columns.samples.instead_of_missing("p_2_8") == 0


def test_names_without_a_run_stay_and_zeros_in_front_keep_the_width():
    assert expanded("features", ["day_[08-11]", "[a-b]", "x[1]", "y"]) == [
        *("day_08", "day_09", "day_10", "day_11"),
        *("[a-b]", "x[1]", "y"),
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pixel_*", r"features names 'pixel_\*': how many .* such as 'pixel_\[0-63\]'"),
        ("p_[9-3]", r"ends before it begins; write \[3-9\]"),
        ("p_[0-9999999999]", "has 1048576 at most"),
        ("p_[0-9999]_[0-9999]", "100000000 columns; a run has 1048576 at most"),
    ],
)
def test_runs_that_no_configuration_can_mean_are_refused(name, told):
    with pytest.raises(BadInput, match=told):
        expanded("features", [name])
