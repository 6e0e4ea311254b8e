"""``userdp run`` and ``userdp plan`` in Python.

>>> import pandas as pd
>>> from userdp import plan
>>> planned = plan(
...     user="person",
...     features=["age"],
...     ranges={"age": [18, 100]},
...     target="answer",
...     positive="yes",
...     users=5000,
...     epsilon=1.0,
...     delta=1e-6,
...     problem="logistic",
...     strategy={"kind": "dp_fed_sgd", "rounds": 10},
... )
>>> planned.rounds, planned.guarantee.holds
(10, True)
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.api.arguments import (
    OF_A_RUN,
    WithReport,
    configured,
    folder_of,
    frame_datasets,
    refuse_several,
    sections,
)
from simulations.api.prediction import THIS, SavedModel
from simulations.config.run_config import RunConfig, load_config, parse_config
from simulations.reports.progress import progress_bar
from simulations.reports.standing import NON_PRIVATE, Usable, references
from simulations.reports.units import about_errors, errors_of, ordered, shown_with_error
from simulations.runs.build import make_plan
from simulations.runs.run import run
from strategies.core.plan import Plan
from userdp.data.tables.frames import FRAME, Frame
from userdp.tracebacks import without_internals

Data = Frame | str | Path | RunConfig | Mapping[str, Any]
"""A table in memory, the path of a CSV or Parquet file; or a configuration, its values, or the path of its file."""


@dataclass(frozen=True, eq=False)
class TrainedModel(SavedModel, WithReport):
    """A trained model with the records of its run.

    Attributes:
        plan: every number that was fixed before the run read data.
        result: the content of result.json; docs/what-leaves.md lists the fields that the guarantee covers.
        rounds: the content of rounds.parquet, one row per round.
        page: report.html.
        directory: the folder of the run's files; None if nothing was kept.
    """

    plan: Plan
    result: dict[str, Any]
    rounds: pd.DataFrame
    page: str
    directory: Path | None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics, most of them means over the held-out users; no guarantee covers these users."""
        return dict(self.result["metrics"])

    @property
    def covered(self) -> pd.DataFrame:
        """The metrics that the guarantee covers: value, standard error, low and high ends of intervals of 95 %.

        Held-out users answer for them within the budget, with ``evaluate=True``; empty without.
        """
        found = self.result.get("held_out", {}).get("metrics", {})
        rows = {name: [one["value"], one["standard_error"], *one["interval"]] for name, one in found.items()}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "standard_error", "low", "high"])

    def summary(self) -> pd.DataFrame:
        """Return metrics of this model, the best constant, the initial model, and training without privacy.

        The best constant predicts one mean for everybody: the mean that the run released, or else that of the held-out
        people, which nobody may know. Training without privacy on the same people is an exact function of private data,
        for their holder alone; ``output={"reference": False}`` and secure noise switch it off.
        """
        reference = self.result["reference_private"]["non_private"]
        columns = {THIS: self.metrics, **references(self.result), f"{NON_PRIVATE} (private)": reference}
        return pd.DataFrame({name: values for name, values in columns.items() if values}, index=list(self.metrics))

    def __repr__(self) -> str:
        head, first, rest, errors = self._shown()
        parts = [*head, *([first.to_string()] if len(first) else [])]
        if len(rest):
            parts.append(f"({len(rest)} more: spread, calibration, scaled units; see summary() and report())")
        about = about_errors(self.result, errors, map(str, first.index))
        return "\n".join([*parts, *(line for _, line in about), f"Guarantee: {self.guarantee}"])

    def _repr_html_(self) -> str:
        (title, *reason), first, rest, errors = self._shown()
        table = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in reason)
        table += first.to_html() if len(first) else ""
        table += f"<details><summary>{len(rest)} more</summary>{rest.to_html()}</details>" if len(rest) else ""
        about = about_errors(self.result, errors, map(str, [*first.index, *rest.index]))
        table += "".join(f"<p>{html.escape(line)}</p>" for _, line in about)
        promise = html.escape(str(self.guarantee)).replace("\n", "<br>")
        return f"<p><b>{html.escape(title)}</b></p>{table}<p><b>Guarantee.</b> {promise}</p>"

    def _shown(self) -> tuple[list[str], pd.DataFrame, pd.DataFrame, dict[str, float]]:
        """Return the title and why nothing was measured, the metrics to show first and the others, and their errors."""
        head = ["{problem} by {strategy}: {dimension} parameters, {rounds} rounds".format(**self.result)]
        head += [f"Not measured: {self.result['not_measured']}."] if self.result.get("not_measured") else []
        usable = Usable.of(self.rounds)
        head += [] if usable is None else [usable.sentence]
        errors = errors_of(self.result, self.config.data.model_dump(exclude_none=True))
        whole = self.in_target_units(self.summary()).astype(object)
        for name in whole.index:
            whole.loc[name] = shown_with_error(whole.loc[name], errors.get(str(name)))
        first, rest = ordered(map(str, whole.index))
        return head, whole.loc[first], whole.loc[rest], errors


