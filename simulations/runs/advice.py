"""Which strategy to take for declared public facts: a plan of each, ranked by what it predicts. Opens no data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulations.config.run_config import REFERENCE, RunConfig
from simulations.runs.build import (
    build_privacy,
    make_strategy,
    prepared_if,
    public_facts,
    starting_problem,
    with_declarations,
)
from strategies.core.base import UserLevelStrategy
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.registry import STRATEGIES
from userdp.errors import UserdpError
from userdp.problems import Problem

Progress = Callable[[str, int, int], None]
"""Called with the strategy to be planned, how many are done, and how many there are."""


@dataclass(frozen=True)
class Advice:
    """What a strategy would do here.

    Attributes:
        strategy: its name.
        configured: whether it is the file's own, with the file's settings; others have their defaults.
        plan: None where it refuses.
        reason: why it refuses; empty where it does not.
        trusting: whether users have to trust the server.
    """

    strategy: str
    configured: bool
    plan: Plan | None
    reason: str
    trusting: bool

    @property
    def predicted(self) -> float | None:
        """Excess risk that the plan predicts; None where it refuses or cannot tell."""
        forecast = None if self.plan is None else self.plan.forecast
        return None if forecast is None else forecast.excess

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and tables."""
        kind, plan = STRATEGIES[self.strategy], self.plan
        forecast = None if plan is None or plan.forecast is None else plan.forecast
        return {
            "strategy": self.strategy,
            "configured": self.configured,
            "predicted_excess": self.predicted,
            "start_excess": None if forecast is None else forecast.start,
            "model_noise": None if forecast is None else forecast.noise,
            "rounds": None if plan is None else plan.rounds,
            "cohort": None if plan is None else plan.cohort,
            "users_needed": None if plan is None else plan.users_needed,
            "guarantee": None if plan is None else plan.guarantee.sentence(),
            "relation": None if plan is None or not plan.guarantee.holds else plan.guarantee.relation,
            "adversary": kind.about.adversary if plan is None or not plan.guarantee.holds else plan.guarantee.adversary,
            "cost": kind.about.cost,
            "warnings": [] if plan is None else list(plan.warnings),
            "refused": self.reason or None,
        }


def advise(config: RunConfig, progress: Progress | None = None) -> list[Advice]:
    """A plan of every strategy for the declared problem, users and budget, the best prediction first.

    Strategies that cannot tell come after those that can, and those that refuse last. The file's own strategy has the
    file's settings, all others their defaults.

    Args:
        config: its data are not opened.
        progress: called before each plan.

    Raises:
        BadInput: the facts are not declared, or contradict each other.
    """
    problem, facts = starting_problem(config), public_facts(config)
    names = [name for name in STRATEGIES.loaded()[0] if name != REFERENCE]
    found = []
    for done, name in enumerate(names):
        if progress is not None:
            progress(name, done, len(names))
        found.append(_advice(config, problem, facts, name))
    return sorted(found, key=_order)


def _advice(config: RunConfig, problem: Problem, facts: PublicFacts, name: str) -> Advice:
    own = name == config.strategy.kind
    trusting = STRATEGIES[name].about.server_trusted and config.privacy.trust == "server"
    try:
        if own:
            made = make_strategy(config, problem, facts)
        else:
            recipe = STRATEGIES[name].parsed({})
            make = partial(UserLevelStrategy, recipe, problem, facts, build_privacy(config), seed=config.seed)
            made = prepared_if("where_useful", make)
    except UserdpError as error:
        return Advice(name, own, None, str(error), trusting)
    return Advice(name, own, with_declarations(made.plan, config), "", trusting)


def _order(advice: Advice) -> tuple[bool, bool, float]:
    predicted = advice.predicted
    return advice.plan is None, predicted is None, 0.0 if predicted is None else predicted
