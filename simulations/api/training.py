"""What ``userdp run`` and ``userdp plan`` do, in Python.

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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.api.frames import FRAME, frame_datasets
from simulations.api.kept_files import folder_of, kept_folder, write_page
from simulations.api.keywords import OF_A_RUN, absolute_path, refuse_settings, refuse_several, sections
from simulations.api.prediction import THIS, SavedModel
from simulations.api.progress import progress_bar
from simulations.config.run_config import RunConfig, load_config, parse_config
from simulations.reports.standing import NON_PRIVATE, references
from simulations.reports.uncertainty import about_errors, errors_of, shown_with_error
from simulations.reports.units import ordered
from simulations.runs.build import make_plan
from simulations.runs.run import run
from strategies.core.plan import Plan
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

Data = pd.DataFrame | str | Path | RunConfig | Mapping[str, Any]
"""A DataFrame, the path of a CSV or Parquet file; or a configuration, its values, or the path of its file."""


@dataclass(frozen=True, eq=False)
class TrainedModel(SavedModel):
    """A trained model with all that its run left.

    Attributes:
        plan: every number that was fixed before data were seen.
        result: the content of result.json; docs/what-leaves.md says which fields the guarantee covers.
        rounds: the content of rounds.parquet, one row a round.
        page: report.html.
        directory: where the run's files are; None where nothing was kept.
    """

    plan: Plan
    result: dict[str, Any]
    rounds: pd.DataFrame
    page: str
    directory: Path | None

    @property
    def metrics(self) -> dict[str, float]:
        """Metric -> mean over the users who were held out, whom no guarantee covers; or what docs say it is of them."""
        return dict(self.result["metrics"])

    def summary(self) -> pd.DataFrame:
        """Metrics of this model, the best constant, the initial model, and training without privacy on the same people.

        The best constant says the same of everybody: the mean that the run released, or else, which nobody could know,
        that of the held-out people. Training without privacy is an exact function of private data, for their holder
        alone; it is there unless switched off with ``output={"reference": False}``, or noise is secure.
        """
        reference = self.result["reference_private"]["non_private"]
        columns = {THIS: self.metrics, **references(self.result), f"{NON_PRIVATE} (private)": reference}
        return pd.DataFrame({name: values for name, values in columns.items() if values}, index=list(self.metrics))

    @without_internals
    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one HTML page.

        Args:
            path: of the file; report.html in the run's directory if not given.

        Raises:
            BadInput: neither a path nor a directory, or a file that cannot be written.
        """
        return write_page(self.page, path, self.directory)

    def __repr__(self) -> str:
        first, rest = self._shown()
        parts = [self._title(), *self._not_measured, *([first.to_string()] if len(first) else [])]
        parts += (
            [f"({len(rest)} more: spread, calibration, scaled units; see summary() and report())"] if len(rest) else []
        )
        parts += self._about_errors(first)
        return "\n".join(parts) + f"\nGuarantee: {self.guarantee.sentence()}"

    def _repr_html_(self) -> str:
        table = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self._not_measured)
        first, rest = self._shown()
        table += first.to_html() if len(first) else ""
        table += f"<details><summary>{len(rest)} more</summary>{rest.to_html()}</details>" if len(rest) else ""
        about = self._about_errors(pd.concat([first, rest]))
        table += "".join(f"<p>{html.escape(sentence)}</p>" for sentence in about)
        title, promise = html.escape(self._title()), html.escape(self.guarantee.sentence())
        return f"<p><b>{title}</b></p>{table}<p><b>Guarantee.</b> {promise}</p>"

    @property
    def _errors(self) -> dict[str, float]:
        return errors_of(self.result, self.config.data.model_dump(exclude_none=True))

    def _about_errors(self, table: pd.DataFrame) -> list[str]:
        return [sentence for _, sentence in about_errors(self.result, self._errors, map(str, table.index))]

    @property
    def _not_measured(self) -> list[str]:
        reason = self.result.get("not_measured")
        return [] if reason is None else [f"Not measured: {reason}."]

    def _shown(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The few metrics that matter most, and the others."""
        whole = self.in_target_units(self.summary()).astype(object)
        errors = self._errors
        told = (
            whole.apply(lambda row: shown_with_error(row, errors.get(str(row.name))), axis=1, result_type="broadcast")
            if len(whole)
            else whole
        )
        first, rest = ordered(map(str, told.index))
        return told.loc[first], told.loc[rest]

    def _title(self) -> str:
        told = self.result
        return f"{told['problem']} by {told['strategy']}: {told['dimension']} parameters, {told['rounds']} rounds"


@without_internals
def train(data: Data, *, directory: str | Path | None = None, progress: bool = True, **settings: Any) -> TrainedModel:
    """Train a model with privacy, exactly as ``userdp run`` does.

    Args:
        data: a DataFrame or the path of a CSV or Parquet file, one row a sample, described by ``settings``; or a
            configuration, which has all settings.
        directory: where to write the run's files; if None, nothing is kept on disk.
        progress: show on standard error how far the run is: a bar on a terminal, a line a minute elsewhere.
        **settings: the keys of a configuration by their names, as docs/configuration.md has them. Those of [data] for
            a table: ``user``, ``target``, ``features``, ``ranges``, ``users``, ... Those of [privacy]: ``epsilon``,
            ``delta``, ... And ``problem``, ``strategy`` and ``engine``, each the name of a kind or a dict with ``kind``
            and its keys; ``initial_model``, the file of a PUBLIC model to start from (``problem.initial_model``);
            ``output``, ``name`` and ``seed``. What the proof of privacy rests on, such as ranges, is
            declared here and never read off the data.

    A DataFrame's cells are read one by one, as those of a file are. What made the frame may have read them otherwise:
    `pandas.read_csv` makes 7 of everybody's "007" unless one person's cell is a word. Give it ``dtype=str``, or give
    `train` the path.

    Returns:
        The model with its guarantee, its report, and its metrics beside those of the best constant and the initial
        model.

    Raises:
        BadInput: a setting that cannot be used, or a table that does not fit it; field, value and remedy are named.
        RunFailed: the run stopped.
    """
    config, frame = _configured(data, settings)
    datasets = None if frame is None else frame_datasets(config, frame)
    with folder_of(directory) as folder, progress_bar() if progress else nullcontext() as on_round:
        outcome = run(config, datasets=datasets, directory=folder, progress=on_round)
        return TrainedModel(
            config,
            outcome.model,
            outcome.guarantee,
            plan=outcome.plan,
            result=outcome.result,
            rounds=pd.read_parquet(folder / "rounds.parquet"),
            page=(folder / "report.html").read_text(encoding="utf-8"),
            directory=kept_folder(directory),
        )


@without_internals
def plan(data: Data | None = None, **settings: Any) -> Plan:
    """Every number of a run, before it touches any data: ``userdp plan``.

    Args:
        data: as for `train`; a DataFrame or a table's file is not looked into, and may be left out.
        **settings: as for `train`; ``users`` has to be among them.

    Raises:
        BadInput: something is not declared, or the population is too small for the strategy.
    """
    return make_plan(_configured(FRAME if data is None else data, settings)[0])


def _configured(data: Data, settings: Mapping[str, Any]) -> tuple[RunConfig, pd.DataFrame | None]:
    """The configuration of a run, and the frame that takes the place of its table's file, if there is one."""
    if isinstance(data, pd.DataFrame):
        return _declared(settings, FRAME), data
    if isinstance(data, str | Path) and Path(data).suffix.lower() != ".toml":
        return _declared(settings, absolute_path(data)), None
    refuse_settings(settings)
    if isinstance(data, RunConfig):
        return data, None
    if isinstance(data, Mapping):
        return parse_config(data), None
    if isinstance(data, str | Path):
        return load_config(data), None
    raise BadInput(f"data is a {type(data).__name__}: give a pandas DataFrame, a path, or a configuration")


def _declared(settings: Mapping[str, Any], path: str) -> RunConfig:
    """The configuration of a run on a table."""
    refuse_several(settings)
    return parse_config(sections(settings, path, OF_A_RUN, "model"))
