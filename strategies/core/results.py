"""The result of a round, and that of a strategy: the released model, the guarantee, one record per round."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.noise import NoiseSource

ANSWERS = "answers.csv"  # the answers to a query; training has none
_COUNTS = ("missing_users_private", "non_finite_users_private")

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]  # From (round, model) to its metrics
Noise = Callable[[int], NoiseSource]  # Opens the noise of a round for one purpose, one for each release


@dataclass(frozen=True)
class Step:
    """The result of a round."""

    following: Vector  # (p,) where the next round asks for gradients; private itself only if it is released
    released: Vector | None  # (p,) the newly released model; None if the round releases nothing
    facts: Mapping[str, float] = field(default_factory=dict)  # of the round; names of exact ones end in ``_private``
    # (p,) best known model that predicts the same of everybody, from releases, in the loss's own parameters; or None
    constant: Vector | None = None
    goes_back: bool = False  # whether the next round asks at the released model, and ``following`` is dropped


@dataclass(frozen=True)
class RoundRecord:
    """The record of a round, for progress bars and rounds.parquet.

    Counts of users are exact, for the holder of the data alone: files call them ``..._private``.

    Attributes:
        round: counted from 1.
        seconds: wall time of the round without evaluation.
        missing_users: users without an answer.
        non_finite_users: users whose row was not finite.
        spent: computes the epsilon charged after the round; None without a guarantee. `spent_epsilon` calls it once.
        facts: strategy-specific numbers (score, threshold, noise, ...); names ending in ``_private`` are not released.
        metrics: of the released model, from ``evaluate_fn``.
    """

    round: int
    seconds: float
    missing_users: int
    non_finite_users: int
    spent: Callable[[], float] | None = field(repr=False)
    facts: dict[str, float]
    metrics: dict[str, float]

    @cached_property
    def spent_epsilon(self) -> float | None:
        """The epsilon charged after the round; None without a guarantee. Computed on first use."""
        return None if self.spent is None else self.spent()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with the epsilon in the place of ``spent``."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "spent": self.spent_epsilon}

    @classmethod
    def of(cls, values: dict[str, Any]) -> "RoundRecord":
        """Make a record from the values of `as_dict`."""
        spent = values["spent"]
        return cls(**{**values, "spent": None if spent is None else partial(float, spent)})


def counts(missing: int, non_finite: int) -> MetricRecord:
    """Return the counts of a round as Flower's metrics."""
    return MetricRecord(dict(zip(_COUNTS, (missing, non_finite), strict=True)))


@dataclass
class PrivateResult(Result):
    """Flower's `Result` with the guarantee and records of userdp.

    Attributes:
        guarantee: the promise for the rounds that were run.
        rounds: one record per round.
        initial_metrics: ``evaluate_fn`` at the initial model.
        clipped_samples: samples that nodes had to clip into the declared bounds; exact, for the holder of the data
            alone.
        constant: (p,) the best constant model that was released; None where none was.
        report: what else follows from the releases, by name, such as the coefficients of a model.
    """

    guarantee: Guarantee = field(default_factory=lambda: Guarantee.none("nothing was run"))
    rounds: list[RoundRecord] = field(default_factory=list)
    initial_metrics: dict[str, float] = field(default_factory=dict)
    clipped_samples: int = 0
    constant: Vector | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        server_round: int,
        arrays: ArrayRecord,
        metrics: MetricRecord | None,
        *,
        seconds: float,
        spent: Callable[[], float] | None,
        facts: dict[str, float],
        evaluate: Evaluate | None,
    ) -> RoundRecord:
        """Add a round: the model released after it, the counts of its replies, and the rest of its record."""
        self.arrays = arrays
        missing, non_finite = (int(dict[str, Any](metrics or {}).get(name, 0)) for name in _COUNTS)
        measured = self.evaluate(evaluate, server_round)
        record = RoundRecord(server_round, seconds, missing, non_finite, spent, facts, measured)
        self.rounds.append(record)
        if metrics is not None:
            self.train_metrics_clientapp[server_round] = metrics
        return record

    def restore(self, initial_metrics: dict[str, float], rounds: list[RoundRecord]) -> None:
        """Take over the records of another process."""
        self.initial_metrics, self.rounds = initial_metrics, rounds
        measured = {0: initial_metrics} | {record.round: record.metrics for record in rounds}
        self.evaluate_metrics_serverapp = {
            number: MetricRecord(metrics)  # type: ignore[arg-type]
            for number, metrics in measured.items()
            if metrics
        }
        self.train_metrics_clientapp = {one.round: counts(one.missing_users, one.non_finite_users) for one in rounds}

    def evaluate(self, evaluate: Evaluate | None, server_round: int) -> dict[str, float]:
        """Evaluate the released model, and store the metrics where Flower's own result has them, too."""
        record = evaluate(server_round, self.arrays) if evaluate is not None else None
        metrics: dict[str, float] = {name: float(value) for name, value in (record or {}).items()}  # type: ignore[arg-type]
        if metrics:
            self.evaluate_metrics_serverapp[server_round] = MetricRecord(metrics)  # type: ignore[arg-type]
        return metrics

    def save(self, folder: Path) -> None:
        """Write what was released into ``model.npz``, each array by its name, the guarantee, and a query's answers."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: array.numpy() for name, array in self.arrays.items()}
        np.savez(folder / "model.npz", allow_pickle=False, **arrays)
        (folder / "guarantee.json").write_text(json.dumps(self.guarantee.as_dict(), indent=2), encoding="utf-8")
        if answers := self.report.get("answers"):
            (folder / ANSWERS).write_text(answers_text(answers), encoding="utf-8")

    @property
    def missing_users(self) -> int:
        """Missing answers, summed over rounds."""
        return sum(record.missing_users for record in self.rounds)

    @property
    def non_finite_users(self) -> int:
        """Rows that were not finite, summed over rounds."""
        return sum(record.non_finite_users for record in self.rounds)


def answers_text(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of `ANSWERS`, one line a number."""
    import pandas as pd  # noqa: PLC0415 -- slow to import

    return str(pd.DataFrame(answers).to_csv(index=False))
