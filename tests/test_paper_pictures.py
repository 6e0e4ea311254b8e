"""Pictures of the papers' pages: what they are drawn from is there."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def drawn():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("making.paper_pictures")


def test_a_picture_has_errors_of_who_its_theory_is_about(drawn):
    for name, picture in drawn.PICTURES.items():
        rows = pd.read_csv(drawn.RESULTS / f"{picture.table}.csv")
        rows = rows if picture.problem is None else rows[rows["problem"] == picture.problem]
        assert rows["problem"].nunique() == 1, name
        assert rows[rows["strategy"] == picture.theory.of]["value"].notna().any(), name
        along = rows[picture.along].unique()
        assert len(along) > 1, name
        assert all(picture.theory.grows(float(each)) > 0 for each in along), name


def test_a_picture_of_a_sweep_has_one_error_a_point_of_each_of_its_lines(drawn):
    for name, picture in drawn.SWEEP_PICTURES.items():
        rows = pd.read_csv(drawn.RESULTS / "sweeps" / f"{picture.table}.csv").dropna(subset=["error"])
        lines = [set(own[picture.along]) for _, own in rows.groupby(picture.by)]
        assert len(lines[0]) > 1, name
        assert all(line == lines[0] for line in lines), name
        assert not rows.duplicated([picture.by, picture.along]).any(), name
        assert (rows["least"] <= rows["error"]).all(), name
        assert (rows["error"] <= rows["most"]).all(), name
        assert all(np.isfinite(picture.power(float(value))) for value in rows[picture.by].unique()), name


def test_a_picture_of_a_sweep_draws_its_errors_and_theory_from_the_first_of_them(drawn, tmp_path, monkeypatch):
    (tmp_path / "sweeps").mkdir()
    rows = [(2, 10, 1.0), (2, 1000, 0.2), (4, 10, 3.0), (4, 1000, 0.1)]
    frame = pd.DataFrame(rows, columns=["p", "samples", "error"]).assign(least=0.05, most=4.0)
    frame.to_csv(tmp_path / "sweeps" / "some.csv", index=False)
    monkeypatch.setattr(drawn, "RESULTS", tmp_path)
    figure = drawn._drawn_sweep(drawn.SweepPicture("some", "samples", "p", lambda p: -1 / p))
    found = [line.get_ydata() for line in figure.axes[0].lines]
    np.testing.assert_allclose(found, [[1, 0.2], [1, 0.1], [3, 0.1], [3, 3 / 100**0.25]])


def lines_of(figure):
    """Label -> the heights at which a line is drawn."""
    return {line.get_label(): np.asarray(line.get_ydata(), dtype=float) for line in figure.axes[0].lines}


def test_every_median_of_a_picture_is_drawn_where_the_table_has_it(drawn):
    for name, picture in drawn.PICTURES.items():
        rows = pd.read_csv(drawn.RESULTS / f"{picture.table}.csv")
        rows = rows if picture.problem is None else rows[rows["problem"] == picture.problem]
        figure = drawn._drawn(picture)
        lines, (lowest, highest) = lines_of(figure), figure.axes[0].get_ylim()
        assert ("zero" in lines) == (rows["value"] <= 0).any(), name
        for strategy, own in rows.groupby("strategy"):
            medians = own.groupby(picture.along)["value"].median()
            heights = lines[strategy]
            np.testing.assert_array_equal(heights[medians > 0], medians[medians > 0], err_msg=f"{name}: {strategy}")
            assert (heights[medians == 0] == lines.get("zero", [0])[0]).all(), name
            assert (lowest <= heights).all(), name
            assert (heights <= highest).all(), name


def test_a_start_that_is_a_median_says_so_in_the_picture(drawn):
    several, one = drawn.PICTURES["paper-core-as-written"], drawn.PICTURES["paper-high-dimension"]
    assert "the start, median of 5 seeds" in lines_of(drawn._drawn(several))
    assert "the start" in lines_of(drawn._drawn(one))
