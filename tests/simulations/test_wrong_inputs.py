"""Mistakes of beginners in `userdp.train` on a frame: a sentence with the column, the value and the remedy."""

from datetime import date

import pandas as pd
import pytest
import tomli_w
from examples import ASKED, write_table

from simulations.api.arguments import OF_A_RUN, sections
from strategies import DPFedSGD
from userdp import compare, plan, train
from userdp.data.tables.cells import cell_text
from userdp.data.tables.columns import Columns
from userdp.errors import BadInput

CLASSES = {"kind": "torch", "loss": "cross_entropy", "outputs": 3}
WORDS = {"target": "grade", "positive": None}
NO_NUMBER = r"the target 'grade' .* its cells are text; for two classes set positive .*; for several .* target_levels"
BORN = {"features": ["height", "born"]}
IN_DATES = r"for dates, declare a feature under dates, such as dates = \{ born = "


@pytest.fixture
def frame(tmp_path):
    """People with a column of dates (born), of three words (grade) and of two (married)."""
    table = pd.read_csv(write_table(tmp_path / "people.csv"))
    place = range(len(table))
    table["born"] = [f"198{row % 10}-01-01" for row in place]
    table["month"] = pd.PeriodIndex(table["born"], freq="M")
    table["grade"] = [("none", "mild", "severe")[row % 3] for row in place]
    table["married"] = [("yes", "no")[row % 2] for row in place]
    return table


def refused(frame, **settings):
    with pytest.raises(BadInput) as caught:
        train(frame, progress=False, **ASKED | settings)
    told = str(caught.value)
    assert len(told.splitlines()) == 1, told
    return caught


# Cells that are not what their column is declared to be ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param(
            BORN | {"ranges": {"height": [150, 200], "born": [1977, 1983]}},
            r"the feature 'born' is declared as numbers, .* its cells are dates; declare it under dates, such as",
            id="dates in a range of years",
        ),
        pytest.param(WORDS, NO_NUMBER, id="words for logistic"),
        pytest.param(WORDS | {"problem": "softmax"}, NO_NUMBER, id="words for softmax"),
        pytest.param(WORDS | {"problem": CLASSES}, NO_NUMBER, id="words for cross_entropy"),
        pytest.param(
            WORDS | {"problem": CLASSES, "target": "count", "target_range": [0, 2]},
            r"data.target_range scales the target .*'cross_entropy' needs classes .*leave data.target_range out",
            id="target_range with cross_entropy",
        ),
        pytest.param(
            WORDS | {"positive": ["severe", "mild"]},
            r"positive = \['severe', 'mild'\]: must be the one cell that means 1; to join several, make a column .* "
            "for several classes list them in target_levels",
            id="several positive cells",
        ),
        pytest.param(
            WORDS | {"levels": ["none", "mild", "severe"]},
            "levels = .* has no meaning for features of columns: leave it out; for features use categorical, for a "
            "target of two classes positive, of several target_levels",
            id="levels of a target",
        ),
        pytest.param(
            {"features": ["height", "married"]},
            r"no \[low, high\] for the numeric feature 'married'; .*, or list the column under categorical with its",
            id="words without a range",
        ),
        pytest.param(
            {"features": ["height", "married"], "ranges": {"height": [150, 200], "married": [0, 1]}},
            "the feature 'married' .* its cells are text; list the column under categorical with its levels",
            id="words in a range",
        ),
        pytest.param(
            {"features": ["height", "month"], "ranges": {"height": [150, 200], "month": [0, 99]}},
            "the feature 'month' .* its cells are text; list the column under categorical with its levels",
            id="periods, which are no numbers of months",
        ),
    ],
)
def test_cells_of_another_kind(frame, settings, told):
    assert refused(frame, **settings).match(told)


@pytest.mark.parametrize("bound", ["1977-01-01", date(1977, 1, 1), pd.Timestamp("1977-01-01")])
def test_dates_as_bounds(frame, bound):
    feature = refused(frame, **BORN, ranges={"height": [150, 200], "born": [bound, bound]})
    assert feature.match(r"data\.ranges\.born = .*1977.*: a range takes two numbers; " + IN_DATES)
    target = refused(frame, target="born", positive=None, problem="squared", target_range=[bound, bound])
    assert target.match(r"data\.target_range = .*1977.*: a range takes two numbers; .* write a target as numbers")
    assert "valid number" not in str(feature.value) + str(target.value)


