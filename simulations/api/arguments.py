"""Arguments of Python calls: keywords, sorted into sections; tables in memory; folders."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from simulations.comparison.sections import ComparisonConfig
from simulations.config.places import absolute_path, make_absolute, name_objects
from simulations.config.run_config import DEFAULT, PrivacySection, RunConfig, strategy_section
from simulations.records.run_directory import write_text, writing
from simulations.runs.build import load_datasets
from strategies.core.recipe import Recipe
from strategies.registry import STRATEGIES
from userdp.data.source import Datasets
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.frames import FRAME, Frame, no_table, table_file
from userdp.data.tables.sources import TableData
from userdp.errors import BadInput, RunFailed
from userdp.problems.registry import PROBLEMS
from userdp.settings import path_of
from userdp.tracebacks import without_internals

log = logging.getLogger("userdp")
_TABLE = frozenset(TableData.model_fields) - {"kind", "path"}
_PRIVACY = frozenset(PrivacySection.model_fields)
INITIAL_MODEL = "initial_model"  # a key of [problem] that may stand beside it
SEVERAL_BUDGETS = ("epsilon", "delta")  # settings that may be lists in a comparison
OF_A_RUN = frozenset(RunConfig.model_fields) - {"data", "privacy"}
OF_A_COMPARISON = frozenset(ComparisonConfig.model_fields) - {"data", "privacy"}
T = TypeVar("T")


def configured(
    data: object,
    settings: Mapping[str, Any],
    kind: type[T],
    declared: Callable[[str], T],
    parse: Callable[[Mapping[str, Any]], T],
    load: Callable[[str | Path], T],
) -> tuple[T, Frame | None]:
    """Return the configuration of a call, and the table in memory in place of its table's file, if there is one.

    It is ``declared`` for a table or the path of one, else ``data`` parsed or loaded.
    """
    if isinstance(data, Frame):
        return declared(FRAME), data
    if isinstance(data, str | Path) and Path(data).suffix.lower() != ".toml":
        return declared(absolute_path(data)), None
    given = [key for key, value in settings.items() if value is not None]
    if given and isinstance(data, (kind, str, Path)):
        hint = 'change it there, or by load_config(path, ["privacy.epsilon=2"])'
        raise BadInput(f"{given[0]} is given beside a configuration, which has all settings: {hint}")
    if isinstance(data, kind):
        return data, None
    if isinstance(data, str | Path):
        return load(data), None
    if isinstance(data, Mapping) and not given:
        name_objects(found := as_in_a_file(data))
        return parse(found), None
    wanted = "comparison" if kind is not RunConfig else "configuration"
    raise BadInput(f"{no_table(data)}, or a {wanted} with nothing beside it")


def sections(settings: Mapping[str, Any], path: str, top: Collection[str], name: str) -> dict[str, Any]:
    """Return the values of a configuration file, for the table at ``path``; BadInput for an unknown key.

    ``settings`` hold keys of [data] (of a table) and [privacy], keys on ``top`` of the file, and the problem's
    ``initial_model``. A section may be its kind alone: ``strategy="dp_fed_sgd"``. None means not given.
    """
    raw: dict[str, Any] = {"name": name, "data": {"kind": "table", "path": path}, "privacy": {}}
    for key, value in settings.items():
        if value is None or key == INITIAL_MODEL:
            continue  # the initial model follows below, once the problem is known
        if key in top:
            raw[key] = _with_kind(value) if key in ("problem", "strategy", "engine") else as_in_a_file(value)
            name_objects({key: raw[key]})
            make_absolute({key: raw[key]}, Path())
        elif key in _TABLE or key in _PRIVACY:
            raw["data" if key in _TABLE else "privacy"][key] = as_in_a_file(value)
        else:
            raise BadInput(f"there is no setting {key!r}{_where_it_may_be(key, settings, top)}")
    if settings.get(INITIAL_MODEL) is not None:
        if not isinstance(raw.get("problem"), dict):
            raise BadInput(f"{INITIAL_MODEL} is given without problem, the loss of that model: give both")
        raw["problem"] = {**raw["problem"], INITIAL_MODEL: absolute_path(settings[INITIAL_MODEL])}
    return raw


def _where_it_may_be(key: str, settings: Mapping[str, Any], top: Collection[str]) -> str:
    for section in ("strategy", "problem"):
        given = settings.get(section) or (DEFAULT if section == "strategy" else None)
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if not isinstance(kind, str) or kind not in (STRATEGIES if section == "strategy" else PROBLEMS):
            continue
        if key in (strategy_section(kind) if section == "strategy" else PROBLEMS[kind]).model_fields:
            return f": the {section} has it, so write {section}={{'kind': {kind!r}, {key!r}: ...}}"
    hint = did_you_mean(key, [*top, *_TABLE, *_PRIVACY, INITIAL_MODEL])
    return (
        f"{hint}; those of a strategy stand in strategy={{...}}, those of a problem in problem={{...}}, and "
        "docs/configuration.md has them all"
    )


def refuse_several(settings: Mapping[str, Any]) -> None:
    """Refuse lists and keys that make several runs; only a comparison accepts them."""
    for key, value in settings.items():
        if value is None:
            continue
        if key in ("strategies", *OF_A_COMPARISON - OF_A_RUN):
            raise BadInput(f"{key} makes several runs, and this is one: call compare, or leave {key} out")
        if key in ("strategy", *SEVERAL_BUDGETS) and isinstance(plain := as_in_a_file(value), list):
            raise BadInput(f"{key} = {plain}: one model has one {key}; give one, or call compare, which takes several")


def _with_kind(value: Any) -> Any:
    recipe = value if isinstance(value, type) else type(value)
    if issubclass(recipe, Recipe):
        raise BadInput(
            f"strategy = {recipe.__name__}: must be the strategy's name, {recipe.about.name!r}, or that with settings, "
            f"{{'kind': {recipe.about.name!r}, ...}}"
        )
    if callable(value):
        raise BadInput(
            f"a {recipe.__name__} is given alone, and a module needs its loss: write problem={{'kind': 'torch', "
            "'module': it, 'loss': 'cross_entropy'}"
        )
    if isinstance(value, list | tuple):
        return [_with_kind(one) for one in value]
    return {"kind": value} if isinstance(value, str) else as_in_a_file(value)


def as_in_a_file(value: Any) -> Any:
    """Return a value in TOML's types, for those of NumPy and pandas, tuples and paths; in lists '' for None."""
    if isinstance(value, Mapping):
        return {key: as_in_a_file(inner) for key, inner in value.items()}
    if isinstance(value, pd.Index | pd.Series | ExtensionArray):
        return as_in_a_file(value.to_numpy())
    if isinstance(value, np.ndarray | np.generic):
        # Dates as text: as lists, those in nanoseconds would be whole numbers.
        return as_in_a_file(value.astype(str) if value.dtype.kind == "M" else value.tolist())
    if isinstance(value, list | tuple | range):
        return ["" if inner is None else as_in_a_file(inner) for inner in value]  # a missing cell, among levels
    return str(value) if isinstance(value, Path) else value


