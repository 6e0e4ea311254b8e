"""Optional trackers: a run's directory, also written to MLflow or TensorBoard while the run proceeds.

A tracker gets the configuration and the plan at the start, a row of rounds.parquet after every round, and result.json,
guarantee.json and the report at the end; private fields (`released_fields`) are left out of all of them. Guard the
tracker all the same: no guarantee covers metrics of held-out users, and the configuration holds the seed of simulated
noise. Every run starts with round 1, even if it replaces another run, so no round is recorded twice.
"""

import json
import logging
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.records.evaluation import best_constant
from simulations.records.observer import Observer
from simulations.records.released_fields import SHARED, kept
from simulations.records.run_directory import TENSORBOARD, as_json, flat, private_folder, read_json
from strategies.core.plan import Plan
from strategies.core.results import RoundRecord
from userdp.accounting.guarantee import Guarantee
from userdp.errors import BadInput

log = logging.getLogger("userdp")
ARTIFACTS = ("config.toml", "plan.json", "guarantee.json")
"""Files of the directory that trackers get unchanged; result.json and report.html lose their private fields."""

Parameters = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class Ending:
    """The end of a run: its error, metrics ("final/...", "initial/...", "constant/..."), texts and files' contents."""

    directory: Path
    error: str | None
    metrics: Mapping[str, float]
    texts: Mapping[str, str]
    files: Mapping[str, str]


class MLflowTracker:
    """A run of MLflow, in the experiment of the configuration's name.

    It uses ``MLFLOW_TRACKING_URI`` if that is set, or mlflow.db and mlruns beside the run directory, whose name is that
    of MLflow's run. MLflow shows a run whose process was killed as running.
    """

    def __init__(self, directory: Path, parameters: Parameters) -> None:
        # Defaults: no usage statistics, and three tries, because MLflow's own seven make a run wait for minutes.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        from filelock import FileLock  # noqa: PLC0415
        from mlflow import MlflowClient  # noqa: PLC0415
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        self._metric, self._tag = Metric, RunTag
        home = directory.resolve().parent
        remote = os.environ.get("MLFLOW_TRACKING_URI")
        # Two runs that start together must not both make the tables of a new store.
        with nullcontext() if remote else FileLock(home / ".mlflow.lock"):
            self._client = MlflowClient(tracking_uri=remote or f"sqlite:///{home / 'mlflow.db'}")
            experiment = self._experiment(str(parameters["name"]), None if remote else (home / "mlruns").as_uri())
        self._run: str = self._client.create_run(experiment, run_name=directory.resolve().name).info.run_id
        given = [Param(key, str(value)) for key, value in parameters.items()]
        for start in range(0, len(given), 100):  # MLflow's limit for one call
            self._client.log_batch(self._run, params=given[start : start + 100])

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifacts))
            except Exception:  # another run may have made it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Write the finite values of round ``number``, counted from 1."""
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, number) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, ending: Ending | None) -> None:
        """Write the end of the run and close, the guarantee as its description; None if the run wrote no end."""
        if ending is not None:
            self.round(0, ending.metrics)
            tags = {f"userdp.{name}": text for name, text in ending.texts.items()}
            tags["mlflow.note.content"] = ending.texts["guarantee"]
            self._client.log_batch(self._run, tags=[self._tag(key, value) for key, value in tags.items()])
            for name in ARTIFACTS:
                self._client.log_artifact(self._run, str(ending.directory / name))
            for name, content in ending.files.items():
                self._client.log_text(self._run, content, name)
        failed = ending is None or ending.error is not None
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class TensorBoardTracker:
    """Events for TensorBoard, in the run directory's ``tensorboard``."""

    def __init__(self, directory: Path, parameters: Parameters) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self._parameters = dict(parameters)
        private_folder(directory / TENSORBOARD)
        self._writer = SummaryWriter(str(directory / TENSORBOARD))
        rows = [f"| {key} | {value} |" for key, value in parameters.items()]
        self._writer.add_text("parameters", "\n".join(["| parameter | value |", "|---|---|", *rows]))
        self._writer.flush()

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def finish(self, ending: Ending | None) -> None:
        """See `MLflowTracker.finish`; the page of hyperparameters, which compares runs, gets the final metrics."""
        with self._writer:
            if ending is None:
                return
            for name, text in ending.texts.items():
                self._writer.add_text(name, text)
            # Last, because it begins another file, and readers follow a folder's files in their order.
            self._writer.add_hparams(self._parameters, dict(ending.metrics), run_name=".")


