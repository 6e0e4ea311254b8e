"""The content of a run's files at its end, or where it stopped; released_fields.toml lists the kinds of its fields."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simulations.config.run_config import REFERENCE
from simulations.records.coefficients import with_level_names
from simulations.records.environment import peak_memory, versions
from simulations.records.evaluation import Schedule, better, constant_name
from simulations.records.run_directory import plain
from simulations.runs.build import Prepared, with_assumptions
from strategies.core.base import UserLevelStrategy
from userdp.accounting import Guarantee
from userdp.streams import SOURCES


def promise(strategy: UserLevelStrategy, guarantee: Guarantee, *, whole: bool) -> dict[str, Any]:
    """Return the content of guarantee.json; with ``whole`` everything that is promised counts as spent."""
    testers = strategy.testers
    held_out = {} if testers is None else {"held_out_spent_epsilon": testers.spent()}
    spent = {"spent_epsilon": strategy.spent_epsilon, **held_out}
    return guarantee.as_dict() | {
        "sentence": guarantee.sentence(),
        **(dict.fromkeys(spent, guarantee.epsilon) if whole else spent),
        "noise": SOURCES[strategy.privacy.noise],
    }


@dataclass
class Result:
    """The facts of a run whose rounds are over, measured by its ``schedule``; with an ``error`` it stopped.

    ``non_private`` are the metrics of training without privacy. With ``again`` a killed process may have asked more
    than this one knows.
    """

    prepared: Prepared
    schedule: Schedule
    engine: str
    non_private: dict[str, float] | None = None
    error: str | None = None
    again: bool = False

    @property
    def _whole(self) -> bool:
        return self.error is not None and self.again

    @cached_property
    def guarantee(self) -> Guarantee:
        """The promise; of a run that stopped, for what it spent on whoever was charged most."""
        prepared = self.prepared
        if self._whole:
            return prepared.plan.guarantee
        guarantee = with_assumptions(prepared.strategy.result.guarantee, prepared.config)
        if self.error is not None and guarantee.holds:
            return replace(guarantee, epsilon=prepared.strategy.spent_epsilon or 0.0)
        return guarantee

    def promise(self) -> dict[str, Any]:
        """Return the content of guarantee.json."""
        return promise(self.prepared.strategy, self.guarantee, whole=self._whole)

    def data(self) -> dict[str, Any]:
        """Return the content of data.json."""
        datasets, declared = self.prepared.datasets, self.prepared.config.data.declared_held_out
        return {
            "training_users": self.prepared.facts.users,
            "held_out_users": 0 if datasets.test is None else declared or datasets.test.users,
            "clipped_samples_private": self.prepared.strategy.result.clipped_samples,
            "table_private": None if datasets.report is None else datasets.report.as_dict(),
        }

    def content(self) -> dict[str, Any]:
        """Return the content of result.json; a run that stopped measures nothing more."""
        strategy, code = self.prepared.strategy, {"code": self.prepared.code} if self.prepared.code else {}
        outcome = strategy.result
        if self.error is not None:
            measured = [record.metrics for record in outcome.rounds if record.metrics]
            last = measured[-1] if measured else outcome.initial_metrics
            return self._about(last, {"initial": outcome.initial_metrics}, code) | {"error": self.error}
        model, evaluation = self.prepared.model, self.schedule.evaluation
        metrics = self.schedule.of(model)
        metrics |= evaluation.details(model, metrics)
        start = self.prepared.problem.initial(), outcome.initial_metrics
        reference = evaluation.reference(model, *start, outcome.constant)
        held_out = {} if strategy.testers is None else strategy.testers.report()
        more = evaluation.shown(model) | held_out
        more |= with_level_names(self.prepared.config, outcome.report)
        told = self._about(metrics, reference, more | code)
        reason = None if "answers" in told else evaluation.not_measured(model, metrics)
        if reason is not None:
            told |= {"not_measured": reason, "better_than_initial": None, "better_than_constant": None}
        return told

    def _about(self, metrics: dict[str, float], reference: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that every run has, and after them ``more``."""
        prepared, config = self.prepared, self.prepared.config
        facts, train, outcome = prepared.facts, prepared.datasets.train, prepared.strategy.result
        seconds = [record.seconds for record in outcome.rounds]
        told = {
            "name": config.name,
            "strategy": config.strategy_name,
            "problem": config.problem.kind,
            "engine": self.engine,
            "seed": config.seed,
            "users": facts.users,
            "samples": facts.samples,
            "samples_private": None if train is None or facts.samples is not None else train.samples,
            "dimension": prepared.problem.dimension,
            "rounds": len(outcome.rounds),
            "guarantee": self.guarantee.as_dict(),
            "metrics": metrics,
            "reference": reference,
            "reference_private": {"non_private": metrics if config.strategy.kind == REFERENCE else self.non_private},
            "better_than_constant": better(metrics, reference, constant_name(reference)),
            "better_than_initial": better(metrics, reference, "initial"),
            "missing_users_private": outcome.missing_users,
            "non_finite_users_private": outcome.non_finite_users,
            "seconds": {
                "total": time.perf_counter() - prepared.begun,
                "per_round": sum(seconds) / len(seconds) if seconds else 0.0,
            },
            "peak_memory_mib": peak_memory(),
            "computed": prepared.problem.computed() or None,
            "versions": versions(),
        }
        return plain(told | more)  # type: ignore[no-any-return]
