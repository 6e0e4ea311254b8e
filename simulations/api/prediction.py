"""Predictions of a trained model for the rows of a table, and the metrics that a run reports."""

import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from simulations.api.classes import in_units, with_names
from simulations.api.unknown_levels import OnUnknown, check_on_unknown, taken_levels, told_cells
from simulations.config.places import name_objects
from simulations.config.run_config import RunConfig, parse_config
from simulations.records.coefficients import HIDDEN_LEVELS, Rows, of_model
from simulations.records.evaluation import Evaluation
from simulations.records.named_code import check_code
from simulations.records.run_directory import (
    RunDirectory,
    check_files,
    private_folder,
    read_json,
    writing,
)
from simulations.reports.standing import CONSTANT, INITIAL
from simulations.reports.units import in_target_units
from simulations.runs.build import build_problem, starting_problem
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.data import Block
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import Tabular, table_file
from userdp.data.tables.sources import TableSource
from userdp.data.tables.tabular import read_features, table_of
from userdp.data.tables.unusable import listed
from userdp.errors import BadInput
from userdp.extras import check_extra
from userdp.problems import Problem
from userdp.settings import path_of
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
        hidden: the declared levels, "column=level", that too few people of the run held to be seen through noise.
    """

    config: RunConfig
    model: Vector
    guarantee: Guarantee
    released: Rows = field(default=(), kw_only=True)
    hidden: Sequence[str] = field(default=(), kw_only=True)

    def __repr__(self) -> str:
        head = f"{self.config.problem.kind} by {self.config.strategy_name}: {self.model.size} parameters"
        return f"{head}\nGuarantee: {self.guarantee}"

    @property
    @without_internals
    def problem(self) -> Problem:
        """The loss, with its dimension."""
        return build_problem(self.config)

    @without_internals
    def predict(
        self, data: Tabular, *, on_unknown: OnUnknown = "nan", csv: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Predict every row of a table, with features transformed as in training.

        Neither the user column nor the target is read. Rows that a loss cannot use (a missing number, say) get NaN, and
        a warning counts them and names their columns. Numbers are held to the declared range of targets.

        Args:
            data: a DataFrame or other Arrow table, or the path of a CSV or Parquet file.
            on_unknown: of a row with a cell that is no declared level: see `OnUnknown`.
            csv: the form of a CSV file, with the keys of data.csv, if it is another than that of the run's file.

        Returns:
            One row for each of the table, in its order, with the index of a pandas DataFrame. "prediction" is a number
            in the target's own units, or a class. "probability" is that of class 1 (of the cell declared as
            ``positive``); "probability.0", "probability.1", ... are those of several classes. If ``target_levels``
            declares the classes, predictions are these, and "probability of LEVEL" is that of each of them.

        Raises:
            BadInput: the problem predicts nothing or steps of sequences, the run or the table lacks columns, or
                ``on_unknown`` is "error" and a row has such a cell.
        """
        check_on_unknown(on_unknown)
        columns = self._columns(csv)
        if isinstance(data, pd.DataFrame) and not len(data):
            row_without_cells = data.reindex([0])  # its prediction has the columns
            return self._predicted(row_without_cells, columns, "nan")[0].iloc[:0]
        found, unusable, lost = self._predicted(data, columns, on_unknown)
        more = ", or give on_unknown = 'reference', so that an undeclared level counts as the first one"
        remedy = more if lost else ""
        if missing := int(found["prediction"].isna().sum()):
            log.warning(
                "%d of %d rows get no prediction (NaN): they hold a cell that the model cannot use (%s of them); "
                "correct these cells, or train with impute%s",
                missing,
                len(found),
                told_cells(unusable) or "no single column",
                remedy,
            )
        return found

    def _predicted(
        self, data: Tabular, columns: Columns, on_unknown: OnUnknown
    ) -> tuple[pd.DataFrame, Mapping[str, int], bool]:
        """Return predictions, the unusable cells by column, and whether an undeclared level leaves a row without."""
        problem = self.problem
        with table_file(data, columns.inputs) as path:
            features, terms, unusable = read_features(path, columns)
        rows = features.shape[0]
        lost, unusable = taken_levels(columns.samples, features, unusable, on_unknown)
        unknown = bool(lost.any())
        if drowned := int(columns.samples.at_levels(features, self.hidden).sum()):
            log.warning(
                "%d of %d rows hold one of these levels: %s; %s", drowned, rows, listed(self.hidden), HIDDEN_LEVELS
            )
        targets = np.zeros(rows, dtype=np.float32) if problem.has_targets else None
        block, _ = problem.bound(Block(features, np.arange(rows + 1), targets, terms=terms))
        found = pd.DataFrame(
            problem.predict(self.model, block), index=data.index if isinstance(data, pd.DataFrame) else None
        )
        if list(found) == ["prediction"]:
            found = in_units(found, problem, columns, lambda do, one, *given: getattr(one, do.lower())(*given))
        if columns.target_levels is not None:
            found = with_names(found, columns.target_levels)
        if block.usable is not None:
            lost |= ~block.usable
        found.loc[lost] = np.nan
        return found, unusable, unknown

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
    def evaluate(self, data: Tabular, *, csv: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Measure the model on a table, with the metrics that a run reports of held-out users.

        Every user has the same weight in a mean; ranking and calibration are over all samples together. The metrics are
        exact about the table's people, whom no guarantee covers. All their rows count: ``min_samples`` and
        ``max_samples`` of the run do not apply. A row without a declared level counts as in training, by its other
        columns, and a warning says so: `predict` gives it no prediction.

        Args:
            data: as for `predict`, with the user column and, if the problem has one, the target.
            csv: as for `predict`.

        Returns:
            One row a metric; columns "this model", "best constant", which predicts the mean target of this very table,
            and "initial model", which needs no data. The model should beat both.

        Raises:
            MissingColumn: the table lacks a declared column.
            BadInput: the run had no table's columns, the table cannot be read, or the public initial model is gone.
        """
        columns, problem = self._columns(csv), self.problem
        with table_file(data, columns.names) as path:
            table = table_of(path, columns, seed=self.config.seed)
        measure = Evaluation(problem, None, table.federation)
        initial = starting_problem(self.config).initial()
        metrics = measure.whole(self.model)
        if unknown := {k: n for k, n in table.report.unknown_levels.items() if n and k != columns.target}:
            log.warning(
                "rows that hold no declared level of a column (%s of them) count by their other columns, as in "
                "training, and get no prediction",
                told_cells(unknown),
            )
        if not metrics:
            log.warning("not measured: no row of the table has all cells that the model needs")
        elif table.federation.samples > 1 and measure.one_class(self.model, metrics):
            log.warning("all targets of the table are one class: accuracy and loss say nothing about the model")
        constant = {CONSTANT: measure.constant} if measure.constant else {}
        return pd.DataFrame({THIS: metrics, **constant, INITIAL: measure.whole(initial)})

    @without_internals
    def save(self, directory: str | Path) -> Path:
        """Write the files that `load_model` reads into a new or empty folder, and return it; BadInput otherwise."""
        folder = path_of("directory", directory)
        with writing(f"save({str(directory)!r}):"):
            private_folder(folder)
            if any(folder.iterdir()):
                raise BadInput(f"save({str(directory)!r}): the folder is not empty; name a new one")
            files = RunDirectory(folder)
            files.text("config.toml", self.config.toml())
            files.json("guarantee.json", self.guarantee.as_dict())
            files.model(self.model)
            if self.released or self.hidden:
                files.json("result.json", {"coefficients": self.released, "hidden_levels": self.hidden})
        return folder

    @without_internals
    def to_onnx(self, path: str | Path, *, on_unknown: Literal["nan", "reference"] = "nan") -> Path:
        """Write the model as ONNX, from the table's own columns to those of `predict`, and return the file's path.

        The file's metadata hold the guarantee. `simulations.api.exporting` describes inputs and outputs.

        Args:
            path: of the file.
            on_unknown: what the graph predicts for a cell that is no declared level: see `OnUnknown`.

        Raises:
            BadInput: the model, or a column's declaration, has no form in ONNX, nor has an error for a row; onnx is not
                installed.
        """
        check_on_unknown(on_unknown, "nan", "reference")
        check_extra("onnx", "to_onnx()")
        from simulations.api.exporting import write_onnx  # noqa: PLC0415 -- optional

        file = path_of("path", path)
        write_onnx(self.problem, self.model, self._columns(), self.guarantee, file, on_unknown=on_unknown)
        return file

    @without_internals
    def to_transformers(self, folder: str | Path) -> Path:
        """Write a language model, or its adapter, into a new or empty folder that transformers or peft loads.

        README.md in it states the guarantee. `simulations.api.language` describes the files.

        Raises:
            BadInput: the model is no language model, or the folder is not empty.
        """
        from simulations.api.language import write_language  # noqa: PLC0415 -- few need it

        place = path_of("folder", folder)
        write_language(self.problem, self.model, self.guarantee, self.config.name, place)
        return place

    def in_target_units(self, metrics: pd.DataFrame) -> pd.DataFrame:
        """Return the metrics, and below them errors in the units of the target if its range is declared."""
        section = self.config.data.model_dump(exclude_none=True)
        columns = {name: {str(key): one for key, one in metrics[name].dropna().items()} for name in metrics}
        more = {name: in_target_units(one, section) for name, one in columns.items()}
        return pd.concat([metrics, pd.DataFrame(more)]) if any(more.values()) else metrics

    def _columns(self, csv: Mapping[str, Any] | None = None) -> Columns:
        """Return the declared columns of the run, except the split: every user of a scored table counts.

        ``csv`` is the form of a table's file, if it is declared anew.
        """
        data = self.config.data
        if not isinstance(data, TableSource):
            raise BadInput(
                f"data.kind = {data.kind!r}: samples have no named columns, so no table can be scored with this model; "
                "train on a table, or on a public data set"
            )
        declared = data.declarations if csv is None else {**data.declarations, "csv": csv}
        return Columns(**{**declared, "split_column": None, "split_test": None})


@without_internals
def load_model(
    directory: str | Path, *, trust_code: bool = False, objects: Mapping[str, Any] | None = None
) -> SavedModel:
    """Load the model of a run's directory, or of a copy made by ``userdp report DIR --released``.

    Args:
        directory: of the run.
        trust_code: run the code that its configuration names (``problem.module``, ``loss``, ``metrics``). Otherwise
            nothing in the directory is executed.
        objects: what the run was given as objects of Python, if another process trained it, by key of [problem]:
            ``{"module": Net}``.

    Raises:
        BadInput: the directory does not hold a run, or its files do not fit together; or it names code that is not
            trusted, or differs from the code of the run.
    """
    directory = path_of("directory", directory)
    check_files(directory, ("config.toml", "guarantee.json", "model.npz"), "a run, such as runs/quickstart-...")
    try:
        raw = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
        promised = Guarantee.from_dict(read_json(directory / "guarantee.json"))
        with (directory / "model.npz").open("rb") as file, np.load(file) as arrays:
            x = arrays["x"]
        result = directory / "result.json"
        told = read_json(result) if result.is_file() else {}
        released, hidden = told.get("coefficients", ()), told.get("hidden_levels", ())
    except (LookupError, OSError, TypeError, ValueError, BadZipFile) as error:
        raise BadInput(f"{directory} holds a damaged file ({type(error).__name__}): run again") from None
    name_objects({"problem": {"kind": "torch", **(objects or {})}})
    check_code(directory, raw, trusted=trust_code)
    saved = SavedModel(parse_config(raw), x, promised, released=released, hidden=hidden)
    needed = saved.problem.dimension
    if x.shape != (needed,):
        raise BadInput(
            f"{directory / 'model.npz'} holds a model of shape {x.shape}, but config.toml beside it needs "
            f"({needed},): take both from one run"
        )
    return saved
