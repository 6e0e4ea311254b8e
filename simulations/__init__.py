"""Runs: configuration, engines, the `userdp` command, run directories and reports.

`train`, `plan`, `compare`, `query`, `find` and `load_model` do the command's work in Python. Every name is imported on
first use, so that `userdp --help` does not wait for Flower, Ray or torch.
"""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from simulations.account.entering import enter
    from simulations.api.comparing import ComparisonResult, compare
    from simulations.api.prediction import SavedModel, load_model
    from simulations.api.querying import QueryResult, query
    from simulations.api.training import TrainedModel, plan, train
    from simulations.config.run_config import RunConfig, load_config
    from simulations.finding.facts import Found
    from simulations.finding.find import find
    from simulations.reports.report import render
    from simulations.runs.build import build_problem, load_datasets, make_strategy
    from simulations.runs.run import RunOutcome

__all__ = [
    "ComparisonResult",
    "Found",
    "QueryResult",
    "RunConfig",
    "RunOutcome",
    "SavedModel",
    "TrainedModel",
    "build_problem",
    "compare",
    "enter",
    "find",
    "load_config",
    "load_datasets",
    "load_model",
    "make_strategy",
    "plan",
    "query",
    "render",
    "train",
]

__getattr__, __dir__ = lazily(__name__)
