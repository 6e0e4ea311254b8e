"""``userdp predict``: predictions for the rows of a table, written to a file, and the metrics that the table allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd
from rich.console import Console

from simulations.api.prediction import THIS, load_model
from simulations.api.unknown_levels import OnUnknown
from simulations.records.run_directory import plain, write_whole, writing
from simulations.reports.explain import show_promise
from simulations.reports.standing import CONSTANT, INITIAL
from simulations.reports.units import metric_table
from userdp.accounting import Guarantee
from userdp.data.tables.columns import Columns
from userdp.data.tables.reading import read_cells
from userdp.errors import BadInput, MissingColumn

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
    directory: Path,
    table: Path,
    output: Path | None,
    keep: Sequence[str] = (),
    *,
    on_unknown: OnUnknown = "nan",
    csv: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> Scores:
    """Predict every row of a table, write the predictions, and measure the model if the table allows it.

    ``output`` is by default the table's name with "-predictions.csv", in the current folder; ``keep`` names columns of
    the table to copy into it, such as a row's person; ``csv`` is its form, if it is another than that of the run's.
    """
    target = Path(f"{table.stem}-predictions.csv") if output is None else output
    if target.suffix.lower() not in _SUFFIXES:
        raise BadInput(f"--output {target}: must end with .csv or .parquet")
    if target.resolve() == table.resolve():
        raise BadInput(f"--output {target} is the table itself; choose another file")
    saved = load_model(directory, trust_code=trust_code)
    predictions = saved.predict(table, on_unknown=on_unknown, csv=csv)
    metrics, reason = pd.DataFrame(), None
    try:
        metrics = saved.evaluate(table, csv=csv)
    except MissingColumn as error:
        reason = str(error)
    rows = _with_columns(predictions, table, keep, saved._columns(csv))
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


def _with_columns(predictions: pd.DataFrame, table: Path, keep: Sequence[str], model: Columns) -> pd.DataFrame:
    if not keep:
        return predictions
    if taken := sorted({*keep} & {*map(str, predictions)}):
        raise BadInput(f"--keep {taken[0]}: the predictions have a column of that name; rename the table's")
    # Read beside the columns of the model, by which a header is told from a row.
    cells = read_cells(table, list(dict.fromkeys([*keep, *model.inputs])), model.csv).select(list(dict.fromkeys(keep)))
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
