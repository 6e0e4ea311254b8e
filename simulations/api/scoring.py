"""``userdp predict``: a table scored with the model of a run's directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from simulations.api.prediction import THIS, load_model
from simulations.records.run_directory import plain, writing
from simulations.reports.explain import show_promise, shown_apart
from simulations.reports.standing import CONSTANT, INITIAL
from simulations.reports.units import ordered
from userdp.accounting import Guarantee
from userdp.data.tables.reading import read_cells
from userdp.errors import BadInput, MissingColumn

NOT_COVERED = (
    "No guarantee covers the people of this table: predictions and metrics are exact functions of their rows. The "
    "guarantee is for the people in the training data."
)
_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Scores:
    """The scores of a table.

    ``unusable`` rows have a cell that the model cannot use. ``metrics`` have one row a metric, and the columns of
    `SavedModel.evaluate`; they and their copy ``in_units`` of the target are None if ``not_measured`` names a reason.
    ``kept`` are the table's columns beside the predictions.
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
        """Return plain values, for JSON."""
        columns = {} if self.metrics is None else self.metrics.to_dict()
        values: dict[str, Any] = plain(
            {
                "output": str(self.output),
                "rows": self.rows,
                "unusable_rows": self.unusable,
                "metrics": columns.get(THIS),
                "constant": columns.get(CONSTANT),
                "initial": columns.get(INITIAL),
                "not_measured": self.not_measured,
                "guarantee": self.guarantee.as_dict(),
            }
        )
        return values


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
    metrics, reason = None, None
    try:
        metrics = saved.evaluate(table)
    except MissingColumn as error:
        reason = str(error)
    rows = _with_columns(predictions, table, keep)
    with writing(f"--output {target}:", "choose another"):
        write = rows.to_csv if target.suffix.lower() == ".csv" else rows.to_parquet
        write(target, index=False)
    unusable = int(predictions["prediction"].isna().sum())
    in_units = None if metrics is None else saved.in_target_units(metrics)
    return Scores(target, len(predictions), unusable, metrics, in_units, reason, saved.guarantee, tuple(keep))


def _with_columns(predictions: pd.DataFrame, table: Path, keep: Sequence[str]) -> pd.DataFrame:
    if not keep:
        return predictions
    if taken := sorted({*keep} & {*map(str, predictions)}):
        raise BadInput(f"--keep {taken[0]}: the predictions have a column of that name; rename the table's")
    cells: pd.DataFrame = read_cells(table, list(dict.fromkeys(keep))).to_pandas(types_mapper=pd.ArrowDtype)
    return pd.concat([cells, predictions], axis=1)


def show_scores(scores: Scores, console: Console) -> None:
    """Print the metrics, the guarantee and the file of predictions."""
    if scores.in_units is None:
        console.print(f"Not measured: {scores.not_measured}", highlight=False)
    else:
        table = Table(
            "metric", *map(str, scores.in_units.columns), title="1 row" if scores.rows == 1 else f"{scores.rows} rows"
        )
        first, rest = ordered(map(str, scores.in_units.index))
        for name in [*first, *rest]:
            cells = shown_apart(scores.in_units.loc[name])
            style = "" if name in first else "dim"
            table.add_row(name.replace("_", " "), *cells, style=style, end_section=[name] == first[-1:])
        console.print(table)
    show_promise(scores.guarantee.sentence(), scores.guarantee.assumptions, console)
    console.print(NOT_COVERED, highlight=False)
    console.print(f"Predictions: {scores.output}", highlight=False, soft_wrap=True)
    if not scores.kept:
        console.print("They are in the order of the table; --keep COLUMN copies a column beside them.", highlight=False)
