"""Keyword arguments of Python calls, sorted into the sections of a configuration, where each is declared once."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulations.comparison.sections import ComparisonConfig
from simulations.config.run_config import PrivacySection, RunConfig, make_absolute
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.sources import TableData
from userdp.errors import BadInput

_TABLE = frozenset(TableData.model_fields) - {"kind", "path"}
_PRIVACY = frozenset(PrivacySection.model_fields)
INITIAL_MODEL = "initial_model"
"""A key of [problem] that may stand beside it."""
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
            raw[key] = _with_kind(value) if key in ("problem", "strategy", "engine") else _plain(value)
            make_absolute({key: raw[key]}, Path())
        elif key in _TABLE or key in _PRIVACY:
            raw["data" if key in _TABLE else "privacy"][key] = _plain(value)
        else:
            hint = did_you_mean(key, [*top, *_TABLE, *_PRIVACY, INITIAL_MODEL])
            raise BadInput(
                f"there is no setting {key!r}{hint}; those of a strategy stand in strategy={{...}}, those of a problem "
                "in problem={...}, and docs/configuration.md has them all"
            )
    if settings.get(INITIAL_MODEL) is not None:
        if not isinstance(raw.get("problem"), dict):
            raise BadInput(f"{INITIAL_MODEL} is given without problem, which says what it is a model of: give both")
        raw["problem"] = {**raw["problem"], INITIAL_MODEL: absolute_path(settings[INITIAL_MODEL])}
    return raw


def absolute_path(path: str | Path) -> str:
    """The path that a configuration gets: relative to the current folder, and absolute from then on."""
    return str(Path(path).expanduser().resolve())


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
    return {"kind": value} if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> Any:
    """A value as a file would give it: NumPy's numbers and arrays, tuples and paths become TOML's types."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "M":
        return _plain(value.astype(str))  # as lists, those in nanoseconds would be whole numbers
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | range):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
