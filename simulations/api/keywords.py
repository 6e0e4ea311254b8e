"""Keyword arguments of Python calls, sorted into the sections of a configuration, where each is declared once."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from simulations.comparison.sections import ComparisonConfig
from simulations.config.run_config import DEFAULT, PrivacySection, RunConfig, make_absolute, strategy_section
from strategies.registry import STRATEGIES
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.sources import TableData
from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS

_TABLE = frozenset(TableData.model_fields) - {"kind", "path"}
_PRIVACY = frozenset(PrivacySection.model_fields)
INITIAL_MODEL = "initial_model"
"""A key of [problem] that may stand beside it."""
SEVERAL_STRATEGIES = "strategies"
"""What people call those of a comparison first."""
SEVERAL_BUDGETS = ("epsilon", "delta")
"""Settings of which a comparison takes lists."""
OF_A_RUN = frozenset(RunConfig.model_fields) - {"data", "privacy"}
OF_A_COMPARISON = frozenset(ComparisonConfig.model_fields) - {"data", "privacy"}


def sections(settings: Mapping[str, Any], path: str, top: Collection[str], name: str) -> dict[str, Any]:
    """The values of a configuration file, for a table.

    Args:
        settings: keys of the sections [data] (of a table) and [privacy]; and of the file itself, where one with a kind
            may be that kind alone: ``strategy="dp_fed_sgd"``; and ``initial_model``, of the problem. None stands for
            what is not given.
        path: of the table.
        top: keys of the file itself.
        name: of the configuration, unless the settings have one.

    Raises:
        BadInput: a key that none of these has.
    """
    raw: dict[str, Any] = {"name": name, "data": {"kind": "table", "path": path}, "privacy": {}}
    for key, value in settings.items():
        if value is None:
            continue
        if key == INITIAL_MODEL:
            continue  # below, once the problem is known
        if key in top:
            raw[key] = _with_kind(value) if key in ("problem", "strategy", "engine") else as_in_a_file(value)
            make_absolute({key: raw[key]}, Path())
        elif key in _TABLE or key in _PRIVACY:
            raw["data" if key in _TABLE else "privacy"][key] = as_in_a_file(value)
        else:
            raise BadInput(f"there is no setting {key!r}{_where_it_may_be(key, settings, top)}")
    if settings.get(INITIAL_MODEL) is not None:
        if not isinstance(raw.get("problem"), dict):
            raise BadInput(f"{INITIAL_MODEL} is given without problem, which says what it is a model of: give both")
        raw["problem"] = {**raw["problem"], INITIAL_MODEL: absolute_path(settings[INITIAL_MODEL])}
    return raw


def _where_it_may_be(key: str, settings: Mapping[str, Any], top: Collection[str]) -> str:
    """What to write in place of a key that does not stand beside the sections."""
    for section in ("strategy", "problem"):
        given = settings.get(section) or (DEFAULT if section == "strategy" else None)
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if isinstance(kind, str) and key in _keys_of(section, kind):
            return f": the {section} has it, so write {section}={{'kind': {kind!r}, {key!r}: ...}}"
    hint = did_you_mean(key, [*top, *_TABLE, *_PRIVACY, INITIAL_MODEL])
    return (
        f"{hint}; those of a strategy stand in strategy={{...}}, those of a problem in problem={{...}}, and "
        "docs/configuration.md has them all"
    )


def _keys_of(section: str, kind: str) -> Collection[str]:
    """The keys that a kind of strategy or problem has; none if there is no such kind."""
    if section == "strategy":
        return strategy_section(kind).model_fields if kind in STRATEGIES else ()
    return PROBLEMS[kind].model_fields if kind in PROBLEMS else ()


def absolute_path(path: str | Path) -> str:
    """The path that a configuration gets: relative to the current folder, and absolute from then on."""
    return str(Path(path).expanduser().resolve())


def refuse_several(settings: Mapping[str, Any]) -> None:
    """Refuse what makes several runs of one: only a comparison takes it.

    Raises:
        BadInput: a list where one value stands, or a key that only comparisons have.
    """
    for key, value in settings.items():
        if value is None:
            continue
        if key in (SEVERAL_STRATEGIES, *OF_A_COMPARISON - OF_A_RUN):
            raise BadInput(f"{key} makes several runs, and this is one: call compare, or leave {key} out")
        if key in ("strategy", *SEVERAL_BUDGETS) and isinstance(plain := as_in_a_file(value), list):
            raise BadInput(f"{key} = {plain}: one model has one {key}; give one, or call compare, which takes several")


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings beside a configuration, which has them all.

    Raises:
        BadInput: there are some.
    """
    given = [key for key, value in settings.items() if value is not None]
    if given:
        raise BadInput(
            f"{given[0]} is given beside a configuration, which has all settings: change it there, or by "
            'load_config(path, ["privacy.epsilon=2"])'
        )


def _with_kind(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_kind(one) for one in value]
    return {"kind": value} if isinstance(value, str) else as_in_a_file(value)


def as_in_a_file(value: Any) -> Any:
    """A value as a file would give it: those of NumPy and pandas, tuples and paths become TOML's types."""
    if isinstance(value, Mapping):
        return {key: as_in_a_file(inner) for key, inner in value.items()}
    if isinstance(value, pd.Index | pd.Series | ExtensionArray):
        return as_in_a_file(value.to_numpy())
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "M":
        return as_in_a_file(value.astype(str))  # as lists, those in nanoseconds would be whole numbers
    if isinstance(value, np.ndarray | np.generic):
        return as_in_a_file(value.tolist())
    if isinstance(value, list | tuple | range):
        return [as_in_a_file(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