@without_internals
def train(data: Data, *, directory: str | Path | None = None, progress: bool = True, **settings: Any) -> TrainedModel:
    """Train a model with privacy, like ``userdp run``.

    Args:
        data: a DataFrame or other Arrow table, or the path of a CSV or Parquet file, one row per sample, described by
            ``settings``; or a configuration, which has all settings.
        directory: the folder to write; if None, nothing is kept on disk.
        progress: show the progress of the run on standard error: a bar on a terminal, a line a minute elsewhere.
        **settings: the keys of a configuration by their names; docs/configuration.md lists them. Keys of [data] for a
            table: ``user``, ``target``, ``features``, ``ranges``, ``users``, ... Keys of [privacy]: ``epsilon``,
            ``delta``, ... And ``problem``, ``strategy`` and ``engine``, each the name of a kind or a dict with ``kind``
            and its keys; ``initial_model``, the file of a PUBLIC model to start from (``problem.initial_model``);
            ``output``, ``name`` and ``seed``. Declare here what the privacy proof uses, such as ranges: it is never
            read off the data.

    Cells of a DataFrame are read one by one, like those of a file. The code that made the frame may have changed them:
    `pandas.read_csv` reads everybody's "007" as 7 unless one person's cell is a word. Give it ``dtype=str``, or give
    `train` the path.

    Returns:
        The model with its guarantee, its report, and its metrics beside those of the best constant and the initial
        model.

    Raises:
        BadInput: a setting that cannot be used, or a table that does not fit it; it names field, value and remedy.
        RunFailed: the run stopped.
    """
    config, frame = _configured(data, settings)
    datasets = None if frame is None else frame_datasets(config, frame)
    with folder_of(directory) as folder, progress_bar(progress) as bar:
        outcome = run(config, datasets=datasets, directory=folder, observers=[bar])
        return TrainedModel(
            config,
            outcome.model,
            outcome.guarantee,
            plan=outcome.plan,
            result=outcome.result,
            rounds=pd.read_parquet(folder / "rounds.parquet"),
            page=(folder / "report.html").read_text(encoding="utf-8"),
            directory=None if directory is None else folder,
            released=outcome.result.get("coefficients", ()),
            hidden=outcome.result.get("hidden_levels", ()),
        )


@without_internals
def plan(data: Data | None = None, **settings: Any) -> Plan:
    """Compute every number of a run before it reads any data, like ``userdp plan``.

    Args:
        data: as for `train`; a DataFrame or a table's file is not opened, and may be left out.
        **settings: as for `train`; ``users`` is required.

    Raises:
        BadInput: something is not declared, or the population is too small for the strategy.
    """
    return make_plan(_configured(FRAME if data is None else data, settings)[0])


def _configured(data: Data, settings: Mapping[str, Any]) -> tuple[RunConfig, Frame | None]:
    """Return the configuration of a run, and the table in memory in place of its table's file, if there is one."""

    def declared(path: str) -> RunConfig:
        refuse_several(settings)
        return parse_config(sections(settings, path, OF_A_RUN, "model"))

    return configured(data, settings, RunConfig, declared, parse_config, load_config)