# Settings of another shape --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"features": "height"}, r"data.features = 'height' .*: must be a list, such as \['height'\]"),
        ({"ranges": [150, 200]}, r"data.ranges = \[150, 200\]: .*, in Python a dict \(Column = \[low, high\]"),
        ({"ranges": {"height": "150-200"}}, r"data.ranges.height = '150-200': a range takes two numbers"),
        (
            {"categorical": {"team": ["red", object()]}},
            "data.categorical.team = <object>: must be text, a num",
        ),
        (
            {"categorical": {"team": [["red"], ["blue"]]}},
            "categorical.team must be a list of levels, .* none of them a",
        ),
        ({"positive": b"yes"}, "data.positive = b'yes' .*: must be text, a number, true, false or a date"),
        ({"impute": {"height": object()}}, "data.impute.height = <object>: must be text, a number"),
        ({"directory": 3}, "directory = 3: must be a path"),
        ({"categorical": ["team"]}, r"data.categorical = \['team'\]: .*, in Python a dict \(Column = \[levels\]"),
        ({"problem": None}, "problem is missing: its kind is one of linear, .*logistic"),
        ({"user": None}, "data.user is missing: give column that names the user of each row"),
        (
            {"rounds": 5},
            r"no setting 'rounds': the strategy has it, so write strategy=\{'kind': 'dp_fed_sgd', 'rounds'",
        ),
        ({"ridge": 1.0}, r"no setting 'ridge': the problem has it, so write problem=\{'kind': 'logistic', 'ridge': "),
        ({"rounds": 5, "strategy": None}, "there is no setting 'rounds'; those of a strategy stand in strategy="),
        ({"rounds": 5, "strategy": "no_such"}, "there is no setting 'rounds'; those of a strategy stand in strategy="),
        ({"epsilom": 1.0}, "there is no setting 'epsilom'; did you mean 'epsilon'"),
        ({"epsilon": None}, "privacy.epsilon is missing"),
        ({"user": "whom"}, "the DataFrame has no column 'whom'; did you mean 'who'"),
        ({"path": "people.csv"}, "there is no setting 'path'"),
        (
            {"strategy": DPFedSGD},
            "strategy = DPFedSGD: must be the strategy's name, 'dp_fed_sgd', or that with settings",
        ),
        ({"strategy": DPFedSGD(clip_norm=1.0)}, "strategy = DPFedSGD: must be the strategy's name, 'dp_fed_sgd'"),
    ],
)
def test_settings_of_another_shape(frame, settings, told):
    assert refused(frame, **settings).match(told)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epsilon": (1, 4)}, r"epsilon = \[1, 4\]: one model has one epsilon; give one, or call compare, which takes"),
        ({"strategy": ["auto"]}, r"strategy = \['auto'\]: one model has one strategy; give one, or call compare"),
        ({"strategies": ["auto"]}, "strategies makes several runs, and this is one: call compare, or leave"),
        ({"seeds": 3}, "seeds makes several runs, and this is one: call compare, or leave seeds out"),
    ],
)
def test_one_model_takes_one_of_each_and_says_who_takes_several(frame, settings, told):
    assert refused(frame, **settings).match(told)
    with pytest.raises(BadInput, match=told):
        plan(**ASKED | settings)


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, float("nan")])
def test_what_is_missing_in_pandas_is_a_missing_cell_among_levels(missing):
    data = sections({"categorical": {"team": ["red", missing]}, "user": "who"}, "p", OF_A_RUN, "n")["data"]
    levels = Columns(**{key: value for key, value in data.items() if key not in ("kind", "path")}).categorical["team"]
    assert [*map(cell_text, levels)] == ["red", ""]
    tomli_w.dumps({"levels": levels})


@pytest.mark.parametrize("path", ["x\0.csv", "~nobody of this name/x.csv", "x" * 5000 + ".csv"])
def test_a_path_that_leads_nowhere_is_refused(path):
    with pytest.raises(BadInput, match=r"leads nowhere|does not exist"):
        train(path, **ASKED)


