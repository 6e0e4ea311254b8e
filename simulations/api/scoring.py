"""``userdp predict``: a table scored with the model of a run's directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from simulations.api.prediction import THIS, load_model
from simulations.records.run_directory import plain
from simulations.reports.explain import show_promise, shown_apart
from simulations.reports.standing import CONSTANT, INITIAL
from simulations.reports.units import ordered
from userdp.accounting import Guarantee
from userdp.data.tables.reading import read_cells
from userdp.errors import BadInput, MissingColumn

NOT_COVERED = (
    "No guarantee covers the people of this table: predictions and metrics are exact functions of their rows. The "
    "guarantee is about the people whom the model was trained on."
)
_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Scores:
    """What scoring a table gave.

    Attributes:
        output: the file of predictions.
        rows: of the table, and of that file.
        unusable: rows without a prediction, because a cell holds nothing that the model could use.
        metrics: one row a metric, columns "this model", "best constant" and "initial model"; None where the table
            cannot be measured.
        in_units: the same, and errors in the target's units; None likewise.
        not_measured: why not; None where it was.
        guarantee: of the model.
        kept: columns of the table beside the predictions.
    """

    output: Path
    rows: int
    unusable: int
    metrics: pd.DataFrame | None
    in_units: pd.DataFrame | None
    not_measured: str | None
    guarantee: Guarantee
    kept: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        metrics = self.metrics
        values: dict[str, Any] = plain(
            {
                "output": str(self.output),
                "rows": self.rows,
                "unusable_rows": self.unusable,
                "metrics": None if metrics is None else metrics[THIS].to_dict(),
                "constant": None if metrics is None or CONSTANT not in metrics else metrics[CONSTANT].to_dict(),
                "initial": None if metrics is None else metrics[INITIAL].to_dict(),
                "not_measured": self.not_measured,
                "guarantee": self.guarantee.as_dict(),
            }
        )
        return values


def score(
    directory: Path, table: Path, output: Path | None, keep: Sequence[str] = (), *, trust_code: bool = False
) -> Scores:
    """Predict every row of a table, write the predictions, and measure the model if the table allows it.

    Args:
        directory: of a run.
        table: CSV or Parquet file.
        output: the same, to write; ``table``'s name with "-predictions.csv", in the current folder, if None.
        keep: columns of the table that are copied into it, such as who a row is about.
        trust_code: as for `simulations.api.prediction.load_model`.

    Raises:
        BadInput: what `simulations.api.prediction.SavedModel.predict` refuses, or a file that cannot be written.
    """
    target = Path(f"{table.stem}-predictions.csv") if output is None else output
    if target.suffix.lower() not in _SUFFIXES:
        raise BadInput(f"--output {target}: must end with .csv or .parquet")
    if target.resolve() == table.resolve():
        raise BadInput(f"--output {target} is the table itself; choose another file")
    saved = load_model(directory, trust_code=trust_code)
    predictions = saved.predict(table)
    metrics, reason = None, None
    try:
        metrics = saved.evaluate(table)
    except MissingColumn as error:
        reason = str(error)
    _write(_with_columns(predictions, table, keep), target)
    unusable = int(predictions["prediction"].isna().sum())
    in_units = None if metrics is None else saved.in_target_units(metrics)
    return Scores(target, len(predictions), unusable, metrics, in_units, reason, saved.guarantee, tuple(keep))


def _with_columns(predictions: pd.DataFrame, table: Path, keep: Sequence[str]) -> pd.DataFrame:
    """The predictions beside columns of the table, cells as they stand there."""
    if not keep:
        return predictions
    if taken := sorted({*keep} & {*map(str, predictions)}):
        raise BadInput(f"--keep {taken[0]}: the predictions have a column of that name; rename the table's")
    cells: pd.DataFrame = read_cells(table, list(dict.fromkeys(keep))).to_pandas(types_mapper=pd.ArrowDtype)
    return pd.concat([cells, predictions], axis=1)


def _write(predictions: pd.DataFrame, target: Path) -> None:
    try:
        if target.suffix.lower() == ".csv":
            predictions.to_csv(target, index=False)
        else:
            predictions.to_parquet(target, index=False)
    except OSError as error:
        raise BadInput(f"--output {target}: cannot be written ({type(error).__name__}); choose another") from None


def show_scores(scores: Scores, console: Console) -> None:
    """Print what a person wants to know."""
    if scores.in_units is None:
        console.print(f"Not measured: {scores.not_measured}", highlight=False)
    else:
        table = Table(
            "metric", *map(str, scores.in_units.columns), title="1 row" if scores.rows == 1 else f"{scores.rows} rows"
        )
        first, rest = ordered(map(str, scores.in_units.index))
        for name in [*first, *rest]:
            told = shown_apart(scores.in_units.loc[name])
            style = "" if name in first else "dim"
            table.add_row(name.replace("_", " "), *told, style=style, end_section=[name] == first[-1:])
        console.print(table)
    show_promise(scores.guarantee.sentence(), scores.guarantee.assumptions, console)
    console.print(NOT_COVERED, highlight=False)
    console.print(f"Predictions: {scores.output}", highlight=False, soft_wrap=True)
    if not scores.kept:
        console.print(
            "They stand in the order of the table; --keep COLUMN copies a column beside them.", highlight=False
        )
