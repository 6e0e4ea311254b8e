"""Models as ONNX: what onnxruntime predicts from a table's own columns is what `predict` does."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pyarrow as pa
import pytest
from examples import BASE, call, changed
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations import SavedModel
from simulations.config.run_config import parse_config
from simulations.records.released_fields import field_of
from userdp.accounting import Guarantee
from userdp.errors import BadInput

COLUMNS = {
    "kind": "table",
    "path": "people.csv",
    "user": "who",
    "features": ["height", "weight"],
    "ranges": {"height": [150, 200], "weight": [40, 90]},
    "categorical": {"team": ["red", "blue", 1.5], "city": ["Rome", "Oslo"]},
    "dates": {"born": ["1950-01-01", "2010-01-01"]},
    "impute": {"height": 175.0, "team": "own level", "city": "Oslo"},
    "missing_indicators": ["height", "city"],
    "target": "y",
}
DERIVED = {
    "ratio": {"kind": "ratio", "of": ["weight", "height"], "range": [0, 1], "otherwise": 0.4},
    "less": {"kind": "difference", "of": ["height", "weight"], "range": [0, 100], "otherwise": 3.0},
    "area": {"kind": "product", "of": ["height", "height"], "range": [0, 40_000]},
    "log": {"kind": "log1p", "of": ["other"], "range": [0, 5], "otherwise": 0.5},
    "above": {"kind": "count_above", "of": ["height", "other"], "threshold": 100.0, "range": [0, 2], "otherwise": 1.0},
    "age": {"kind": "days_between", "of": ["seen", "born"], "range": [0, 36_500], "otherwise": 1.0},
}
TORCH = {"kind": "torch", "hidden": [4]}
KINDS = {
    "squared": ({"kind": "squared"}, {"target_range": [2, 5]}),
    "no intercept": (
        {"kind": "squared", "intercept": False, "feature_bound": 0.5},
        {"scale": "unit", "target_range": [0, 1]},
    ),
    "logistic": ({"kind": "logistic", "feature_norm": 3.0}, {"positive": "yes"}),
    "two classes": ({"kind": "logistic"}, {"target_levels": ["no", "yes"]}),
    "poisson": ({"kind": "poisson", "count_bound": 6.0}, {"derive": {"area": DERIVED["area"]}}),
    "softmax": ({"kind": "softmax"}, {"target_levels": ["a", "b", "c"]}),
    "numbered": ({"kind": "softmax"}, {"target_levels": [3, 1.5, 7], "derive": DERIVED}),
    "huber": ({"kind": "huber_regression", "target_range": [0.0, 9.0]}, {}),
    "torch": ({**TORCH, "loss": "cross_entropy", "outputs": 3}, {"derive": DERIVED}),
    "torch, two": ({**TORCH, "loss": "bce_with_logits", "precision": "double"}, {"target_levels": [0, 1]}),
    "torch, numbers": ({**TORCH, "loss": "mse"}, {"target_range": [2, 5]}),
}
"""Problem -> (its settings, further settings of the table)."""


def saved(kind="squared", **data):
    problem, more = KINDS[kind]
    raw = changed(problem=problem, data=COLUMNS | more | data, privacy={"epsilon": 4.0, "delta": 1e-6})
    config = parse_config(raw)
    made = SavedModel(config, np.zeros(1), Guarantee.none("it was never trained"))
    model = np.random.default_rng(5).normal(size=made.problem.dimension)
    return SavedModel(config, model, made.guarantee)


def people(count=60):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "height": rng.uniform(140, 210, count),
            "weight": rng.uniform(30, 100, count),
            "other": rng.choice([-3.0, -1.0, 0.0, 50.0, 150.0, np.nan], count),
            "team": rng.choice(["red", "blue", "1.5", "pink", None], count),
            "city": rng.choice(["Rome", "Oslo", "Bern", None], count),
            "born": pd.Timestamp("1940-01-01") + pd.to_timedelta(rng.integers(0, 30_000, count), "D"),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, count), "s"),
        }
    )
    frame.loc[::7, "height"], frame.loc[::11, "weight"], frame.loc[::13, "born"] = np.nan, np.inf, pd.NaT
    frame.loc[4, "height"] = 0.0
    return frame


def cells(column):
    if column.dtype.kind == "M":
        return ((column - pd.Timestamp(0)) / pd.Timedelta(seconds=1)).to_numpy()
    return column.to_numpy() if column.dtype.kind == "f" else column.astype(object).fillna("").to_numpy()


def scored(path, frame):
    session = onnxruntime.InferenceSession(path)
    names = [one.name for one in session.get_outputs()]
    given = {one.name: cells(frame[one.name]) for one in session.get_inputs()}
    return pd.DataFrame(dict(zip(names, session.run(None, given), strict=True)))


def check(path, model, frame):
    found, wanted = scored(path, frame), model.predict(frame)
    if wanted["prediction"].dtype.kind != "f":
        assert found.pop("prediction").tolist() == wanted.pop("prediction").fillna("").tolist()
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime_predicts_what_predict_does(tmp_path, kind):
    model, frame = saved(kind), people()
    path = model.to_onnx(tmp_path / "model.onnx")
    check(path, model, frame)
    predicted = model.predict(frame)
    assert predicted["prediction"].isna().sum() >= 10  # rows without a weight or a date
    assert predicted["prediction"].nunique() > 1


@pytest.fixture(scope="module")
def derived(tmp_path_factory):
    model = saved("numbered")
    return model.to_onnx(tmp_path_factory.mktemp("onnx") / "model.onnx"), model


TEXTS = st.sampled_from(["red", "blue", "1.5", "", "x", "Rome", "Oslo"])
MOMENTS = st.integers(-(2**62), 2**62) | st.integers(-(2**56), 2**56)


@pytest.mark.slow
@settings(max_examples=60)
@given(rows=st.lists(st.tuples(*[st.floats()] * 3, TEXTS, TEXTS, MOMENTS, MOMENTS), min_size=1, max_size=4))
def test_cells_of_any_kind_mean_the_same(derived, rows):
    columns = dict(zip(people(1), map(list, zip(*rows, strict=True)), strict=True))
    table = {
        name: pa.array(columns[name], pa.timestamp("us") if name in ("born", "seen") else None) for name in columns
    }
    wanted = derived[1].predict(pa.table(table))
    seconds = {name: np.array(columns[name]) / 1e6 for name in ("born", "seen")}
    found = scored(derived[0], pd.DataFrame(columns | seconds))
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-6, atol=1e-6)


def test_the_file_says_what_its_columns_mean_and_what_is_promised(tmp_path):
    model = saved()
    promised = Guarantee("user", "replace_one", 1.5, 1e-6, "some accountant", "against others", ("n is public",), True)
    path = SavedModel(model.config, model.model, promised).to_onnx(tmp_path / "model.onnx")
    file = onnx.load(path)
    texts = {one.key.removeprefix("userdp."): one.value for one in file.metadata_props}
    assert texts == {
        "guarantee": str(promised),
        "epsilon": "1.5",
        "delta": "1e-06",
        "unit": "user",
        "relation": "replace_one",
        "adversary": "against others",
        "holds": "True",
        "assumptions": "n is public",
    }
    meanings = {one.name: one.doc_string for one in file.graph.input}
    assert meanings["team"] == "text, one of 'red', 'blue', '1.5'; '' is a missing cell; any other gives no prediction"
    assert meanings["born"] == "seconds since 1970-01-01 in UTC; NaN is a missing cell"
    none = onnx.load(model.to_onnx(tmp_path / "none.onnx"))
    assert not {"userdp.epsilon", "userdp.delta"} & {one.key for one in none.metadata_props}


def test_the_command_writes_the_file_and_tells_its_columns(tmp_path):
    saved().save(tmp_path / "run")
    done = call("export", tmp_path / "run", "--onnx", tmp_path / "model.onnx", "--json")
    told = json.loads(done.stdout)
    assert set(told["inputs"]) == {"height", "weight", "team", "city", "born"}
    assert told["outputs"] == ["prediction"]
    assert {field_of("export: --json", name).kind for name in told} == {"public"}
    shown = " ".join(call("export", tmp_path / "run", "--onnx", tmp_path / "model.onnx").stdout.split())
    assert "height: numbers; NaN is a missing cell" in shown
    assert told["metadata"]["userdp.guarantee"] in shown
    refused = call("export", tmp_path / "run", "--onnx", tmp_path / "no" / "model.onnx")
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)


NOTHING = dict.fromkeys(("features", "ranges", "categorical", "dates", "impute", "missing_indicators"))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"date_parts": {"seen": ["month"]}}, "date_parts names 'seen', and ONNX has no calendar; train on a column"),
        (
            {"categorical": {**COLUMNS["categorical"], "prediction": ["a", "b"]}},
            "the table's column 'prediction' has the name of an output; rename it",
        ),
    ],
)
def test_columns_without_a_form_are_refused_by_name(tmp_path, data, told):
    with pytest.raises(BadInput, match=told):
        saved(**data).to_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnx_one_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=r"to_onnx\(\) needs onnx: pip install 'userdp\[onnx\]'"):
        saved().to_onnx(tmp_path / "model.onnx")


def test_models_without_a_form_are_refused(tmp_path):
    data = {key: value for key, value in COLUMNS.items() if key not in NOTHING} | {"codes": "team", "levels": 3}
    raw = changed(problem={"kind": "one_hot_squared"}, data=data | {"target_range": [0, 1]})
    with pytest.raises(BadInput, match=r"data.codes makes samples that are no features .*userdp predict"):
        SavedModel(parse_config(raw), np.zeros(3), Guarantee.none("none")).to_onnx(tmp_path / "model.onnx")
    with pytest.raises(BadInput, match="synthetic"):
        SavedModel(parse_config(BASE), np.zeros(3), Guarantee.none("none")).to_onnx(tmp_path / "model.onnx")


SHAPED = """
from torch import nn

