"""Tables and declarations from which nothing can be learnt: a sentence with column, kind and remedy, never a model."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from examples import changed, table_section, write_table

from simulations.api.prediction import load_model
from simulations.config.run_config import parse_config
from simulations.reports.report import page
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.run import run
from simulations.runs.silos import prepare
from userdp.data import read_table
from userdp.data.tables.unusable import kind_of_cells
from userdp.errors import BadInput

CODES = {"features": None, "ranges": None, "categorical": None}
NUMBER = {"target": "count", "positive": None}
SECURE = {"epsilon": 4.0, "delta": 1e-3, "noise": "secure"}
UNUSABLE = {"features": ["born"], "ranges": {"born": [0.0, 9.0]}}
WITH_DATES = {"features": ["height", "born"], "ranges": {"height": [150.0, 200.0], "born": [0.0, 9.0]}}


@pytest.fixture
def path(tmp_path):
    """People with a column of each kind: born (dates), at (times), price (commas), grade (words), none (no cell)."""
    table = pd.read_csv(write_table(tmp_path / "people.csv"))
    place = np.arange(len(table)) % 28
    table["born"] = [f"198{one % 10}-01-{one + 1:02}" for one in place]
    table["at"] = [f"{one % 24}:30" for one in place]
    table["price"] = [f"1,0{one:02}" for one in place]
    table["grade"] = np.array(["none", "mild", "severe"])[place % 3]
    table["none"] = ""
    table.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def configuration(path, problem="logistic", privacy=None, output=None, **settings):
    return parse_config(
        changed(
            problem={"kind": problem} if isinstance(problem, str) else problem,
            data=table_section(path, **settings),
            privacy=privacy or {"epsilon": 8.0, "delta": 1e-3},
            output={"reference": False} | (output or {}),
        )
    )


# Columns of which no cell can be used ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("born", r"its cells are dates; declare it under dates, such as dates = \{ born = "),
        ("at", "its cells are times of day; write each time as a number"),
        ("price", "its cells are numbers with commas; declare a CSV file.s"),
        ("grade", "its cells are text; list the column under categorical"),
        ("none", "has no cell with a value"),
    ],
)
def test_a_numeric_column_without_a_number_stops_a_simulation(path, column, told):
    config = configuration(path, features=["height", column], ranges={"height": [150.0, 200.0], column: [0.0, 9.0]})
    with pytest.raises(BadInput, match=f"the feature '{column}' .*{told}.*Private: .* for the holder of the data"):
        load_datasets(config)


@pytest.mark.parametrize("how", [{"impute": {"born": 5}}, {"derive": {"since": {"of": ["born"], "range": [0, 5]}}}])
def test_no_imputed_value_and_no_derived_column_hides_it(path, how):
    ranges = {"height": [150.0, 200.0]} | ({"born": [0.0, 9.0]} if "impute" in how else {})
    if "derive" in how:
        how["derive"]["since"] |= {"kind": "log1p"}
    with pytest.raises(BadInput, match=r"the feature 'born' .* its cells are dates") as refused:
        load_datasets(configuration(path, features=list(ranges), ranges=ranges, **how))
    assert "since'" not in str(refused.value)


def test_codes_without_a_declared_level_stop_a_simulation(path):
    misspelt = {**CODES, "codes": "team", "levels": ["Red", "Blue"]}
    for problem, declared in (("one_hot_logistic", misspelt), ("logistic", {"categorical": {"team": ["Red"]}})):
        with pytest.raises(BadInput, match="the feature 'team' has no cell with a declared level"):
            load_datasets(configuration(path, problem, **declared))
    with pytest.raises(BadInput, match="the feature 'none' has no cell with a value"):
        load_datasets(configuration(path, categorical={"none": ["Red"]}))
    with pytest.raises(BadInput, match="the feature 'grade' is declared as a date, and no cell can be read as one"):
        load_datasets(configuration(path, date_parts={"grade": ["month"]}))
    with pytest.raises(BadInput, match=r"'team' .* its cells are text; declare the list of its levels"):
        load_datasets(configuration(path, "one_hot_logistic", **{**misspelt, "levels": 3}))


def test_no_value_of_a_cell_is_in_the_sentence(path):
    with pytest.raises(BadInput) as refused:
        load_datasets(configuration(path, **UNUSABLE, target="grade", positive=None))
    assert all(cell not in str(refused.value) for cell in ("198", "severe", "mild"))


def test_one_cell_is_enough_and_a_frame_of_dates_is_refused_by_its_type(path, tmp_path):
    table = pd.read_csv(path)
    table["born"] = table["born"].astype(object)
    table.loc[3, "born"] = 7
    table.to_csv(tmp_path / "one.csv", index=False)
    load_datasets(configuration(tmp_path / "one.csv", **WITH_DATES))
    pd.read_csv(path, parse_dates=["born"]).to_parquet(tmp_path / "dates.parquet")
    with pytest.raises(BadInput, match="column 'born' holds timestamp"):
        load_datasets(configuration(tmp_path / "dates.parquet", **WITH_DATES))


def test_secure_noise_warns_the_holder_of_the_data_and_one_persons_cell_stops_nothing(path, tmp_path, caplog):
    """Everybody sees whether a run with real people stops, so no cell may decide it."""
    load_datasets(configuration(path, privacy=SECURE, **UNUSABLE))
    prepare(configuration(path, privacy=SECURE, **UNUSABLE, test_fraction=0.0), tmp_path / "silo", 0)
    told = [line for line in caplog.messages if "'born'" in line]
    assert len(told) == 2
    assert all("the model will be noise" in line and "Private" in line for line in told)


def test_reading_a_table_never_fails_for_it_and_its_report_says_so(path, caplog):
    table = read_table(path, user="who", features=["born"], ranges={"born": [0, 9]}, target="grade")
    assert [sentence.split(" is ")[0] for sentence in table.report.nothing_usable] == [
        "the feature 'born'",
        "the target 'grade'",
    ]
    assert "nothing_usable" in table.report.as_dict()
    assert all(sentence in caplog.messages for sentence in table.report.nothing_usable)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1980-01-01", "1980-01-02 10:00:00", ""], "dates"),
        (["1.2.1980", "31/12/80"], "dates"),
        (["10:00", "9:30:15.5"], "times of day"),
        (["1,5", "1.000,5", "10,000.5", "1,5e-05"], "numbers with commas"),
        (["1.5", "0.123456789012345678", "1.5e-05"], "numbers"),
        (["1980-01-01", "soon"], "text"),
        (["44289", "44290.5"], "numbers"),
        (["inf", "-Infinity"], "infinite numbers"),
        (["", ""], "missing"),
        ([], "missing"),
    ],
)
def test_the_kind_of_cells_does_not_depend_on_their_order(cells, kind):
    assert kind_of_cells(cells) == kind_of_cells(cells[::-1]) == kind


# Declarations that make all cells one number --------------------------------------------------------------------------

CLIPPED = {
    "a feature": (
        "logistic",
        {"ranges": {"height": [1500.0, 2000.0]}},
        "the feature 'height' has no cell above .* of ranges",
    ),
    "a derived one": (
        "logistic",
        {"derive": {"log": {"kind": "log1p", "of": ["height"], "range": [0.0, 1.0]}}},
        r"the feature 'log' has no cell below the upper end of derive\.log\.range",
    ),
    "dates": ("logistic", {"dates": {"born": ["2000-01-01", "2020-01-01"]}}, r"no cell above .* of dates\.born"),
    "a target": (
        "squared",
        NUMBER | {"target_range": [100.0, 900.0]},
        "the target 'count' .* end of target_range, so all",
    ),
    "classes": (
        "logistic",
        {"target": "grade", "positive": "Severe"},
        "positive = 'Severe' is in no cell of .* 'grade', so",
    ),
    "codes 1 and 2": (
        "logistic",
        {"target": "code", "positive": None},
        r"'code' has no cell below .* \[0, 1\], into .* data\.positive",
    ),
    "its loss": (
        {"kind": "squared", "target_range": [-2.0, -1.0]},
        NUMBER,
        r"'count' has no cell below .* \[-2, -1\], into which .* 'squared' clips",
    ),
}


@pytest.fixture
def coded(path):
    """The same people with the codes 1 and 2 of two classes, in Parquet."""
    table = pd.read_csv(path, keep_default_na=False)
    table.assign(code=1 + (table.passed == "yes")).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.mark.parametrize("memory", [None, 0], ids=["in memory", "in batches"])
@pytest.mark.parametrize("what", CLIPPED)
def test_a_declaration_that_makes_all_cells_one_number_stops_a_simulation(coded, caplog, what, memory):
    problem, settings, told = CLIPPED[what]
    with pytest.raises(BadInput, match=f"{told}.*Nothing would be learnt.*Private: .* holder of the data") as refused:
        load_datasets(configuration(coded, problem, memory=memory, **settings))
    assert not caplog.messages
    load_datasets(configuration(coded, problem, memory=memory, privacy=SECURE, **settings))
    (warned,) = (line for line in caplog.messages if "learn nothing of this column" in line)
    assert warned.partition(". Then")[0] == str(refused.value).partition(". Nothing")[0]


@pytest.mark.parametrize("codes", [(0, 1), (-1, 1), (False, True), (0.25, 0.75), (1, 1)])
def test_numbers_of_two_classes_need_no_declaration(coded, tmp_path, caplog, codes):
    table = pd.read_parquet(coded)
    table.assign(code=np.array(codes)[table.code - 1]).to_parquet(tmp_path / "codes.parquet")
    load_datasets(configuration(tmp_path / "codes.parquet", target="code", positive=None))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ranges": {"height": [190.0, 2000.0]}}, "a tenth of the cells of the feature 'height' lie outside ranges"),
        ({"ranges": {"height": [0.0, 1e6]}}, "all cells of the feature 'height' lie within a thousandth of ranges"),
        (
            {"target": "count", "positive": None},
            "'count' has cells below -1 or above 1.* set data.positive .* Private",
        ),
        (
            {"categorical": {"team": ["Red", "blue"]}},
            "more than a tenth of the cells of the feature 'team' are",
        ),
        ({"target": "grade", "positive": None, "target_levels": ["mild", "Severe"]}, "tenth of .* the target 'grade'"),
    ],
)
def test_the_holder_of_the_data_is_warned_of_columns_that_are_mostly_not_as_declared(path, caplog, settings, told):
    load_datasets(configuration(path, **settings))
    (warned,) = caplog.messages
    assert re.search(told, warned)


def test_the_holder_of_the_data_is_warned_of_counts_below_zero(coded, caplog):
    table = pd.read_parquet(coded)
    table.assign(code=3 * table.code - 4).to_parquet(coded)
    counts = {"target": "code", "positive": None, "target_range": [0.0, 9.0]}
    load_datasets(configuration(coded, "poisson", **counts))
    assert re.search(r"'code' has cells below 0, and .* clips into \[0.0, 9.0\]", caplog.messages[0])


# Declarations that show it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "settings", "told"),
    [
        (
            {"kind": "torch", "loss": "cross_entropy", "outputs": 3},
            NUMBER,
            "problem.loss = 'cross_entropy' needs class",
        ),
        ({"kind": "torch", "loss": "bce_with_logits"}, NUMBER, "problem.loss = 'bce_with_logits' needs 0 and 1"),
        ("logistic", NUMBER, "problem.kind = 'logistic' needs 0 and 1"),
        ("sparse_logistic", {**CODES, **NUMBER, "codes": ["team"], "buckets": 8}, "'sparse_logistic' needs 0 and 1"),
        ("one_hot_logistic", {**CODES, **NUMBER, "codes": "team", "levels": ["red"]}, "'one_hot_logistic' needs 0"),
    ],
)
def test_a_target_range_scales_classes_and_counts_and_is_refused(path, problem, settings, told):
    with pytest.raises(BadInput, match=rf"data.target_range scales the target to .*, and .*{told}"):
        build_problem(configuration(path, problem, **settings, target_range=[0.0, 9.0]))
    build_problem(configuration(path, problem, **settings))


# What is said of the model --------------------------------------------------------------------------------------------


def test_a_held_out_target_of_one_class_measures_nothing(path, tmp_path, monkeypatch):
    """A misspelt positive cell: whoever always says no is right, which is no merit of the model."""
    monkeypatch.setattr("simulations.reports.report._course", lambda *_: None)  # charts are slow
    misspelt = configuration(path, privacy=SECURE, output={"anyway": True}, target="grade", positive="Severe")
    outcome = run(misspelt, directory=tmp_path / "run")
    assert outcome.result["metrics"]["accuracy"] == 1.0
    assert outcome.result["better_than_initial"] is None
    assert "one class" in outcome.result["not_measured"]
    assert "<strong>Not measured</strong>\nAll targets of the held-out users are one class" in page(tmp_path / "run")
    spelt = configuration(path, target="grade", positive="severe")
    good = run(spelt, directory=tmp_path / "good", report=False).result
    assert "not_measured" not in good
    assert good["better_than_initial"] is not None


def test_nobody_was_held_out_is_said_of_nobody_else(path, tmp_path):
    config = configuration(path, privacy=SECURE, output={"anyway": True}, **UNUSABLE)
    outcome = run(config, directory=tmp_path / "run", report=False)
    assert json.loads((tmp_path / "run" / "data.json").read_text())["held_out_users"] == 12
    assert outcome.result["not_measured"].startswith("12 users were held out, and no sample of theirs")
    nobody = run(configuration(path, test_fraction=0.0), directory=tmp_path / "nobody", report=False)
    assert nobody.result["not_measured"] == "nobody was held out"


# Predictions ----------------------------------------------------------------------------------------------------------


def test_a_prediction_of_nan_is_never_silent(path, tmp_path, caplog):
    run(configuration(path), directory=tmp_path / "run", report=False)
    saved = load_model(tmp_path / "run")
    people = pd.DataFrame({"height": ["170", "tall", ""], "team": "red"})
    assert saved.predict(people)["prediction"].isna().tolist() == [False, True, True]
    (told,) = caplog.messages
    assert told.startswith("2 of 3 rows get no prediction (NaN)")
    assert "'height' in 2 of them" in told


def test_one_patient_of_one_team_is_no_misspelt_level(path, tmp_path, caplog):
    declared = {"team": ["red"], "grade": ["mild", "severe"]}
    run(configuration(path, categorical=declared), directory=tmp_path / "run", report=False)
    saved = load_model(tmp_path / "run")
    one = {"height": [170.0], "team": ["blue"], "grade": ["none"]}
    caplog.clear()  # what was said of the training table
    assert saved.predict(pd.DataFrame(one), on_unknown="reference").notna().all(axis=None)
    (told,) = caplog.messages
    assert told.startswith("1 of 1 rows hold no declared level")
    caplog.clear()
    saved.evaluate(pd.DataFrame(one | {"who": ["ann"], "passed": ["yes"]}))
    assert not [line for line in caplog.messages if "spelling" in line or "one class" in line]
    saved.evaluate(pd.DataFrame(one | {"who": ["ann"], "passed": ["yes"]}).loc[[0, 0]])
    assert [line for line in caplog.messages if line.startswith("all targets of the table are one class")]
    assert not [line for line in caplog.messages if "held-out" in line or "hold out" in line]


def test_a_misspelt_level_of_the_training_table_is_said_once(path, caplog):
    load_datasets(configuration(path, categorical={"team": ["Red"]}, privacy=SECURE))
    assert sum("declared level" in line for line in caplog.messages) == 1