# Tables and folders --------------------------------------------------------------------------------------------------


@contextmanager
def folder_of(directory: str | Path | None) -> Iterator[Path]:
    """Yield ``directory``; or, if that is None, a temporary folder, which stays if the run stops."""
    if directory is not None:
        yield path_of("directory", directory)
        return
    folder = Path(mkdtemp(prefix="userdp-"))
    with ExitStack() as stack:
        stack.callback(rmtree, folder, ignore_errors=True)
        try:
            yield folder
        except RunFailed:
            if folder.is_dir():
                stack.pop_all()
                log.warning("what the stopped run had written, private figures too, is in %s", folder)
            raise


def frame_datasets(config: RunConfig, frame: Frame) -> Datasets:
    """Read the users of a table in memory like those of a table file; see `simulations.runs.build.load_datasets`."""
    with table_file(frame, config.data.columns.names) as path:
        data = config.data.model_copy(update={"path": str(path)})
        return load_datasets(config.model_copy(update={"data": data}))


class WithReport:
    """A result with a report: its HTML ``page`` and its ``directory``, None if nothing was kept."""

    page: str
    directory: Path | None

    @without_internals
    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one HTML page, by default into the result's directory; BadInput if it cannot be written."""
        if path is None and self.directory is None:
            raise BadInput("report(): nothing was kept on disk; give a path, such as report('report.html')")
        target = path_of("path", path) if path is not None else (self.directory or Path()) / "report.html"
        with writing(f"report(): {target}", "choose another path"):
            write_text(target, self.page)
        return target
