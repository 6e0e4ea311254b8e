"""Predictions of a trained model for the rows of a table, the metrics that a run reports, and ``userdp predict``."""

import logging
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from rich.console import Console

from simulations.api.classes import with_names
from simulations.config.run_config import RunConfig, parse_config
from simulations.records.coefficients import Rows, of_model
from simulations.records.evaluation import Evaluation
from simulations.records.named_code import check_code
from simulations.records.run_directory import (
    RunDirectory,
    check_files,
    plain,
    private_folder,
    read_json,
    write_whole,
    writing,
)
from simulations.reports.explain import show_promise
from simulations.reports.standing import CONSTANT, INITIAL
from simulations.reports.units import in_target_units, metric_table
from simulations.runs.build import build_problem, starting_problem
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.data import Block
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import Tabular, table_file
from userdp.data.tables.reading import read_cells
from userdp.data.tables.sources import TableSource
from userdp.data.tables.tabular import read_features, table_of
from userdp.errors import BadInput, MissingColumn
from userdp.extras import check_extra
from userdp.problems import Problem
from userdp.tracebacks import without_internals

log = logging.getLogger("userdp")
THIS = "this model"


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A released model with the configuration of its inputs.

    Attributes:
        config: of its run.
        model: (p,) its parameters.
        guarantee: for the people of the run. It does not cover the people of tables that are scored: predictions and
            metrics are exact functions of their rows.
        released: the coefficients that the run released with standard errors; empty without.
    """

    config: RunConfig
    model: Vector
    guarantee: Guarantee
    released: Rows = field(default=(), kw_only=True)

    def __repr__(self) -> str:
        head = f"{self.config.problem.kind} by {self.config.strategy_name}: {self.model.size} parameters"
        return f"{head}\nGuarantee: {self.guarantee}"

    @property
    @without_internals
    def problem(self) -> Problem:
        """The loss, with its dimension."""
        return build_problem(self.config)

    @without_internals
    def predict(self, data: Tabular) -> pd.DataFrame:
        """Predict every row of a table, with features transformed as in training.

        Neither the user column nor the target is read. Rows that a loss cannot use (a missing number, say) get NaN, and
        a warning counts them and names their columns.

        Args:
            data: a DataFrame or other Arrow table, or the path of a CSV or Parquet file.

        Returns:
            One row for each of the table, in its order, with the index of a pandas DataFrame. "prediction" is a number
            in the target's own units, or a class. "probability" is that of class 1 (of the cell declared as
            ``positive``); "probability.0", "probability.1", ... are those of several classes. If ``target_levels``
            declares the classes, predictions are these, and "probability of LEVEL" is that of each of them.

        Raises:
            BadInput: the problem predicts nothing or steps of sequences, or the run or the table lacks columns.
        """
        columns, problem = self._columns(), self.problem
        with table_file(data, columns.inputs) as path:
            features, unusable = read_features(path, columns)
        rows = features.shape[0]
        targets = np.zeros(rows, dtype=np.float32) if problem.has_targets else None
        block, _ = problem.bound(Block(features, np.arange(rows + 1), targets))
        found = pd.DataFrame(
            problem.predict(self.model, block), index=data.index if isinstance(data, pd.DataFrame) else None
        )
        if columns.target_range is not None and list(found) == ["prediction"]:
            low, high = columns.target_range
            found["prediction"] = low + (found["prediction"] + 1.0) / 2.0 * (high - low)
        if columns.target_levels is not None:
            found = with_names(found, columns.target_levels)
        if block.usable is not None:
            found.loc[~block.usable] = np.nan
        if missing := int(found["prediction"].isna().sum()):
            affected = ", ".join(f"{column!r} in {cells}" for column, cells in unusable.items()) or "no single column"
            log.warning(
                "%d of %d rows get no prediction (NaN): they hold a cell that the model cannot use (%s of them); "
                "correct these cells, or train with impute",
                missing,
                rows,
                affected,
            )
        return found

    @property
    def coefficient_rows(self) -> Rows:
        """The rows of `coefficients`, as result.json has them."""
        return self.released or of_model(self.config, self.model)

    @without_internals
    def coefficients(self) -> pd.DataFrame:
        """Return the coefficients of a linear model in the units of the table's columns.

        With ``strategy.coefficients`` above 0 these are estimates of their own, with standard errors and intervals of
        95 % for the people whom the users stand for; NaN where noise hides how certain they are. Without, they are
        those of the released model, which aims at predictions: nothing is known of their errors.

        Returns:
            One row a coefficient, by name: "unit", "estimate", "standard_error", "low", "high".

        Raises:
            BadInput: the model is not linear in columns of a table.
        """
        rows, none = self.coefficient_rows, [None, None]
        values = [[row["unit"], row["estimate"], row["standard_error"], *(row["interval"] or none)] for row in rows]
        names = pd.Index([row["coefficient"] for row in rows], name="coefficient")
        found = pd.DataFrame(values, names, ["unit", "estimate", "standard_error", "low", "high"])
        return found.astype(dict.fromkeys(list(found)[1:], float))

    @without_internals
    def evaluate(self, data: Tabular) -> pd.DataFrame:
        """Measure the model on a table, with the metrics that a run reports of held-out users.

        Every user has the same weight in a mean; ranking and calibration are over all samples together. The metrics are
        exact about the table's people, whom no guarantee covers. All their rows count: ``min_samples`` and
        ``max_samples`` of the run do not apply.

        Args:
            data: as for `predict`, with the user column and, if the problem has one, the target.

        Returns:
            One row a metric; columns "this model", "best constant", which predicts the mean target of this very table,
            and "initial model", which needs no data. The model should beat both.

        Raises:
            MissingColumn: the table lacks a declared column.
            BadInput: the run had no table's columns, the table cannot be read, or the public initial model is gone.
        """
        columns, problem = self._columns(), self.problem
        with table_file(data, columns.names) as path:
            table = table_of(path, columns, seed=self.config.seed)
        measure = Evaluation(problem, None, table.federation)
        initial = starting_problem(self.config).initial()
        metrics = measure.whole(self.model)
        if not metrics:
            log.warning("not measured: no row of the table has all cells that the model needs")
        elif table.federation.samples > 1 and measure.one_class(self.model, metrics):
            log.warning("all targets of the table are one class: accuracy and loss say nothing about the model")
        constant = {CONSTANT: measure.constant} if measure.constant else {}
        return pd.DataFrame({THIS: metrics, **constant, INITIAL: measure.whole(initial)})

    @without_internals
    def save(self, directory: str | Path) -> Path:
        """Write the files that `load_model` reads into a new or empty folder, and return it; BadInput otherwise."""
        folder = Path(directory)
        with writing(f"save({str(directory)!r}):"):
            private_folder(folder)
            if any(folder.iterdir()):
                raise BadInput(f"save({str(directory)!r}): the folder is not empty; name a new one")
            files = RunDirectory(folder)
            files.text("config.toml", self.config.toml())
            files.json("guarantee.json", self.guarantee.as_dict())
            files.model(self.model)
            if self.released:
                files.json("result.json", {"coefficients": self.released})
        return folder

    @without_internals
    def to_onnx(self, path: str | Path) -> Path:
        """Write the model as ONNX, from the table's own columns to those of `predict`, and return the file's path.

        The file's metadata hold the guarantee. `simulations.api.exporting` describes inputs and outputs.

        Raises:
            BadInput: the model, or a column's declaration, has no form in ONNX; onnx is not installed.
        """
        check_extra("onnx", "to_onnx()")
        from simulations.api.exporting import write_onnx  # noqa: PLC0415 -- optional

        write_onnx(self.problem, self.model, self._columns(), self.guarantee, Path(path))
        return Path(path)

    @without_internals
    def to_transformers(self, folder: str | Path) -> Path:
        """Write a language model, or its adapter, into a new or empty folder that transformers or peft loads.

        README.md in it states the guarantee. `simulations.api.language` describes the files.

        Raises:
            BadInput: the model is no language model, or the folder is not empty.
        """
        from simulations.api.language import write_language  # noqa: PLC0415 -- few need it

        write_language(self.problem, self.model, self.guarantee, self.config.name, Path(folder))
        return Path(folder)

    def in_target_units(self, metrics: pd.DataFrame) -> pd.DataFrame:
        """Return the metrics, and below them errors in the units of the target if its range is declared."""
        section = self.config.data.model_dump(exclude_none=True)
        columns = {name: {str(key): one for key, one in metrics[name].dropna().items()} for name in metrics}
        more = {name: in_target_units(one, section) for name, one in columns.items()}
        return pd.concat([metrics, pd.DataFrame(more)]) if any(more.values()) else metrics

    def _columns(self) -> Columns:
        """Return the declared columns of the run, except the split: every user of a scored table counts."""
        data = self.config.data
        if not isinstance(data, TableSource):
            raise BadInput(
                f"data.kind = {data.kind!r}: samples have no named columns, so no table can be scored with this model; "
                "train on a table, or on a public data set"
            )
        return data.columns.model_copy(update={"split_column": None, "split_test": None})


@without_internals
def load_model(directory: str | Path, *, trust_code: bool = False) -> SavedModel:
    """Load the model of a run's directory, or of a copy made by ``userdp report DIR --released``.

    Args:
        directory: of the run.
        trust_code: run the code that its configuration names (``problem.module``, ``loss``, ``metrics``). Otherwise
            nothing in the directory is executed.

    Raises:
        BadInput: the directory does not hold a run, or its files do not fit together; or it names code that is not
            trusted, or differs from the code of the run.
    """
    directory = Path(directory)
    check_files(directory, ("config.toml", "guarantee.json", "model.npz"), "a run, such as runs/quickstart-...")
    try:
        raw = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
        promised = Guarantee.from_dict(read_json(directory / "guarantee.json"))
        with (directory / "model.npz").open("rb") as file, np.load(file) as arrays:
            x = arrays["x"]
        result = directory / "result.json"
        released = read_json(result).get("coefficients", ()) if result.is_file() else ()
    except (LookupError, OSError, TypeError, ValueError, BadZipFile) as error:
        raise BadInput(f"{directory} holds a damaged file ({type(error).__name__}): run again") from None
    check_code(directory, raw, trusted=trust_code)
    saved = SavedModel(parse_config(raw), x, promised, released=released)
    needed = saved.problem.dimension
    if x.shape != (needed,):
        raise BadInput(
            f"{directory / 'model.npz'} holds a model of shape {x.shape}, but config.toml beside it needs "
            f"({needed},): take both from one run"
        )
    return saved


NOT_COVERED = (
    "No guarantee covers the people of this table: predictions and metrics are exact functions of their rows. The "
    "guarantee is for the people in the training data."
)
_SUFFIXES = (".csv", ".parquet")
_COLUMNS = {"metrics": THIS, "constant": CONSTANT, "initial": INITIAL}  # field for JSON -> column of metrics


@dataclass(frozen=True)
class Scores:
    """The scores of a table: plain ``values`` for JSON, and the metrics ``in_units`` of the target, None without any.

    ``kept`` are the table's columns beside the predictions.
    """

    values: Any
    in_units: pd.DataFrame | None
    guarantee: Guarantee
    kept: Sequence[str]


def score(
    directory: Path, table: Path, output: Path | None, keep: Sequence[str] = (), *, trust_code: bool = False
) -> Scores:
    """Predict every row of a table, write the predictions, and measure the model if the table allows it.

    ``output`` is by default the table's name with "-predictions.csv", in the current folder; ``keep`` names columns of
    the table to copy into it, such as a row's person.
    """
    target = Path(f"{table.stem}-predictions.csv") if output is None else output
    if target.suffix.lower() not in _SUFFIXES:
        raise BadInput(f"--output {target}: must end with .csv or .parquet")
    if target.resolve() == table.resolve():
        raise BadInput(f"--output {target} is the table itself; choose another file")
    saved = load_model(directory, trust_code=trust_code)
    predictions = saved.predict(table)
    metrics, reason = pd.DataFrame(), None
    try:
        metrics = saved.evaluate(table)
    except MissingColumn as error:
        reason = str(error)
    rows = _with_columns(predictions, table, keep, saved._columns().inputs)
    with writing(f"--output {target}:", "choose another"):
        write = rows.to_csv if target.suffix.lower() == ".csv" else rows.to_parquet
        write_whole(target, partial(write, index=False))
    values = {
        "output": str(target),
        "rows": len(predictions),
        "unusable_rows": int(predictions["prediction"].isna().sum()),
        **{name: metrics.to_dict().get(of) for name, of in _COLUMNS.items()},
        "not_measured": reason,
        "guarantee": saved.guarantee.as_dict(),
    }
    return Scores(plain(values), None if reason else saved.in_target_units(metrics), saved.guarantee, keep)


def _with_columns(predictions: pd.DataFrame, table: Path, keep: Sequence[str], inputs: Sequence[str]) -> pd.DataFrame:
    if not keep:
        return predictions
    if taken := sorted({*keep} & {*map(str, predictions)}):
        raise BadInput(f"--keep {taken[0]}: the predictions have a column of that name; rename the table's")
    # Read beside the columns of the model, by which a header is told from a row.
    cells = read_cells(table, list(dict.fromkeys([*keep, *inputs]))).select(list(dict.fromkeys(keep)))
    kept: pd.DataFrame = cells.to_pandas(types_mapper=pd.ArrowDtype)
    return pd.concat([kept, predictions], axis=1)


def show_scores(scores: Scores, console: Console) -> None:
    """Print the metrics, the guarantee and the file of predictions."""
    values = scores.values
    if scores.in_units is None:
        console.print(f"Not measured: {values['not_measured']}", highlight=False)
    else:
        title = "1 row" if values["rows"] == 1 else f"{values['rows']} rows"
        console.print(metric_table(title, cast("dict[str, Any]", scores.in_units.to_dict()), {}))
    show_promise(scores.guarantee, console)
    console.print(NOT_COVERED, highlight=False)
    console.print(f"Predictions: {values['output']}", highlight=False, soft_wrap=True)
    if not scores.kept:
        console.print("They are in the order of the table; --keep COLUMN copies a column beside them.", highlight=False)
