"""The words that a newcomer reads: remedies that fit, few metrics first, short plans, rounded claims, names."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import ASKED, GUARANTEE, call, changed, table_section, write_table
from hypothesis import given
from hypothesis import strategies as st

from simulations import plan, train
from simulations.api.comparing import ComparisonResult
from simulations.api.prediction import SavedModel, score
from simulations.config.run_config import PrivacySection, parse_config
from simulations.finding.facts import Found
from simulations.records.environment import own_version
from simulations.reports.report import page
from simulations.reports.units import ordered
from simulations.runs.run import run
from strategies.core.results import RoundRecord
from strategies.registry import STRATEGIES
from userdp.accounting.guarantee import Guarantee, rounded_up
from userdp.data.tables.declared import did_you_mean
from userdp.errors import BadInput, PopulationTooSmall

ROOT = Path(__file__).resolve().parents[2]
DECLARED = {key: value for key, value in ASKED.items() if key not in ("categorical", "positive", "users", "strategy")}
DECLARED |= {"target": "count", "target_range": [0, 9], "problem": "squared"}
CLIPPING = ASKED["strategy"]


@pytest.fixture
def path(tmp_path):
    return write_table(tmp_path / "people.csv")


# Remedies -------------------------------------------------------------------------------------------------------------


def test_too_many_declared_users_are_offered_as_all_users(path):
    with pytest.raises(PopulationTooSmall, match=r"declare at most 48, or data.all_users = 60, or lower"):
        train(path, **DECLARED, users=60, strategy=CLIPPING, progress=False)
    with pytest.raises(PopulationTooSmall) as refused:
        train(path, **DECLARED, users=60, min_samples=2, strategy=CLIPPING, progress=False)
    assert "all_users" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("progress", ""),
        ("progres", ""),
        ("epsilom", "epsilon"),
        ("featurs", "features"),
        ("target_rang", "target_range"),
    ],
)
def test_only_names_that_are_near_are_suggested(name, near):
    names = ("problem", "problems", "ranges", "epsilon", "features", "target", "target_range")
    assert did_you_mean(name, names) == (f"; did you mean {near!r}?" if near else "")


def test_a_comparison_says_what_its_values_are_of():
    rows = {"strategy": ["a", "a"], "epsilon": 1.0, "seed": [0, 1], "value": [1.0, 2.0], "initial": 3.0}
    table = pd.DataFrame({**rows, "reference_private": 0.5, "main_metric": "test_loss"})
    told = repr(ComparisonResult(table, "", None))
    assert told.startswith("value is the test loss, lower is better; means over 2 seeds\n")
    assert "value is the test loss" in ComparisonResult(table, "", None)._repr_html_()


def test_the_setting_of_sums_names_the_strategies_that_have_them():
    told = PrivacySection.model_fields["trust"].description
    masked = {name for name, kind in STRATEGIES.items() if kind.about.masked} - {"non_private"}
    assert {name for name in STRATEGIES if re.search(rf"\b{name}\b", told)} == masked


# Metrics --------------------------------------------------------------------------------------------------------------


def test_at_most_six_metrics_come_first_and_all_of_them_somewhere():
    spread = [f"{name}_p{share}" for name in ("squared_error", "accuracy") for share in (10, 50, 90)]
    root = "root mean squared error, in units of count"
    names = ["test_loss", "squared_error", *spread, "calibration_error", root, f"{root[:-19]} p10, in units of count"]
    first, rest = ordered(names)
    assert first == [root, "test_loss"]
    assert sorted([*first, *rest]) == sorted(names)
    assert ordered(["test_loss", "squared_error"])[0] == ["test_loss", "squared_error"]
    assert ordered(["test_loss", "log_loss", "accuracy", "auc"])[0] == ["accuracy", "auc", "test_loss"]
    assert len(ordered(["test_loss", *(f"own {k}" for k in range(9))])[0]) == 6
    assert ordered([]) == ([], [])


def test_the_page_folds_the_other_metrics(path, tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.reports.report._course", lambda *_: None)  # charts are slow
    data = table_section(path, target="count", positive=None, target_range=[0.0, 9.0])
    run(parse_config(changed(problem={"kind": "squared"}, data=data)), directory=tmp_path / "run")
    told = page(tmp_path / "run").partition("<h2>Metrics</h2>")[2].partition("<h2>")[0]
    before, _, folded = told.partition("<details>")
    assert "root mean squared error, in units of count<br>" in before
    assert "squared error p90" not in before
    assert "squared error p90" in folded


# Numbers for people ---------------------------------------------------------------------------------------------------


@given(st.floats(1e-300, 1e300), st.integers(1, 6))
def test_a_claim_is_rounded_up_and_by_less_than_one_unit_of_its_last_digit(value, digits):
    shown = float(rounded_up(value, digits))
    assert value <= shown <= value * (1 + 10 ** (1 - digits)) * (1 + 1e-12)


def test_epsilon_is_shown_with_four_digits_wherever_a_guarantee_is_printed():
    told = {"accountant": "a", "adversary": "b", "assumptions": (), "holds": True}
    promised = Guarantee("user", "replace_one", 3.999999995897852, 1.0001e-6, **told)
    assert str(promised) == promised.sentence()  # it assumes nothing
    assert str(promised).startswith("(4, 1.01e-06)-differential privacy")
    assert "(1.001, " in str(Guarantee("user", "replace_one", 1.00001, 1e-6, **told))
    assert rounded_up(math.inf) == "inf"


@pytest.mark.parametrize(
    "kept",
    [
        lambda promised: promised,
        lambda promised: SavedModel(parse_config(changed()), np.zeros(3), promised),
        lambda promised: Found({"ranges": {"age": [0.0, 90.0]}, "max_samples": 3}, promised, ("few users",), {}),
    ],
    ids=["guarantee", "saved model", "facts"],
)
def test_what_has_a_guarantee_prints_it_with_what_it_rests_on(kept):
    promised = replace(GUARANTEE, epsilon=1.9999999999999996)
    shown = kept(promised)
    assert str(promised) in str(shown) == repr(shown)
    assert "(2, 1e-05)" in str(shown)
    assert "1.9999" not in str(shown)
    assert all(f"  assuming: {one}\n" in f"{shown}\n" for one in promised.assumptions)


def test_facts_print_as_a_table():
    settings = {"user": "who", "ranges": {"age": [0.0, 90.0]}, "categorical": {"ward": ["a", "b"]}, "max_samples": 3}
    _, *rows = str(Found(settings, GUARANTEE, ("few users",), {})).splitlines()
    assert [row.split() for row in rows[:4]] == [
        ["user", "who"],
        ["ranges", "age", "0.0,", "90.0"],
        ["categorical", "ward", "a,", "b"],
        ["max_samples", "3"],
    ]
    assert rows[-1] == "Note: few users"


def test_a_record_of_a_round_shows_numbers_alone():
    assert "partial" not in repr(RoundRecord(1, 0.1, 0, 0, partial(float, 1.0), {}, {}))


def test_a_plan_is_printed_in_a_few_short_lines():
    planned = plan(**DECLARED, users=48, strategy=CLIPPING)
    first, *others = str(planned).splitlines()
    assert first == "dp_fed_sgd: 2 rounds of 48 of 48 users, at least 48 needed"
    assert others[1] == f"Guarantee: {planned.guarantee.sentence()}"
    assert others[2:] == [f"  assuming: {one}" for one in planned.guarantee.assumptions]
    assert not planned.warnings
    assert repr(planned) == str(planned)  # what a notebook shows


# Predictions beside columns of the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_that_are_kept_stand_beside_the_predictions(path, tmp_path, suffix):
    raw = changed(problem={"kind": "logistic"}, data=table_section(path), output={"reference": False})
    run(parse_config(raw), directory=tmp_path / "run", report=False)
    people = pd.read_csv(path, dtype=str)
    people["id"] = [f"{row:05}" for row in range(len(people))]
    table = tmp_path / f"others.{suffix}"
    people.to_csv(table, index=False) if suffix == "csv" else people.to_parquet(table)
    arguments = ["predict", tmp_path / "run", table, "--output", tmp_path / "p.csv", "--keep", "id", "--keep", "who"]
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert list(found) == ["id", "who", "prediction", "probability"]
    assert "--keep" not in done.output
    assert "--keep COLUMN copies a column" in call(*arguments[:-4]).output
    np.testing.assert_array_equal(found["id"], people["id"])  # zeros and all
    for wrong, told in (
        ("idd", "has no column 'idd'; did you mean 'id'"),
        ("prediction", "--keep prediction: the predictions have a column of that name"),
    ):
        with pytest.raises(BadInput, match=told):
            score(tmp_path / "run", table, tmp_path / "p.csv", [wrong])


# Names ----------------------------------------------------------------------------------------------------------------


def test_the_command_knows_its_version():
    done = call("--version")
    assert done.exit_code == 0
    assert done.stdout.strip() == f"userdp {own_version()}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simulations", "strategies"])
def test_userdp_trains_beside_a_folder_of_ones_own_that_has_a_packages_name(tmp_path, name):
    """`from simulations import train` finds the folder; `userdp.train` finds the package or says what is in the way."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("mine = True\n", encoding="utf-8")
    start = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "

    def python(code):
        program = [sys.executable, "-c", start + code]
        return subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=False)

    done = python("import userdp; print(userdp.train.__module__, userdp.plan.__name__, userdp.compare.__name__)")
    assert done.stdout.split() == ["simulations.api.training", "plan", "compare"], done.stderr
    refused = python(f"import {name}, userdp; userdp.train")
    assert f"ImportError: '{name}' was imported from {tmp_path / name}, which hides the package" in refused.stderr