def shaped():
    return nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(18, 1))
"""


@pytest.mark.slow
def test_a_module_of_shaped_rows_is_written_in_evaluation_mode(tmp_path):
    (tmp_path / "shaped.py").write_text(SHAPED, encoding="utf-8")
    problem = {"kind": "torch", "module": f"{tmp_path / 'shaped.py'}:shaped", "loss": "mse", "input_shape": [1, 11]}
    config = parse_config(changed(problem=problem, data=COLUMNS | {"target_range": [0, 1]}))
    model = np.random.default_rng(0).normal(size=2 * 3 + 2 + 18 + 1)
    shaped = SavedModel(config, model, Guarantee.none("none"))
    check(shaped.to_onnx(tmp_path / "model.onnx"), shaped, people())


BRANCHES = """
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(11, 1)

    def forward(self, rows):
        return self.layer(rows) if rows.sum() > 0 else -self.layer(rows)
"""


def test_a_module_that_its_trace_would_not_describe_is_refused(tmp_path):
    (tmp_path / "branches.py").write_text(BRANCHES, encoding="utf-8")
    problem = {"kind": "torch", "module": f"{tmp_path / 'branches.py'}:Branches", "loss": "mse", "execution": "loop"}
    config = parse_config(changed(problem=problem, data=COLUMNS | {"target_range": [0, 1]}))
    with pytest.raises(BadInput, match=r"problem.module computes rows in ways that depend on their values"):
        SavedModel(config, np.zeros(12), Guarantee.none("none")).to_onnx(tmp_path / "model.onnx")
