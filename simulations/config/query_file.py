"""A query's file, with [[ask]] in place of [problem] and [strategy], as the configuration of a run."""

from collections.abc import Mapping
from typing import Any

from userdp.errors import BadInput

_TAKEN = ("problem", "strategy", "preparation")
RELATION = "relation"  # a key of [privacy] in queries


def is_query(raw: Mapping[str, Any]) -> bool:
    """Return whether the values of a file ask for statistics."""
    return "ask" in raw


def as_run(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the run that answers a query: all users take part, and nothing is trained.

    Raises `BadInput`: the file also sets what a query has no use for, or [data] or [privacy] is no section.
    """
    values = dict(raw)
    ask = values.pop("ask")
    if not isinstance(ask, list):
        raise BadInput("ask must be a list of statistics, each written [[ask]] with statistic = ... below it")
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
