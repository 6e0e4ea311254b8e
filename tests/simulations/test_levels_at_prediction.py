"""Predictions of every face, of cells that are no declared level, of levels that noise hides, and inside the range."""

import importlib
from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from examples import call, changed

from simulations import SavedModel, load_model, train
from simulations.config.run_config import parse_config
from simulations.mlflow import save_model
from simulations.records.coefficients import HIDDEN_LEVELS
from simulations.records.released_fields import field_of
from simulations.reports.card import card as make_card
from userdp.accounting import Guarantee
from userdp.errors import BadInput
from userdp.sklearn import PrivateLinearRegression, PrivatePoissonRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType"),  # of MLflow's classes
]
DECLARED = {
    "bounds": {"dose": (0, 10)},
    "schema": {"categorical": {"sex": ["f", "m"], "ward": ["a", "b"]}, "impute": {"ward": "own level"}},
    "strategy": {"kind": "dp_fed_sgd", "rounds": 2},
}


def people():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"dose": rng.uniform(0, 10, 300)})
    return frame.assign(sex=rng.choice(["f", "m"], 300), ward=rng.choice(["a", "b", None], 300))


@cache
def fitted(kind):
    made = kind(epsilon=8.0, delta=1e-3, target_range=(0, 8), random_state=0, rows_are_users=True, **DECLARED)
    frame = people()
    return made.fit(frame, np.round(2.0 + frame["dose"] / 3 + (frame["sex"] == "m")))


ROWS = pd.DataFrame(
    {
        "dose": [5.0, 5.0, 5.0, 5.0, np.nan, 5.0],
        "sex": ["f", "m", "x", None, "m", "m"],
        "ward": ["a", "a", "a", "a", "a", None],
    }
)
"""Two rows of declared levels; one undeclared, one missing; a missing number; and a missing level that is declared."""


def of_frame(estimator, rows, how, folder):
    return estimator.model_.predict(rows, on_unknown=how)["prediction"]


def of_file(estimator, rows, how, folder):
    rows.to_csv(folder / "rows.csv", index=False)
    estimator.model_.save(folder / "run")
    done = call("predict", folder / "run", folder / "rows.csv", "--output", folder / "p.csv", "--on-unknown", how)
    if done.exit_code:
        raise BadInput(done.stderr)
    return pd.read_csv(folder / "p.csv")["prediction"]


def of_sklearn(estimator, rows, how, folder):
    return estimator.set_params(on_unknown=how).predict(rows)


def of_onnx(estimator, rows, how, folder):
    session = onnxruntime.InferenceSession(estimator.model_.to_onnx(folder / "model.onnx", on_unknown=how))
    given = {one.name: rows[one.name] for one in session.get_inputs()}
    text = {name: cells.astype(object).fillna("").to_numpy() for name, cells in given.items() if name != "dose"}
    return session.run(None, text | {"dose": rows["dose"].to_numpy()})[0]


def of_mlflow(estimator, rows, how, folder):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    save_model(estimator.model_, folder / "model")
    load = importlib.import_module("mlflow.pyfunc").load_model
    return load(str(folder / "model"), model_config={"on_unknown": how}).predict(rows)["prediction"]


FACES = pytest.mark.parametrize("face", [of_frame, of_file, of_sklearn, of_onnx, of_mlflow])


@pytest.fixture
def predicted(face, tmp_path):
    """Predictions of a face, in a folder of its own."""

    def of(estimator, how="nan"):
        (tmp_path / how).mkdir()
        return np.asarray(face(copy(estimator), ROWS, how, tmp_path / how))

    return of


