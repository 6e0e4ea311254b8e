"""Declarations of a table that cannot be meant: each is refused with its field, its value and what to do."""

import math
from datetime import date

import pandas as pd
import pytest

from userdp.data import Derivation, SequenceColumns
from userdp.data.tables.columns import Columns
from userdp.errors import BadInput

CODES = {"features": (), "ranges": {}, "categorical": {}}
NUMBERS = {"features": ["height"], "ranges": {"height": [0, 9]}}
STEPS = {"window": 3, "predict": "a", "levels": 2}
FORMS = {
    "table": {
        "features": ["age", "height"],
        "ranges": {"age": [0, 100], "height": [1.0, 2.0]},
        "categorical": {"dept": ["law", "chem"], "year": [1, 2, 3]},
        "target": "score",
        "target_range": [0, 8],
    },
    "missing": {
        "features": ["age", "visits"],
        "ranges": {"age": [0, 100], "visits": [0, 10]},
        "categorical": {"team": ["red", "blue"]},
    },
    "dates": {"dates": {"born": ["1980-01-01", "1980-01-11"]}},
    "hashed": {"codes": ["dept", "year"], "buckets": 50, "target": "score"},
    "images": {"images": "picture", "image_shape": (2, 3), "target": "digit"},
    "sequence": {"sequence": SequenceColumns(window=3, order="at", inputs={"film": 2}, predict="right", levels=2)},
    "nothing": {},
}


def ranges(**changes):
    return {"ranges": FORMS["table"]["ranges"] | changes}


def ratio(**changes):
    return {"derive": {"r": Derivation(**{"kind": "ratio", "of": ["visits", "height"], "range": [0.0, 4.0]} | changes)}}


def years(**changes):
    made = {"kind": "days_between", "of": ["visited", "born"], "range": [0, 20000]}
    return {"derive": {"r": Derivation(**made | changes)}}


def born(value):
    return {"dates": {"born": value}}


def steps(**changes):
    return {"sequence": SequenceColumns(**STEPS | changes)}


