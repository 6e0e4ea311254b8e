"""The flavour of MLflow: what `mlflow.pyfunc` loads predicts what the model does, and names its guarantee."""

import importlib

import numpy as np
import pandas as pd
import pytest
from examples import ASKED, write_table

from simulations import load_model, train
from simulations.mlflow import log_model, save_model
from userdp.errors import BadInput

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings(
        "ignore:.*Any type hint is inferred as AnyType"
    ),  # of MLflow's own classes, when imported
]


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    return pd.read_csv(write_table(tmp_path_factory.mktemp("people") / "people.csv"))


@pytest.fixture(scope="module")
def model(frame):
    return train(frame, **ASKED, progress=False)


@pytest.fixture
def pyfunc(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    return importlib.import_module("mlflow.pyfunc")


def test_a_saved_model_predicts_the_same_and_is_one_of_ours_too(pyfunc, tmp_path, frame, model):
    save_model(model, tmp_path / "model")
    loaded = pyfunc.load_model(str(tmp_path / "model"))
    pd.testing.assert_frame_equal(loaded.predict(frame), model.predict(frame))
    assert loaded.metadata.metadata["userdp.guarantee"] == str(model.guarantee)
    assert loaded.metadata.flavors["userdp"]["userdp.epsilon"] == str(model.guarantee.epsilon)
    ours = load_model(tmp_path / "model" / "userdp")
    np.testing.assert_array_equal(ours.model, model.model)
    with pytest.raises(BadInput, match="is not empty; name a new one"):
        save_model(model, tmp_path / "model")


@pytest.mark.slow
def test_a_logged_model_predicts_the_same(pyfunc, tmp_path, frame, model, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.create_experiment("people", (tmp_path / "files").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "people")
    logged = log_model(model, "scores")
    assert logged.metadata["userdp.delta"] == "0.001"
    pd.testing.assert_frame_equal(pyfunc.load_model(logged.model_uri).predict(frame), model.predict(frame))


MODULE = """
from torch import nn

def linear():
    return nn.Sequential(nn.Linear(4, 1))
"""


@pytest.mark.slow
def test_code_that_a_model_names_runs_only_if_it_is_trusted(pyfunc, tmp_path, frame):
    (tmp_path / "own.py").write_text(MODULE, encoding="utf-8")
    problem = {"kind": "torch", "module": f"{tmp_path / 'own.py'}:linear", "loss": "bce_with_logits"}
    model = train(frame, **ASKED | {"problem": problem}, progress=False)
    save_model(model, tmp_path / "model")
    with pytest.raises(BadInput, match="trust"):
        pyfunc.load_model(str(tmp_path / "model"))
    trusted = pyfunc.load_model(str(tmp_path / "model"), model_config={"trust_code": True})
    pd.testing.assert_frame_equal(trusted.predict(frame), model.predict(frame))
