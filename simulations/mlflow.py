"""A flavour of MLflow for trained models: `mlflow.pyfunc.load_model` loads what `save_model` or `log_model` wrote.

The metadata of the MLflow model, and its flavour "userdp", hold the guarantee. Beside them lie the files of
`simulations.SavedModel.save`, which `simulations.load_model` reads as well.
"""

import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulations.api.prediction import SavedModel, load_model
from simulations.api.unknown_levels import check_on_unknown
from simulations.records.environment import own_version
from simulations.reports.explain import promise_texts
from userdp.errors import BadInput
from userdp.extras import check_extra
from userdp.tracebacks import without_internals

if TYPE_CHECKING:
    from mlflow.models import Model
    from mlflow.models.model import ModelInfo

__all__ = ["log_model", "save_model"]

FLAVOUR = "userdp"
"""The flavour's name, and the folder of the model's own files."""
_CONFIG: dict[str, Any] = {"trust_code": False, "on_unknown": "nan"}
"""The default ``model_config`` of `mlflow.pyfunc.load_model`: arguments of `load_model` and `predict`."""


@without_internals
def save_model(model: SavedModel, path: str | Path, mlflow_model: "Model | None" = None) -> None:
    """Write a model as a folder of MLflow, which `mlflow.pyfunc.load_model` reads.

    Args:
        model: what `train` or `load_model` returned.
        path: a new or empty folder.
        mlflow_model: MLflow's description of the model, to be completed; `log_model` gives one.

    Raises:
        BadInput: the folder holds files, or MLflow is not installed.
    """
    check_extra("trackers", "save_model()", ["mlflow"])
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import pyfunc  # noqa: PLC0415 -- optional
    from mlflow.models import Model  # noqa: PLC0415

    folder, made, texts = Path(path), mlflow_model or Model(), promise_texts(model.guarantee)
    if folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"save_model(): the folder {str(path)!r} is not empty; name a new one")
    model.save(folder / FLAVOUR)
    made.metadata = {**(made.metadata or {}), **texts}
    made.add_flavor(FLAVOUR, data=FLAVOUR, version=own_version(), **texts)
    pyfunc.add_to_model(made, loader_module=__name__, data=FLAVOUR, model_config=_CONFIG)
    (folder / "requirements.txt").write_text(f"userdp=={own_version()}\n", encoding="utf-8")
    made.save(str(folder / "MLmodel"))


@without_internals
def log_model(model: SavedModel, name: str, **options: Any) -> "ModelInfo":
    """Log a model to MLflow's current tracking server, and return its description.

    Args:
        model: what `train` or `load_model` returned.
        name: of the logged model.
        **options: further arguments of `mlflow.models.Model.log`, such as ``registered_model_name`` or ``run_id``.

    Raises:
        BadInput: MLflow is not installed.
    """
    check_extra("trackers", "log_model()", ["mlflow"])
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.models import Model  # noqa: PLC0415 -- optional

    return Model.log(None, sys.modules[__name__], name=name, model=model, **options)


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> SimpleNamespace:
    """Load a model for MLflow; code that it names runs only if the caller's ``model_config`` trusts it."""
    given = _CONFIG | (model_config or {})
    check_on_unknown(given["on_unknown"])
    model = load_model(path, trust_code=bool(given["trust_code"]))
    return SimpleNamespace(predict=partial(model.predict, on_unknown=given["on_unknown"]))
