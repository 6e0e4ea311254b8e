"""Metrics of a model on held-out users: for simulations only, no guarantee covers them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from simulations.records.held_out import HeldOut, held_out
from simulations.records.quality import (
    curves,
    error_of_mean,
    explained,
    explained_error,
    only_class,
    quality,
    standard_errors,
)
from strategies.wire.questions import model_vector
from userdp.arrays.types import Array, Vector
from userdp.data import Block, ColumnarFederation, Federation
from userdp.nodes.measured import NORMAL_95
from userdp.nodes.node import MEMORY_BYTES
from userdp.problems import Problem

NOBODY = "nobody was held out"


class Evaluation:
    """Measures models on held-out users, the ``test`` users, all with equal weight.

    The ``train`` users serve only for known facts about their population, such as an excess risk in closed form.
    """

    def __init__(self, problem: Problem, train: Federation | None, test: Federation | None) -> None:
        self._problem, self._train, self._test = problem, train, test
        self._kept = test is not None and not test.stored and test.nbytes <= MEMORY_BYTES
        if self._kept and test is not None:
            # Clipped into the declared bounds like the training data, which the model was made for.
            self._test = ColumnarFederation(problem.bound(test.block(np.arange(test.users)))[0])
        self._optimum = None if train is None else problem.optimum(train)

    def __call__(self, x: Vector) -> dict[str, float]:
        """Return name -> mean over held-out users.

        "excess_risk" comes first if it is known; or, if the optimum is known, "excess_loss": the held-out loss above
        that of the optimum on the same samples, which cancels most of the effect of heavy tails. The l2 "distance" to
        a known optimum comes last.
        """
        metrics = _means(self._by_user(lambda block: self._problem.metrics(x, block)))
        risk = self._risk(x)
        if risk is not None:
            metrics = {"excess_risk": risk, **metrics}
        if self._optimum is None:
            return metrics
        if risk is None:
            metrics = self._with_excess_loss(metrics)
        return {**metrics, "distance": float(np.linalg.norm(x - self._optimum))}

    def whole(self, x: Vector) -> dict[str, float]:
        """Return the same with `details`: for models at a run's end, not for every round."""
        metrics = self(x)
        return {**metrics, **self.details(x, metrics)}

    def details(self, x: Vector, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return what `simulations.records.quality` adds to a model's ``metrics``; nothing if nobody is held out."""
        return {**explained(metrics, self.constant), **quality(self._problem, x, self._blocks())}

    @cached_property
    def constant(self) -> dict[str, float]:
        """The metrics of the best constant, which predicts the held-out users' own mean target for every sample.

        It needs no features, and nobody may know it without looking. Empty if nobody is held out, or the loss has none.
        """
        mean = self._target_mean
        if mean is None:
            return {}
        metrics = self._with_excess_loss(_means(self._constant_by_user))
        if self._train is not None and self._problem.mean_range is not None:
            risk = self._problem.excess_risk(self._problem.constant_model(mean), self._train)
            metrics = metrics if risk is None else {"excess_risk": risk, **metrics}
        return {**metrics, **explained(metrics, metrics)}

    def reference(
        self, x: Vector, initial: Vector, metrics: Mapping[str, float], released: Vector | None
    ) -> dict[str, Any]:
        """Return result.json's "reference": the metrics of the initial model and of constants, and errors beside x."""
        return {
            "initial": {**metrics, **self.details(initial, metrics)},
            "constant": self.constant or None,
            "released_constant": None if released is None else self.whole(released) or None,
            "difference_errors": self._difference_errors(x, {"initial": initial, "released_constant": released}),
        }

    def _difference_errors(self, x: Vector, others: Mapping[str, Vector | None]) -> dict[str, float]:
        """Return model -> standard error, over held-out users, of its loss minus that of x; none for a known risk."""
        measured = self._losses(x)
        if measured is None or self._risk(x) is not None:
            return {}
        losses = {name: self._losses(other) for name, other in others.items() if other is not None}
        losses["constant"] = self._constant_by_user.get("test_loss")
        with np.errstate(over="ignore", invalid="ignore"):  # a model may have diverged
            errors = {name: error_of_mean(one - measured) for name, one in losses.items() if one is not None}
        return {name: error for name, error in errors.items() if np.isfinite(error)}

    def _losses(self, x: Vector) -> Array | None:
        return self._by_user(lambda block: self._problem.metrics(x, block)).get("test_loss")

    def shown(self, x: Vector) -> dict[str, Any]:
        """Return result.json's "measured_users", "standard_errors", "confusion" and "curves", as far as they exist."""
        seen = held_out(self._problem, x, self._blocks())
        if not seen.users:
            return {}
        found: dict[str, Any] = {"measured_users": len(seen.sizes), "standard_errors": self._errors(x, seen)}
        if seen.counts is not None:
            found["confusion"] = seen.counts.tolist()
        return found | ({"curves": drawn} if (drawn := curves(seen)) else {})

    def _errors(self, x: Vector, seen: HeldOut) -> dict[str, float]:
        errors = explained_error(seen.users, self._constant_by_user)
        if self._risk(x) is None and self._least_losses is not None:
            above = seen.users["test_loss"] - self._least_losses
            seen = replace(seen, users={"excess_loss": above, **seen.users})
        return {**errors, **standard_errors(seen)}

    def not_measured(self, x: Vector, metrics: Mapping[str, float]) -> str | None:
        """Return why ``metrics`` say nothing about a model, a fact about held-out users; None if they do."""
        if not metrics:
            if self._test is None:
                return NOBODY
            return (
                f"{self._test.users} users were held out, and no sample of theirs has all cells that the model needs; "
                "see how many cells are unusable, column by column, in the private figures of the report"
            )
        if self.one_class(x, metrics):
            return (
                "all targets of the held-out users are one class, so accuracy and loss do not say whether the model "
                "separates classes; check data.positive, or hold out more users"
            )
        return None

    def one_class(self, x: Vector, metrics: Mapping[str, float]) -> bool:
        """Return whether the model predicts classes, and all measured users are of one class."""
        return main_metric(metrics) == "test_loss" and only_class(self._problem, x, self._blocks())

    def _risk(self, x: Vector) -> float | None:
        return None if self._train is None else self._problem.excess_risk(x, self._train)

    @cached_property
    def _target_mean(self) -> Vector | None:
        """(k,) The prediction of the best constant; None if nobody is held out, or samples have no targets."""
        means = [found for block in self._blocks() if (found := self._problem.target_means(block)) is not None]
        return np.asarray(np.concatenate(means).mean(axis=0)) if means else None

    @cached_property
    def _constant_by_user(self) -> dict[str, Array]:
        """The best constant's metrics for each held-out user, name -> (U,); empty if there is none."""
        mean = self._target_mean
        return {} if mean is None else self._by_user(lambda block: self._problem.constant_metrics(mean, block))

    @cached_property
    def _least_losses(self) -> Array | None:
        """(U,) The optimum's loss for each held-out user; None if the optimum is not known."""
        optimum = self._optimum
        if optimum is None:
            return None
        return self._by_user(lambda block: self._problem.metrics(optimum, block))["test_loss"]

    def _with_excess_loss(self, metrics: dict[str, float]) -> dict[str, float]:
        if "test_loss" not in metrics or self._least_losses is None:
            return metrics
        return {"excess_loss": metrics["test_loss"] - float(self._least_losses.mean()), **metrics}

    def _by_user(self, measure: Callable[[Block], Mapping[str, Array]]) -> dict[str, Array]:
        parts = [measure(block) for block in self._blocks()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}

    def _blocks(self) -> Iterator[Block]:
        if self._test is None:
            return
        for _, block in self._test.blocks(np.arange(self._test.users)):
            bounded = block if self._kept else self._problem.bound(block)[0]
            _, usable = bounded.usable_part()
            if usable is not None:
                yield usable


def _means(users: Mapping[str, Array]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in users.items()}


def main_metric(metrics: Mapping[str, float]) -> str | None:
    """Return the metric that "better than the initial model" compares: the excess if it is known, or the loss."""
    return next((name for name in ("excess_risk", "excess_loss", "test_loss") if name in metrics), None)


Verdict = Literal["better", "even", "worse"]


def verdict(value: float, other: float, error: float | None) -> Verdict:
    """Compare a metric with another model's: the one place that says whether a model is better or worse.

    It is "even" if zero lies in the interval of 95 % of the difference, of which ``error`` is one standard error over
    held-out users; None where nothing but the difference is known, so that any counts. NaN is worse.
    """
    reach = NORMAL_95 * (error or 0.0)
    if value - other < -reach:
        return "better"
    return "even" if value == other or value - other <= reach else "worse"


def better(metrics: Mapping[str, float], reference: Mapping[str, Any], name: str) -> bool | None:
    """Return whether a model is better than one of result.json's "reference"; None if it cannot be told."""
    main, other = main_metric(metrics), reference.get(name) or {}
    if main is None or main not in other:
        return None
    return told_apart(metrics[main], other[main], reference.get("difference_errors", {}).get(name))


def told_apart(value: float | None, other: float | None, error: float | None) -> bool | None:
    """Return whether a metric is better than another model's; None if it cannot be told, or one is not known."""
    found = "even" if value is None or other is None else verdict(value, other, error)
    return None if found == "even" else found == "better"


def constant_name(reference: Mapping[str, Any]) -> str:
    """Return the name of the constant that a model must beat, in result.json's "reference": the released or best."""
    return "released_constant" if reference.get("released_constant") else "constant"


def best_constant(reference: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return the metrics of that constant; None without one."""
    return dict(reference.get(constant_name(reference)) or {}) or None


@dataclass
class Schedule:
    """The ``evaluate_fn`` of a run: ``every`` few rounds, the first and the ``last``, and only if the model changed."""

    evaluation: Evaluation
    every: int
    last: int
    _seen: Vector | None = field(default=None, init=False)
    _metrics: dict[str, float] = field(default_factory=dict, init=False)

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return metrics of the model in ``arrays``; None in rounds that are not evaluated."""
        if server_round > 1 and server_round % self.every and server_round != self.last:
            return None
        return MetricRecord(self.of(model_vector(arrays)))  # type: ignore[arg-type]

    def of(self, x: Vector) -> dict[str, float]:
        """Return metrics of a model, computed anew only if it differs from the last one."""
        if self._seen is None or not np.array_equal(x, self._seen):
            self._seen, self._metrics = x.copy(), self.evaluation(x)
        return dict(self._metrics)
