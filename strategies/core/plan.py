"""The plan: every number of a run, fixed before any data is seen; and how its budget is divided."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from strategies.core.about import MEANINGS, About
from strategies.core.options import PreparedOptions
from strategies.core.program import LastComparison, Preparation, Program
from strategies.core.public_facts import Given
from strategies.core.scheme import AnyRecipe, Number, Outline
from userdp.accounting import Privacy
from userdp.accounting.guarantee import Guarantee
from userdp.errors import BadInput, RunFailed
from userdp.problems.forecast import Forecast, standstill


@dataclass(frozen=True)
class Plan:
    """The numbers of a run, fixed before any data is seen; ``meanings`` explains the others.

    Attributes:
        cohort: users per round (the largest, where it varies).
        guarantee: the promise of the run once all rounds are done.
        noise: expected l2 norm of the noise in the final release (or in one round's gradient); None if not stated.
        signal: largest l2 norm of what the noise is added to; infinite without a limit, None where the strategy does
            not state it. Louder noise drowns the signal.
        pass_probability: lower bound on passing every test if the declared deviation is true; None without a test.
        forecast: the expected released model; None without a forecast.
        numbers: everything else worth printing, name -> value.
        warnings: sentences.
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "rounds": "exchanges with the nodes",
        "cohort": "users per round",
        "users": "n, the public number of training users",
        "users_needed": "fewest users with which this plan would be accepted",
        "noise": "expected l2 norm of the noise in a release",
        "signal": "largest l2 norm of what the noise is added to",
        "pass_probability": "chance that honest users pass every test, if the declared deviation is true",
        "initial_model": "public model from which training starts (a warm start); nothing is predicted from there",
        **Forecast.meanings,
    }
    """The meanings of the fields that people are shown; `strategies.core.about` has those of ``numbers``."""

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
        """The noise is expected to drown the signal."""
        return self.noise is not None and self.signal is not None and self.noise >= self.signal

    def stated(self, name: str) -> object:
        """Return the value of a field, in words where it is no number."""
        value = getattr(self, name)
        if value is None:
            return "not stated"
        return "no limit" if value == math.inf else value

    def check_spent(self, epsilon: float | None) -> None:
        """Refuse a model (`RunFailed`) whose run has spent more than the plan promises; None: not accounted."""
        if epsilon is not None and not epsilon <= self.guarantee.epsilon * (1 + 1e-9):
            raise RunFailed(
                f"{self.strategy} has spent epsilon = {epsilon:.9g}, and its plan promises "
                f"{self.guarantee.epsilon:.9g}: its model is not released"
            )

    def tell(self, log: logging.Logger) -> None:
        """Log the rounds, the guarantee and the warnings."""
        log.info("%s: %d rounds of %d of %d users", self.strategy, self.rounds, self.cohort, self.users)
        log.info("%s", self.guarantee)
        for warning in self.warnings:
            log.warning("%s", warning)

    def __repr__(self) -> str:
        sizes = (self.stated("noise"), self.stated("signal"))
        noise, signal = (f"{size:.4g}" if isinstance(size, float) else size for size in sizes)
        lines = [
            f"{self.strategy}: {self.rounds} rounds of {self.cohort:,} of {self.users:,} users, at least "
            f"{self.users_needed:,} needed",
            f"noise {noise}, signal {signal}",
            f"Guarantee: {self.guarantee}",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        names = ("strategy", "rounds", "cohort", "users", "users_needed", "noise", "signal", "drowned")
        return {
            **{name: getattr(self, name) for name in names},
            "pass_probability": self.pass_probability,
            "forecast": None if self.forecast is None else self.forecast.numbers(),
            "numbers": dict(self.numbers),
            "warnings": list(self.warnings),
            "guarantee": self.guarantee.as_dict(),
        }


def explained(about: About) -> dict[str, str]:
    """Return the meaning of each number that plans of a strategy show, by name."""
    return {**MEANINGS, **about.meanings, **Plan.meanings}


def planned(given: Given, recipe: AnyRecipe, program: Program, outline: Outline) -> Plan:
    """Return the plan of all rounds of a run, with its forecast."""
    forecast = None if outline.path is None else Forecast.of(given.problem, outline.path)
    guarantee, numbers = program.plan()
    numbers = {**numbers, **given.problem.sizes()}
    return Plan(
        strategy=given.strategy,
        rounds=program.rounds,
        cohort=outline.cohort,
        users=given.users,
        users_needed=outline.users_needed,
        guarantee=guarantee,
        noise=outline.noise,
        signal=outline.signal,
        pass_probability=outline.pass_probability,
        forecast=forecast,
        numbers=numbers,
        warnings=(
            *(warning for part in program.extra for warning in part.warnings()),
            *outline.warnings,
            *standstill(given.problem, recipe, outline.rounds, outline.numbers),
            *(() if forecast is None else forecast.warnings()),
        ),
    )


def check_budget(recipe: AnyRecipe, privacy: Privacy, users: int, seed: int | None) -> None:
    """Refuse a budget of a kind that the strategy does not support; the `BadInput` names those that it does.

    ``seed`` is None for one that nobody gave, and that the server draws: where nodes protect users from the server, it
    hides nothing.
    """
    about = recipe.about
    privacy.check_population(users)
    if privacy.unit not in about.units:
        raise BadInput(
            f"privacy.unit = {privacy.unit!r}: {about.name} protects {' or '.join(about.units)} level; "
            f"set privacy.unit = {about.units[0]!r}, which is the stronger promise, or use sample_clipped_sgd"
        )
    if privacy.delta == 0 and not about.pure:
        raise BadInput(
            f"privacy.delta = 0: {about.name} cannot promise pure privacy; set a delta well below 1/n = {1 / users:g}"
        )
    if privacy.noise == "secure" and about.without_secure_noise is not None:
        raise BadInput(
            f"privacy.noise = 'secure': {about.name} has no proof for it, because {about.without_secure_noise}; use "
            "recentred_clipping or another clipping strategy, or noise = 'seeded' for a simulation"
        )
    if privacy.trust == "sum" and not about.masked:
        raise BadInput(
            f"privacy.trust = 'sum': {about.name} does not work on sums that nodes make noisy and mask; use "
            "dp_fed_sgd or another strategy that `userdp list settings privacy.trust` names, or trust = 'server'"
        )
    if seed is None and privacy.noise == "seeded" and (privacy.trust == "sum" or not about.server_trusted):
        against = "trust = 'sum'" if privacy.trust == "sum" else about.name
        raise BadInput(
            f"noise = 'seeded' with {against}: the server would know the noise of all nodes; set privacy.noise = "
            "'secure', or give a seed in a simulation"
        )
    if privacy.lost_nodes and not recipe.max_missing:
        raise BadInput(
            f"privacy.lost_nodes = {privacy.lost_nodes} with strategy.max_missing = 0: the run would end when a node "
            "falls silent; raise max_missing to the share of the users whom so many nodes hold"
        )


def divided(
    recipe: AnyRecipe,
    given: Given,
    preparation: type[Preparation] | None,
    *,
    compare: bool,
) -> tuple[Privacy, Preparation | None, LastComparison | None]:
    """Divide a budget into (the rest for the strategy's own rounds, the rounds before them, those after them).

    Raises `BadInput`: the strategy, or its nodes, do not support the extra rounds.
    """
    before = after = None
    wanted = compare or preparation is not None
    if wanted and not given.wire.asks_more:
        raise BadInput(
            "compare_with_initial and preparation ask users for more than a step of training, which clients of an "
            "ordinary Flower app cannot answer: leave them out"
        )
    if wanted and given.privacy.trust == "sum":
        raise BadInput(
            "privacy.trust = 'sum': compare_with_initial and preparation ask for sums without noise, with which the "
            "server would have to be trusted; leave them out"
        )
    privacy = given.privacy
    if compare:
        if (objection := recipe.about.without_comparison) is not None:
            raise BadInput(f"output.compare_with_initial = true: {objection}; leave it out for {given.strategy}")
        privacy, after = LastComparison.within(privacy, given.users)
    if preparation is not None:
        privacy, before = _prepared(preparation, recipe, replace(given, privacy=privacy))
    return privacy, before, after


def _prepared(kind: type[Preparation], recipe: AnyRecipe, given: Given) -> tuple[Privacy, Preparation]:
    problem, privacy = given.problem, given.privacy
    share = kind.share(problem)
    own = replace(privacy, epsilon=share * privacy.epsilon, delta=share * privacy.delta)
    left = replace(privacy, epsilon=privacy.epsilon - own.epsilon, delta=privacy.delta - own.delta)
    # Calibration is expensive, and most strategies do not support a preparation.
    if isinstance(recipe, PreparedOptions):
        made = kind(problem, given.public, own, given.seed)
        if recipe.found(made.found()[1]):
            return left, made
    raise BadInput(
        f"preparation = 'learn': nothing that {given.strategy} needs can be found on the way for problem.kind = "
        f"{problem.name!r}; leave it out"
    )
