"""A query's file, with [[ask]] in place of [problem] and [strategy], as the configuration of a run."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from simulations.config.errors import sentences
from userdp.errors import BadInput

_TAKEN = ("problem", "strategy", "preparation")
RELATION = "relation"  # a key of [privacy] in queries


def as_run(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the run that answers a query: all users take part, and nothing is trained.

    Raises `BadInput`: the file also sets what a query has no use for, or [data] or [privacy] is no section.
    """
    values = dict(raw)
    ask = values.pop("ask")
    if not isinstance(ask, list):
        raise BadInput("ask must be a list of statistics, each written [[ask]] with statistic = ... below it")
    for number, one in enumerate(ask, start=1):
        _check_statistic(f"[[ask]] {number}", one)
    if taken := [key for key in _TAKEN if key in values]:
        raise BadInput(f"{taken[0]} is given beside ask: a query trains nothing; leave {taken[0]} out")
    for name in ("data", "privacy"):
        if not isinstance(values.get(name, {}), Mapping):
            raise BadInput(f"{name} must be a section, written [{name}]")
    data, privacy = dict(values.get("data", {})), dict(values.get("privacy", {}))
    problem = {"kind": "table", "ask": ask}
    if RELATION in privacy:
        problem[RELATION] = privacy.pop(RELATION)
    if data.get("max_samples") is not None:
        problem["max_samples"] = data["max_samples"]
    if "split_column" not in data:
        data.setdefault("test_fraction", 0.0)
    output = {"reference": False, **values.get("output", {})}
    own = {"problem": problem, "strategy": {"kind": "statistics"}, "preparation": "none"}
    return {"name": "query", **values, **own, "data": data, "privacy": privacy, "output": output}


def _check_statistic(where: str, asked: Any) -> None:
    """Refuse a statistic with an unknown name or key; ``where`` is its place in the file."""
    # A configuration that trains needs neither tables nor statistics.
    from userdp.data.tables.declared import did_you_mean  # noqa: PLC0415
    from userdp.queries.registry import STATISTICS  # noqa: PLC0415

    name = asked.get("statistic") if isinstance(asked, Mapping) else None
    if not isinstance(name, str) or name not in STATISTICS:
        hint = did_you_mean(name, STATISTICS) if isinstance(name, str) else ""
        raise BadInput(f"{where}: statistic = {name!r} is unknown{hint}; there are {', '.join(STATISTICS)}")
    kind = STATISTICS[name]
    try:
        kind.model_validate(asked, strict=True)
    except ValidationError as error:
        found = sentences(error, asked, kind)
        raise BadInput("\n".join(f"{where}, statistic = {name!r}: {one}" for one in found)) from None
