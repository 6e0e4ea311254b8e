"""Runs: configuration, engines, the `userdp` command, run directories and reports.

Everything is imported on first use, so that `userdp --help` does not wait for Flower, Ray or torch. The function that
makes a run is `simulations.run.run`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

# Before anything imports Flower or Ray: they call home unless told not to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

if TYPE_CHECKING:
    from simulations.build import build_problem, load_datasets, make_strategy
    from simulations.config import RunConfig, load_config
    from simulations.report import render
    from simulations.run import RunOutcome

__all__ = [
    "RunConfig",
    "RunOutcome",
    "build_problem",
    "load_config",
    "load_datasets",
    "make_strategy",
    "render",
]
_HOMES = {
    "RunConfig": "config",
    "RunOutcome": "run",
    "build_problem": "build",
    "load_config": "config",
    "load_datasets": "build",
    "make_strategy": "build",
    "render": "report",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"simulations.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
