"""The plan: every number of a run, fixed before any data is seen."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from strategies.core.around import Around
from strategies.core.forecast import Forecast, standstill
from strategies.core.options import StrategyOptions
from strategies.core.public_facts import Given
from strategies.core.scheme import Number, Scheme
from strategies.core.secure_noise import SECURE_ASSUMPTIONS
from userdp.accounting.guarantee import Guarantee
from userdp.errors import RunFailed


@dataclass(frozen=True)
class Plan:
    """What a strategy is going to do.

    Attributes:
        strategy: its name.
        rounds: exchanges with the nodes.
        cohort: users a round (the largest, where it varies).
        users: n, public.
        users_needed: the fewest users with which this plan would still be accepted.
        guarantee: what the run will promise once all rounds are done.
        noise: l2 norm that the noise in the final release (or in one round's gradient) is expected to have; None where
            the strategy does not state it.
        signal: l2 norm that the thing it is added to can have, noise above which drowns the signal; infinite without a
            limit, None where the strategy does not state it.
        pass_probability: lower bound on passing every test if the declared deviation is true; None without a test.
        forecast: what is expected of the released model; None for strategies that cannot tell.
        numbers: everything else worth printing, name -> value.
        warnings: sentences.
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "rounds": "exchanges with the nodes",
        "cohort": "users a round",
        "users": "n, the public number of training users",
        "users_needed": "fewest users with which this plan would be accepted",
        "noise": "expected l2 norm of the noise in a release",
        "signal": "largest l2 norm of what the noise is added to",
        "pass_probability": "chance that honest users pass every test, if the declared deviation is true",
        "initial_model": "public model from which training starts (a warm start); nothing is predicted from there",
        **Forecast.meanings,
    }
    """Of those of its own fields that people are shown; a strategy declares what its ``numbers`` mean."""

    strategy: str
    rounds: int
    cohort: int
    users: int
    users_needed: int
    guarantee: Guarantee
    noise: float | None = None
    signal: float | None = None
    pass_probability: float | None = None
    forecast: Forecast | None = None
    numbers: Mapping[str, Number] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def drowned(self) -> bool:
        """Whether the noise is expected to drown the signal."""
        return self.noise is not None and self.signal is not None and self.noise >= self.signal

    def stated(self, name: str) -> object:
        """The value of a field in words for people where it is no number."""
        value = getattr(self, name)
        if value is None:
            return "not stated"
        return "no limit" if value == math.inf else value

    def check_spent(self, epsilon: float | None) -> None:
        """Compare what a whole run has spent, None for nothing to account, with what this promises.

        Raises:
            RunFailed: it has spent more: its model must not be used under this guarantee.
        """
        if epsilon is not None and not epsilon <= self.guarantee.epsilon * (1 + 1e-9):
            raise RunFailed(
                f"{self.strategy} has spent epsilon = {epsilon:.9g}, and its plan promises "
                f"{self.guarantee.epsilon:.9g}: its model is not released"
            )

    def tell(self, log: logging.Logger) -> None:
        """Log what is going to be done, what it promises and what speaks against it."""
        log.info("%s: %d rounds of %d of %d users", self.strategy, self.rounds, self.cohort, self.users)
        log.info("%s", self.guarantee.sentence())
        for warning in self.warnings:
            log.warning("%s", warning)

    def __repr__(self) -> str:
        sizes = {name: self.stated(name) for name in ("noise", "signal")}
        noise, signal = (f"{size:.4g}" if isinstance(size, float) else size for size in sizes.values())
        lines = [
            f"{self.strategy}: {self.rounds} rounds of {self.cohort:,} of {self.users:,} users, at least "
            f"{self.users_needed:,} needed",
            f"noise {noise}, signal {signal}",
            f"Guarantee: {self.guarantee}",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "strategy": self.strategy,
            "rounds": self.rounds,
            "cohort": self.cohort,
            "users": self.users,
            "users_needed": self.users_needed,
            "noise": self.noise,
            "signal": self.signal,
            "drowned": self.drowned,
            "pass_probability": self.pass_probability,
            "forecast": None if self.forecast is None else self.forecast.numbers(),
            "numbers": dict(self.numbers),
            "warnings": list(self.warnings),
            "guarantee": self.guarantee.as_dict(),
        }


def planned(given: Given, options: StrategyOptions, scheme: Scheme, around: Around) -> Plan:
    """The scheme in numbers, with the forecast and all that comes before and after the strategy's own rounds."""
    outline = scheme.outline
    forecast = None if outline.path is None else Forecast.of(given.problem, outline.path)
    rounds, guarantee, numbers = around.plan(outline.rounds, scheme.guarantee, outline.numbers)
    return Plan(
        strategy=given.strategy,
        rounds=rounds,
        cohort=outline.cohort,
        users=given.users,
        users_needed=outline.users_needed,
        guarantee=guarantee.assuming(*(SECURE_ASSUMPTIONS[given.privacy.unit] if given.secure else ())),
        noise=outline.noise,
        signal=outline.signal,
        pass_probability=outline.pass_probability,
        forecast=forecast,
        numbers=numbers,
        warnings=(
            *around.warnings,
            *outline.warnings,
            *standstill(given.problem, options, outline.rounds, outline.numbers),
            *(() if forecast is None else forecast.warnings()),
        ),
    )
