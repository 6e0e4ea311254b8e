"""``userdp compare`` in Python."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.api import arguments
from simulations.api.arguments import WithReport, folder_of
from simulations.comparison.config import Comparison, load_comparison, parse_comparison
from simulations.comparison.jobs import compare as run_all
from simulations.comparison.jobs import live
from simulations.comparison.ranking import read
from simulations.comparison.table import rests_on, sentences
from simulations.records.held_out import EXPLAINED
from simulations.records.named_code import code_in
from simulations.reports.explain import shown
from simulations.reports.progress import wanted
from userdp.data.tables.frames import FRAME, Frame, write_frame
from userdp.errors import BadInput
from userdp.named import is_object
from userdp.tracebacks import without_internals

Data = Frame | str | Path | Comparison | Mapping[str, Any]
"""A table in memory, the path of a CSV or Parquet file; or a comparison, its values, or the path of its file."""


@dataclass(frozen=True, eq=False)
class ComparisonResult(WithReport):
    """The results of a comparison.

    Attributes:
        table: one row per cell, as in results.parquet: strategy, seed and budget, "value" of the main metric beside
            those of the best "constant", the "initial" model and of training without privacy, "error_private" for cells
            that failed. docs/what-leaves.md lists who may see which column.
        page: report.html, with the ranking.
        directory: the folder of the comparison's files; None if nothing was kept.
        together: the budget that all runs cost the same people together, one line for each source of people; empty for
            synthetic people.
        assumptions: what the guarantees rest on, one line each.
    """

    table: pd.DataFrame
    page: str
    directory: Path | None
    together: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def summary(self) -> pd.DataFrame:
        """Return means over seeds for each strategy and budget, the best first; cells without a value are left out."""
        explained = (f"metric.{name}" for name in dict.fromkeys(EXPLAINED.values()))
        wanted = [*explained, "value", "constant", "initial", "reference_private"]
        numbers = [name for name in wanted if name in self.table and self.table[name].notna().any()]
        means = self.table.astype(dict.fromkeys(numbers, float)).groupby(["epsilon", "strategy"])[numbers].mean()
        return means.sort_values(["epsilon", "value"]).rename(columns=lambda name: name.removeprefix("metric."))

    def __repr__(self) -> str:
        return "\n".join([self._title(), self.summary().map(shown).to_string(), *self.together, *self.assumptions])

    def _repr_html_(self) -> str:
        lines = (f"<p>{escape(line)}</p>" for line in (self._title(), *self.together, *self.assumptions))
        return "\n".join([self.summary().map(shown).to_html(), *lines])

    def _title(self) -> str:
        metrics = self.table["main_metric"].dropna().unique()
        if not len(metrics):
            return "nothing was measured"
        named = " or ".join(str(name).replace("_", " ") for name in metrics)
        seeds = self.table["seed"].nunique()
        return f"value is the {named}, lower is better; {f'means over {seeds} seeds' if seeds > 1 else 'one seed'}"


@without_internals
def compare(
    data: Data,
    *,
    directory: str | Path | None = None,
    workers: int | None = 0,
    progress: bool = True,
    **settings: Any,
) -> ComparisonResult:
    """Compare strategies at one epsilon and delta, like ``userdp compare``.

    Args:
        data: a DataFrame or other Arrow table, or the path of a CSV or Parquet file, one row per sample, described by
            ``settings``; or a comparison, which has all settings.
        directory: the folder to write. Its finished cells are not run again, unless ``data`` is a table in memory. If
            None, nothing is kept on disk.
        workers: Ray processes with one CPU each, all CPUs if None; 0 runs the cells one by one in this process.
        progress: show the progress of the cells on standard error: a table on a terminal, a line a minute elsewhere.
        **settings: as for `userdp.train`, with a list of ``strategies``, ``seeds``, ``grid`` and ``tuning``.
            ``epsilon`` and ``delta`` may be lists, which the grid then gets.

    Raises:
        BadInput: a setting that cannot be used; it names field, value and remedy. Cells that fail are rows.
        RunFailed: Ray cannot be started.
    """
    with folder_of(None) as tables, folder_of(directory) as folder:
        comparison = _configured(data, settings, tables)
        if workers != 0 and any(map(is_object, code_in(comparison.raw).values())):
            raise BadInput(
                f"workers = {workers}: processes of Ray get a comparison as text, without the objects of Python in "
                "problem; name them as 'file.py:name', or set workers = 0"
            )
        with live(comparison) if wanted(progress) else nullcontext() as watch:
            run_all(comparison, workers=workers, directory=folder, watch=watch)
        page = (folder / "report.html").read_text(encoding="utf-8")
        table, summary, _ = read(folder)
        kept = None if directory is None else folder
        return ComparisonResult(table, page, kept, tuple(sentences(summary)), tuple(rests_on(summary)))


def _configured(data: Data, settings: Mapping[str, Any], tables: Path) -> Comparison:

    def declared(path: str) -> Comparison:
        return parse_comparison(arguments.sections(_in_grid(settings), path, arguments.OF_A_COMPARISON, "comparison"))

    if isinstance(data, Frame):
        comparison = declared(str(tables / FRAME))
        names = [name for cell in comparison.cells for name in cell.config().data.columns.names]
        write_frame(data, tables / FRAME, list(dict.fromkeys(names)))
        return comparison
    return arguments.configured(data, settings, Comparison, declared, parse_comparison, load_comparison)[0]


def _in_grid(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as in a file, where several strategies and lists of budgets have their own places."""
    found = dict(settings)
    if found.get("strategies") is not None:
        if found.get("strategy") is not None:
            raise BadInput("strategy and strategies are both given: keep one, with all strategies in its list")
        found["strategy"] = found.pop("strategies")
    if isinstance(found.get("strategy"), str | Mapping):
        found["strategy"] = [found["strategy"]]
    for key in arguments.SEVERAL_BUDGETS:
        if isinstance(values := arguments.as_in_a_file(found.get(key)), list):
            grid = found.get("grid") or {}
            if f"privacy.{key}" in grid:
                raise BadInput(f"{key} is a list, and grid has privacy.{key}: keep one of the two")
            found["grid"] = {**grid, f"privacy.{key}": values}
            del found[key]
    return found
