"""``userdp query`` in Python.

>>> import numpy as np
>>> import pandas as pd
>>> from userdp import query
>>> people = pd.DataFrame({"person": np.arange(2000), "age": np.arange(2000) % 80})
>>> found = query(people, user="person", features=["age"], ranges={"age": [0, 100]}, epsilon=1.0, delta=1e-6)
>>> list(found.table["statistic"])
['mean', 'quantiles', 'quantiles', 'quantiles']
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.api.arguments import WithReport, as_in_a_file, configured, folder_of, frame_datasets, sections
from simulations.config.query_file import RELATION
from simulations.config.run_config import RunConfig, load_config, parse_config
from simulations.reports.answers import HEADINGS, answer_rows, remedy
from simulations.reports.progress import progress_bar
from simulations.runs.run import run
from strategies.core.plan import Plan
from userdp.accounting import Guarantee
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import Frame
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

Data = Frame | str | Path | RunConfig | Mapping[str, Any]
"""A table in memory, the path of a CSV or Parquet file; or a query, its values, or the path of its file."""
_OF_A_QUERY = ("ask", "engine", "output", "name", "seed")


@dataclass(frozen=True, eq=False)
class QueryResult(WithReport):
    """The answers to a query, all covered by one guarantee.

    Attributes:
        table: one row a number: statistic, column, level (also a bin or a quantile), estimate, standard_error, low and
            high end of the interval of 95 %, unit, and where (the filter; None without one).
        guarantee: the promise for all answers together.
        plan: every number that was fixed before the query read data.
        result: the content of result.json.
        page: report.html.
        directory: the folder of the query's files; None if nothing was kept.
    """

    table: pd.DataFrame
    guarantee: Guarantee
    plan: Plan
    result: dict[str, Any]
    page: str
    directory: Path | None

    def __repr__(self) -> str:
        rows = pd.DataFrame(answer_rows(self.result["answers"]), columns=list(HEADINGS))
        told = [rows.to_string(index=False), remedy(self.result["answers"]), f"Guarantee: {self.guarantee}"]
        return "\n".join(filter(None, told))


@without_internals
def query(
    data: Data,
    *,
    ask: Sequence[Mapping[str, Any]] | None = None,
    relation: str | None = None,
    directory: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> QueryResult:
    """Query a table privately, like ``userdp query``.

    Args:
        data: a DataFrame or other Arrow table, or the path of a CSV or Parquet file, one row per sample, described by
            ``settings``; or a query, which has all settings.
        ask: the statistics, each a dict with "statistic" and its keys, as in a query's file; by default the mean and
            the quartiles of each declared column of numbers, and the counts of each column of levels.
        relation: "replace_one", the default, or "add_or_remove".
        directory: the folder to write; if None, nothing is kept on disk.
        progress: show the progress on standard error.
        **settings: keys of [data] for a table (``user``, ``features``, ``ranges``, ``categorical``, ...) and of
            [privacy] (``epsilon``, ``delta``, ...) by their names, and ``engine``, ``output``, ``name`` and ``seed``.

    Raises:
        BadInput: a setting that cannot be used, or a table that does not fit it; it names field, value and remedy.
        RunFailed: the run stopped.
    """
    config, frame = _configured(data, {"ask": ask, RELATION: relation, **settings})
    datasets = None if frame is None else frame_datasets(config, frame)
    with folder_of(directory) as folder, progress_bar(progress) as bar:
        outcome = run(config, datasets=datasets, directory=folder, observers=[bar])
        report = folder / "report.html"
        return QueryResult(
            pd.DataFrame(outcome.result["answers"]),
            outcome.guarantee,
            outcome.plan,
            outcome.result,
            report.read_text(encoding="utf-8"),
            None if directory is None else folder,
        )


def _configured(data: Data, settings: Mapping[str, Any]) -> tuple[RunConfig, Frame | None]:
    """Return the configuration of a query, and the table in memory in place of its table's file, if there is one."""

    def declared(path: str) -> RunConfig:
        own = {key: value for key, value in settings.items() if key not in (RELATION, "ask")}
        raw = sections(own, path, _OF_A_QUERY, "query")
        if settings[RELATION] is not None:
            raw["privacy"][RELATION] = settings[RELATION]
        ask = default_ask(raw["data"]) if settings["ask"] is None else settings["ask"]
        raw["ask"] = as_in_a_file(ask)
        return parse_config(raw)

    config, frame = configured(data, settings, RunConfig, declared, parse_config, load_config)
    return checked(config), frame


def checked(config: RunConfig) -> RunConfig:
    """Return the configuration of a query; raise `BadInput` for one that trains."""
    if config.problem.kind != "table":
        raise BadInput("the configuration trains a model and asks nothing: write [[ask]] sections, or use userdp run")
    return config


def default_ask(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statistics of a query that asks nothing: all declared columns of numbers and of levels."""
    own = {key: value for key, value in data.items() if key in Columns.model_fields}
    try:
        named = Columns(**own).shape.named
    except BadInput as error:
        raise BadInput(f"[data] {error}") from None
    found: list[dict[str, Any]] = []
    for column in named:
        kinds = ("counts",) if column.range is None else ("mean", "quantiles")
        found += [{"statistic": kind, "of": column.name} for kind in kinds]
    return found