SETTINGS = {
    "part of a date": ({"kind": "squared"}, {"date_parts": {"born": ["weekday"]}}),
    "code": ({"kind": "one_hot_squared"}, {"codes": "born", "levels": ["2021-03-01", "2021-03-02"]}),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_part_of_a_date_and_a_code_have_a_first_level_too(kind):
    problem, data = SETTINGS[kind]
    table = {"kind": "table", "path": "people.csv", "user": "who", "target": "y", "target_range": [2, 5], **data}
    config = parse_config(changed(problem=problem, data=table))
    made = SavedModel(config, np.zeros(1), Guarantee.none("it was never trained"))
    model = replace(made, model=np.linspace(-0.5, 0.5, made.problem.dimension))
    rows = pd.DataFrame({"born": ["2021-03-01", "2021-03-02", "some day", None]})
    monday, tuesday, *lost = model.predict(rows)["prediction"]
    assert np.isnan(lost).all()
    assert model.predict(rows, on_unknown="reference")["prediction"].tolist() == [monday, tuesday, monday, monday]
    assert monday != tuesday


@FACES
def test_a_row_without_a_declared_level_has_no_prediction_or_that_of_the_first_or_is_refused(predicted):
    estimator = fitted(PrivateLinearRegression)
    none, first = predicted(estimator), predicted(estimator, "reference")
    assert np.isnan(none).tolist() == [False, False, True, True, True, False]
    assert np.isnan(first).tolist() == [False, False, False, False, True, False]
    assert first[[2, 3]].tolist() == [none[0], none[0]] != [none[1], none[1]]
    assert first[[0, 1, 5]].tolist() == none[[0, 1, 5]].tolist()
    with pytest.raises(BadInput, match="on_unknown = 'error'"):
        predicted(estimator, "error")


@FACES
@pytest.mark.parametrize("kind", [PrivateLinearRegression, PrivatePoissonRegressor])
def test_numbers_stay_inside_the_declared_range(predicted, kind):
    estimator = copy(fitted(kind))
    estimator.model_ = replace(estimator.model_, model=1e4 * np.sign(estimator.model_.model))
    found = predicted(estimator)
    found = found[~np.isnan(found)]
    assert len(found) == 3
    assert {*found.tolist()} <= {0.0, 8.0}


def test_the_holder_of_the_rows_is_told_how_many_and_which_columns(caplog):
    model = fitted(PrivateLinearRegression).model_
    for how, told in (
        ("nan", "3 of 6 rows get no prediction (NaN): they hold a cell that the model cannot use ('dose' in 1, 'sex'"),
        ("reference", "2 of 6 rows hold no declared level of a column ('sex' in 2 of them): they are predicted as if"),
    ):
        caplog.clear()
        model.predict(ROWS, on_unknown=how)
        assert told in caplog.text
        assert ("give on_unknown = 'reference'" in caplog.text) == (how == "nan")  # it helps no missing number
    with pytest.raises(BadInput, match=r"2 of 6 rows hold no declared level of a column \('sex' in 2 of them\)"):
        model.predict(ROWS, on_unknown="error")
    with pytest.raises(BadInput, match=r"on_unknown = 'zero': must be 'nan' or 'reference' or 'error'"):
        model.predict(ROWS, on_unknown="zero")


def test_metrics_of_rows_that_get_no_prediction_are_told(caplog):
    model = fitted(PrivateLinearRegression).model_
    frame = ROWS.assign(**{model.config.data.user: range(6), model.config.data.target: 3.0})
    model.evaluate(frame[:2])
    assert not caplog.messages
    model.evaluate(frame)
    (told,) = caplog.messages
    assert told.startswith("rows that hold no declared level of a column ('sex' in 2 of them) count by their other")


RARE = {
    "features": ("squared", {"categorical": {"team": ["red", "blue", "rare", "nobody"]}}),
    "codes": ("one_hot_squared", {"codes": "team", "levels": ["red", "blue", "rare", "nobody"]}),
}


@pytest.mark.parametrize("kind", RARE)
def test_levels_that_noise_hides_are_told_with_the_model_and_with_predictions(tmp_path, kind, caplog):
    problem, declared = RARE[kind]
    teams = np.where(np.arange(900) == 7, "rare", np.where(np.arange(900) % 2, "red", "blue"))
    frame = pd.DataFrame({"who": np.arange(900) // 2, "team": teams, "y": 3.0 + (teams == "red")})
    asked = {"user": "who", "target": "y", "target_range": [0, 8], "users": 360, "epsilon": 8.0, "delta": 1e-3}
    model = train(frame, problem=problem, progress=False, directory=tmp_path / "run", **declared, **asked)
    assert model.result["hidden_levels"] == ["team=rare", "team=nobody"]
    assert "Levels that noise hides: team=rare, team=nobody; so few people" in model.page
    assert field_of("result.json", "hidden_levels").kind == "noised"
    card = {line["name"]: line["value"] for part in make_card(tmp_path / "run")["parts"] for line in part["lines"]}
    assert card["Levels that noise hides"] == ["team=rare", "team=nobody"]
    model.save(tmp_path / "saved")
    for one in (model, load_model(tmp_path / "run"), load_model(tmp_path / "saved")):
        caplog.clear()
        one.predict(frame)
        assert f"1 of 900 rows hold one of these levels: 'team=rare', 'team=nobody'; {HIDDEN_LEVELS}" in caplog.messages
        caplog.clear()
        one.predict(frame[:7])
        assert caplog.messages == []