CELLS = {
    "complex numbers": lambda height: height + 1j,
    "durations": lambda height: pd.to_timedelta(height, "h"),
    "bins": lambda height: pd.cut(height, 5),
    "per cent": lambda height: height.astype(str) + " %",
    "an amount": lambda height: "$" + height.astype(str),
    "underscores": lambda height: [f"{1000 * int(cell):_}" for cell in height],
    "digits of another script": lambda height: [str(int(cell)).translate({48: 0x660, 49: 0x661}) for cell in height],
    "lists": lambda height: [[cell, SECRET] for cell in height],
    "dicts": lambda height: [{"cell": cell, "note": SECRET} for cell in height],
    "sparse": pd.arrays.SparseArray,
}
SECRET = "secret777"


@pytest.mark.parametrize("kind", CELLS)
def test_a_feature_of_cells_that_are_no_plain_numbers_names_itself_and_no_cell(frame, kind):
    frame["height"] = CELLS[kind](frame["height"])
    told = str(refused(frame).value)
    assert "'height'" in told
    assert any(remedy in told for remedy in ("convert it", "write numbers"))
    assert SECRET not in told


COUNTS = {"problem": "poisson", "target": "count", "positive": None, "target_range": [0, 9]}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            COUNTS | {"exposure": "count", "ranges": {"height": [1, 2], "count": [1, 2]}},
            "'count' is declared twice; user, target, exposure, offset and features must",
        ),
        (COUNTS | {"exposure": "height"}, "'height' is declared twice; user, target, exposure, offset and features"),
        (COUNTS | {"exposure": "born"}, r"ranges has no \[low, high\] for exposure = 'born'; declare it"),
        ({"impute": "mean"}, r"data.impute = 'mean': must be a section, .* in Python a dict"),
        ({"target": "who"}, "'who' is declared twice"),
        ({"strategy": {"rounds": 3}}, "strategy.kind is missing: choose one of auto"),
        ({"problem": {"kind": "logistic", "ridge": -1}}, "problem.ridge = -1 .* greater than or equal to 0"),
        ({"problem": {"kind": "logistic", "alpha": 1}}, "unknown key problem.alpha; .* knows kind"),
        ({"test_fraction": 30}, "data.test_fraction = 30 .*: must be less than 1"),
        ({"seed": 2**70}, "seed = 1180591620717411303424 .*: must be less than"),
        ({"epsilon": 1j}, "privacy.epsilon = <complex> .*: must be a valid number"),
    ],
)
def test_a_setting_of_no_meaning_is_refused_by_its_name(frame, settings, told):
    assert refused(frame, **settings).match(told)


def test_a_folder_and_an_address_are_no_files(tmp_path):
    for path, told in ((str(tmp_path), "is a folder: name the file in it"), ("https://x.org/a.csv", "is an address")):
        with pytest.raises(BadInput, match=told):
            train(path, **ASKED)


def test_lists_may_be_those_of_pandas():
    settings = {
        "features": pd.DataFrame(columns=["height", "age"]).columns,
        "target_levels": pd.Series(["no", "yes"]),
        "categorical": {"team": pd.Series(["red", "blue", "red"], dtype="string").unique()},
    }
    data = sections(settings, "p", OF_A_RUN, "n")["data"]
    assert {key: data[key] for key in settings} == {
        "features": ["height", "age"],
        "target_levels": ["no", "yes"],
        "categorical": {"team": ["red", "blue"]},
    }


# Comparisons as people try them first ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "epsilons", [[1, 4], (1, 4), range(1, 5, 3), pd.Series([1, 4])], ids=lambda one: type(one).__name__
)
def test_a_comparison_of_budgets_in_whatever_holds_them(frame, epsilons):
    settings = {key: value for key, value in ASKED.items() if key not in ("epsilon", "strategy", "users")}
    settings |= {"strategy": "dp_fed_sgd", "strategies": None}  # what is not given hides nothing
    result = compare(frame, epsilon=epsilons, all_users=60, seeds=1, progress=False, **settings)
    assert set(result.table["strategy"]) == {"dp_fed_sgd"}
    assert list(result.table["epsilon"]) == [1, 4]
    assert result.table["error_private"].isna().all()
    first, *lines = repr(result).splitlines()
    assert first == "value is the test loss, lower is better; one seed"
    assert any(line.startswith("2 runs on the same users") for line in lines)
    assert lines[-1].startswith("  assuming: ")
    assert sum(not line.startswith("  assuming: ") for line in lines) <= 6