Tracker = MLflowTracker | TensorBoardTracker
TRACKERS: Mapping[str, tuple[str, Callable[[Path, Parameters], Tracker]]] = {
    "mlflow": ("mlflow", MLflowTracker),
    "tensorboard": ("tensorboard", TensorBoardTracker),
}
"""Name in the configuration -> (the module that it needs, the tracker)."""


class Tracked(Observer):
    """A tracker of a run directory, opened when the run starts; later failures are warnings.

    The directory holds config.toml and plan.json at the start, the other files at the end.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self._name, self._directory, self._failed = name, directory, False

    def on_start(self, plan: Plan) -> None:
        """See `Observer`; `BadInput` if it cannot be opened."""
        try:
            self._tracker = TRACKERS[self._name][1](self._directory, _parameters(self._directory))
        except Exception as error:
            raise BadInput(
                f"output.trackers: {self._name} cannot be opened ({type(error).__name__}); check its version, "
                "MLFLOW_TRACKING_URI if it is set, and the folder, or leave it out"
            ) from error

    def on_round(self, record: RoundRecord) -> None:
        """See `Observer`."""
        if not self._failed:  # a server that does not answer may cost minutes each time
            row = _released(record)
            with self._guarded():
                self._tracker.round(record.round, row)

    def on_end(self) -> None:
        """See `Observer`."""
        with self._guarded():
            self._tracker.finish(_ending(self._directory))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep a failure from stopping the run; the first is a warning."""
        try:
            yield
        except Exception as error:
            if not self._failed:
                # Foreign messages may quote addresses with passwords.
                log.warning("%s failed (%s): later rounds are in the run directory", self._name, type(error).__name__)
            self._failed = True


def _parameters(directory: Path) -> dict[str, bool | int | float | str]:
    """Return the configuration as "section.key", the plan's numbers as "plan.name"; tables and lists as JSON."""
    config = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    plan = read_json(directory / "plan.json")
    numbers = {name: value for name, value in plan.items() if not isinstance(value, dict | list)} | plan["numbers"]
    values: dict[str, Any] = {}
    for name, section in {**config, "plan": numbers}.items():
        values |= (
            {f"{name}.{key}": value for key, value in section.items()} if isinstance(section, dict) else {name: section}
        )
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in values.items()
        if value is not None
    }


def _released(record: RoundRecord) -> dict[str, float]:
    """Return the row of rounds.parquet, "fact/noise" for "fact.noise"; only shared and finite values."""
    row = kept("rounds.parquet", flat(record), SHARED)
    del row["round"]
    return _finite({name.replace(".", "/", 1): value for name, value in row.items()})


def _ending(directory: Path) -> Ending | None:
    if not (directory / "result.json").is_file():
        return None
    guarantee = read_json(directory / "guarantee.json")
    result = kept("result.json", read_json(directory / "result.json"), SHARED)
    reference = result["reference"]
    columns = {"final": result["metrics"], "initial": reference["initial"], "constant": best_constant(reference) or {}}
    metrics = {f"{column}/{name}": value for column, of in columns.items() for name, value in of.items()}
    if guarantee["holds"]:
        metrics |= {name: guarantee[name] for name in ("epsilon", "delta")}
    texts = {"guarantee": str(Guarantee.from_dict(guarantee))}
    texts |= {name: str(guarantee[name]) for name in ("unit", "relation", "adversary", "holds")}
    texts["assumptions"] = "; ".join(guarantee["assumptions"])
    error = result.get("error")
    texts |= {} if error is None else {"error": error}
    files = {"result.json": as_json(result)}
    if (directory / "report.html").is_file():
        from simulations.reports.report import page  # noqa: PLC0415 -- charts are slow to import

        files["report.html"] = page(directory, SHARED)
    return Ending(directory, error, _finite(metrics), texts, files)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
