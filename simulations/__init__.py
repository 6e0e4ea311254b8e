"""Runs: configuration, engines, the `userdp` command, run directories and reports.

`train`, `plan`, `compare` and `load_model` do in Python what the command does. Everything is imported on first use, so
that `userdp --help` does not wait for Flower, Ray or torch.
"""

import os
from typing import TYPE_CHECKING

from userdp.lazy import names_from

# Before anything imports Flower or Ray: they call home unless told not to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

if TYPE_CHECKING:
    from simulations.build import build_problem, load_datasets, make_strategy
    from simulations.comparing import ComparisonResult, compare
    from simulations.config import RunConfig, load_config
    from simulations.prediction import SavedModel, load_model
    from simulations.report import render
    from simulations.run import RunOutcome
    from simulations.training import TrainedModel, plan, train

__all__ = [
    "ComparisonResult",
    "RunConfig",
    "RunOutcome",
    "SavedModel",
    "TrainedModel",
    "build_problem",
    "compare",
    "load_config",
    "load_datasets",
    "load_model",
    "make_strategy",
    "plan",
    "render",
    "train",
]

__getattr__ = names_from(
    __name__,
    {
        "simulations.build": ("build_problem", "load_datasets", "make_strategy"),
        "simulations.comparing": ("ComparisonResult", "compare"),
        "simulations.config": ("RunConfig", "load_config"),
        "simulations.prediction": ("SavedModel", "load_model"),
        "simulations.report": ("render",),
        "simulations.run": ("RunOutcome",),
        "simulations.training": ("TrainedModel", "plan", "train"),
    },
)