REFUSED = {
    "table": [
        ({"ranges": {"age": [0, 100]}}, "no [low, high] for the numeric feature 'height'"),
        (ranges(heigth=[0, 1]), "'heigth', which is not in features; did you mean 'height'"),
        (ranges(age=[5, 5]), "ranges.age must be [low, high] with low < high, got [5.0, 5.0]"),
        (ranges(age=[0, math.inf]), "ranges.age"),
        (ranges(age=[0]), "ranges.age"),
        ({"target_range": [3, 1]}, "target_range"),
        ({"target": "age"}, "column 'age' is declared twice"),
        ({"target": None}, "target names no column"),
        ({"positive": "yes"}, "exclude each other"),
        ({"target_levels": ["yes", "no"]}, "target_range and target_levels exclude each other"),
        ({"target_range": None, "positive": "y", "target_levels": ["y", "n"]}, "positive and target_levels exclude"),
        ({"target": None, "target_range": None, "target_levels": [0, 1]}, "target_levels describes a target"),
        ({"target_range": None, "target_levels": ["yes"]}, "target_levels = ['yes']: a target of one class"),
        ({"target_range": None, "target_levels": [1, 1.0]}, "target_levels lists '1' twice"),
        ({"target_range": None, "target_levels": []}, "target_levels must be a list of levels"),
        ({"scale": "log"}, "scale = 'log': must be 'symmetric' or 'unit'"),
        ({"categorical": {"dept": []}}, "categorical.dept must be a list of levels"),
        ({"categorical": {"dept": "law"}}, "categorical.dept = 'law': must be a valid list"),
        ({"categorical": {"dept": ["law", "law"]}}, "lists 'law' twice"),
        (CODES, "either features and categorical columns, or one column of codes"),
        ({"codes": "year", "levels": 3}, "features = ['age', 'height'] has no meaning for codes: leave it out"),
        ({"levels": 3}, "levels = 3 has no meaning for features of columns: leave it out; ... use categorical"),
        (CODES | {"codes": "year"}, "levels is missing"),
        (CODES | {"codes": "year", "levels": 0}, "levels must lie in"),
        (CODES | {"codes": ["year", "dept"], "levels": {"year": 3}}, "levels.dept is missing"),
        (CODES | {"codes": ["year"], "levels": {"year": 3, "yeer": 3}}, "levels names 'yeer', ... did you mean 'year'"),
        (CODES | {"codes": ["year"], "levels": {"year": 0}}, "levels.year must lie in"),
        (CODES | {"codes": ["dept"], "levels": {"dept": ["a", "a"]}}, "levels.dept lists 'a' twice"),
        (CODES | {"codes": "year", "levels": {"year": 3}}, "codes = 'year' and levels = <dict of 1>: one column has"),
        (
            CODES | {"codes": ["year"], "levels": {"year": 3}, "buckets": 9},
            "levels = ['year'] has no meaning for hashed codes",
        ),
        ({"split_column": "part"}, "split_test is the cell of split_column"),
        ({"features": ["p_[0-1]"], "ranges": {"p_[0-1]": [0, 1], "p_1": [0, 2]}}, "ranges names column 'p_1' twice"),
    ],
    "missing": [
        *[
            (
                {"impute": {"age": word}},
                f"impute.age = '{word}' ... would tell about the people ... the middle of its range, 50",
            )
            for word in ("mean", "median", "mode", "something")
        ],
        ({"impute": {"team": "most frequent"}}, "impute.team = 'most frequent': a value taken from the data"),
        ({"impute": {"team": "violet"}}, "must be 'own level', for one more level, or one of the levels"),
        ({"impute": {"age": 101}}, "impute.age = 101: must lie within ranges.age = [0, 100]"),
        *[({"impute": {"age": age}}, f"impute.age = {age}: must be a public number") for age in (math.nan, True)],
        ({"impute": {"agee": 3}}, "but no feature is made of it; did you mean 'age'?"),
        ({"impute": {"y": 3}, "target": "y"}, "impute names 'y', the target"),
        ({"missing_indicators": ["age"]}, "but impute has no entry for it: add impute.age"),
        ({"impute": {"age": 3}, "missing_indicators": ["age", "age"]}, "missing_indicators lists 'age' twice"),
        ({"impute": {"team": "own level"}, "missing_indicators": ["team"]}, "are a level of their own already"),
        (ratio(otherwise=None), "derive.r.otherwise is missing"),
        (ratio(otherwise=9.0), "derive.r.otherwise = 9: must lie within derive.r.range = [0.0, 4.0]"),
        (ratio(otherwise=1.0, of=["age"]), "derive.r.of = ['age']: ratio needs 2 columns"),
        (ratio(otherwise=1.0, of=["age", "team"]), "derive.r.of names 'team', which holds text"),
        (ratio(otherwise=1.0, of=["age", "who"]), "derive.r.of names 'who', which holds text"),
        (ratio(otherwise=1.0, of=["age", "y"]) | {"target": "y"}, "derive.r.of names 'y', the target"),
        (ratio(otherwise=1.0, of=["age", "r"]), "derive.r.of names 'r', which is derived itself"),
        (ratio(otherwise=1.0, threshold=1.0), "derive.r.threshold = 1: only count_above has one"),
        (ratio(otherwise=1.0, range=[4.0, 0.0]), "derive.r.range must be [low, high] with low < high"),
        (ratio(otherwise=1.0) | {"impute": {"r": 1}}, "impute names 'r', which is derived: declare derive.r.otherwise"),
        ({"derive": {"age": ratio(otherwise=1.0)["derive"]["r"]}}, "column 'age' is declared twice"),
    ],
    "dates": [
        (born("1980"), "dates.born = '1980': must be [first, last], two public dates, such as"),
        (born(["1980-01-01"]), "must be [first, last], two public dates"),
        (born(5), "dates.born = 5: must be [first, last]"),
        (born(["03/04/2021", "2030-01-01"]), "'03/04/2021' is no date in ISO 8601; write two, such as ['19"),
        (born([1977, 1983]), "1977 is no date in ISO 8601"),
        (born([pd.NaT, "1983-01-01"]), "'' is no date"),
        (born(["1983-01-01", "1977-01-01"]), "the first date must come before the last; swap them"),
        (born(["1983-01-01", date(1983, 1, 1)]), "= ['1983-01-01', '1983-01-01']: the first date must"),
        (NUMBERS | {"features": ["height", "born"]}, "'born' is declared as numbers and under dates; leave it out"),
        (
            NUMBERS | {"ranges": {"height": [0, 9], "born": [0, 9]}},
            "ranges names 'born', a column of dates: declare its",
        ),
        (
            {"features": ["at"], "ranges": {"at": ["1980-01-01", "1981-01-01"]}},
            "for dates, declare a feature under dates",
        ),
        (
            {"target": "born"},
            "dates names 'born', the target: a loss predicts numbers or classes; write it as a number",
        ),
        ({"dates": {}, "date_parts": {"y": ["month"]}, "target": "y"}, "date_parts names 'y', the target"),
        ({"dates": {"who": ["1980-01-01", "1980-01-11"]}}, "column 'who' is declared twice"),
        ({"categorical": {"born": ["1980"]}}, "column 'born' is declared twice"),
        ({"date_parts": {"at": "month"}}, "date_parts.at = 'month': must be a list of parts, at least one of"),
        ({"date_parts": {"at": []}}, "date_parts.at = []: must be a list of parts"),
        ({"date_parts": {"at": ["weekdy"]}}, "'weekdy', which is no part of a date; did you mean 'weekday'?"),
        ({"date_parts": {"at": ["year"]}}, "declare the date as a number by dates = { at = ["),
        ({"date_parts": {"at": ["era"]}}, "there are month, quarter, weekday, hour"),
        ({"date_parts": {"at": ["month", "month"]}}, "date_parts.at names 'month' twice"),
        ({"date_formats": {"bron": "%d.%m.%Y"}}, "'bron', which is no column of dates; did you mean 'b"),
        ({"date_formats": {"x": "%d.%m.%Y"}}, "declare it under dates or date_parts"),
        ({"date_formats": {"born": 5}}, "date_formats.born = 5: must be text"),
        ({"date_formats": {"born": "%d.%m."}}, "date_formats.born = '%d.%m.': it has no year, which %Y is"),
        ({"impute": {"born": 5}}, "impute.born = 5: must be a public date, such as ... of its bounds, 1980-01-06"),
        ({"impute": {"born": "median"}}, "a value taken from the data would tell about the people in them"),
        ({"impute": {"born": "own level"}}, "missing_indicators marks such cells"),
        ({"impute": {"born": "2020-01-01"}}, "must lie within dates.born = [1980-01-01, 1980-01-11]"),
        ({"impute": {"visited": "x"}} | years(), "impute.visited = 'x': must be a public date, such as 2000"),
        ({"missing_indicators": ["born"]}, "but impute has no entry for it: add impute.born"),
        (years(kind="log1p", of=["born"]), "which holds dates (days_between takes tw"),
        (years(of=["born"]), "days_between needs 2 columns"),
        (years(of=["born", "who"]), "which holds text; name columns of dates"),
        (NUMBERS | years(of=["born", "height"]), "'height', which is declared as nu"),
        (
            {"derive": years()["derive"] | {"s": Derivation(kind="log1p", of=["visited"], range=[0, 1])}},
            "'visited', which is declared as",
        ),
        ({"codes": "team", "levels": 3}, "dates = ['born'] has no meaning for codes"),
    ],
    "hashed": [
        ({"buckets": None}, "levels is missing: declare the number or list of levels of each column"),
        ({"buckets": 0}, "buckets = 0: must be greater than"),
        *[({"buckets": buckets}, f"buckets = {buckets}") for buckets in (1.5, True)],
        ({"codes": [3]}, "codes = [3]"),
        *[({"codes": ["dept", name]}, f"'{name}' is declared twice") for name in ("dept", "who")],
        ({"levels": 3}, "levels = 3 has no meaning for hashed codes"),
        ({"levels": 3, "buckets": None}, "levels = 3: one column has a number or list of levels; a list"),
        ({"codes": "year"}, "buckets = 50: cells are hashed for a LIST of codes, and codes = 'year'"),
        ({"codes": None, "categorical": {"dept": ["law"]}}, "buckets = 50 has no meaning for features of columns"),
        ({"impute": {"dept": 1}}, "impute = ['dept'] has no meaning for hashed codes"),
    ],
    "images": [
        ({"image_shape": None}, "image_shape is missing: declare how many bytes a cell of 'picture' has"),
        *[({"image_shape": shape}, f"image_shape = {shape}: must be whole numbers") for shape in ([], [28, 0])],
        ({"codes": "a", "levels": 2}, "images = 'picture' has no meaning for codes"),
    ],
    "sequence": [
        ({"target": "y"}, "target = 'y': a sequence predicts"),
        ({"features": ["y"], "ranges": {"y": [0, 1]}}, "features = ['y'] has no meaning for a sequence"),
        ({"sequence": SequenceColumns(window=3)}, "either predict, ... or text"),
        (steps(text="b", alphabet="ab"), "either predict, ... or text"),
        ({"sequence": SequenceColumns(window=3, predict="a")}, "sequence.levels"),
        ({"sequence": SequenceColumns(window=3, text="a")}, "sequence.alphabet"),
        (steps(alphabet="ab"), "sequence.alphabet"),
        ({"sequence": SequenceColumns(window=3, text="a", alphabet="")}, "sequence.alphabet is empty"),
        ({"sequence": SequenceColumns(window=3, text="a", alphabet="aba")}, "sequence.alphabet lists 'a' 2 times"),
        (steps(levels=0), "sequence.levels must lie in"),
        (steps(levels=[1, 1.0]), "lists '1' twice"),
        (steps(inputs={"b": 0}), "sequence.inputs.b must lie in"),
        (steps(inputs={"a": 2}), "names 'a', which is predicted"),
        (steps(order="a"), "'a' is declared twice"),
        (steps(predict="who"), "'who' is declared twice"),
    ],
    "nothing": [
        ({"codes": "k", "levels": 3, "impute": {"k": 3}}, "impute.k = 3: must be 'own level', ... or a level in 0..2"),
        ({"codes": "k", "levels": 3, "impute": {"k": "mode"}}, "impute.k = 'mode': a value taken from the data"),
        *[
            (form | {"impute": {"team": value}}, "lists '', so a missing cell is a level already")
            for form in ({"categorical": {"team": ["red", ""]}}, {"codes": "team", "levels": ["red", ""]})
            for value in ("own level", "red")
        ],
    ],
}


@pytest.mark.parametrize(
    ("form", "changes", "told"), [(form, *row) for form, rows in REFUSED.items() for row in rows], ids=str
)
def test_declarations_that_cannot_be_meant_are_refused_with_what_to_do(form, changes, told):
    with pytest.raises(BadInput) as caught:
        Columns(user="who", **{**FORMS[form], **changes})
    for words in told.split(" ... "):
        assert words in str(caught.value)
