"""Advice before a run: a plan of each strategy, ranked by its forecast."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulations.config.run_config import REFERENCE, OutputSection, RunConfig, strategy_section
from simulations.runs.build import make_strategy, public_facts, starting_problem, with_declarations
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.registry import STRATEGIES
from userdp.errors import BadInput, UserdpError
from userdp.problems import Problem
from userdp.problems.shares import SharesProblem


@dataclass(frozen=True)
class Advice:
    """The plan of a strategy; or None, and the ``reason`` why it refuses.

    ``configured`` is the file's own strategy, with the file's settings. ``trusting`` if users have to trust the server.
    """

    strategy: str
    configured: bool
    plan: Plan | None
    reason: str
    trusting: bool

    @property
    def predicted(self) -> float | None:
        """The excess risk that the plan predicts; None if there is no plan or no forecast."""
        forecast = None if self.plan is None else self.plan.forecast
        return None if forecast is None else forecast.excess

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and tables."""
        about, plan = STRATEGIES[self.strategy].about, self.plan
        forecast = None if plan is None else plan.forecast
        given = plan.guarantee if plan is not None and plan.guarantee.holds else None
        return {
            "strategy": self.strategy,
            "configured": self.configured,
            "predicted_excess": self.predicted,
            "start_excess": None if forecast is None else forecast.start,
            "model_noise": None if forecast is None else forecast.noise,
            **{name: getattr(plan, name, None) for name in ("rounds", "cohort", "users_needed")},
            "guarantee": None if plan is None else plan.guarantee.sentence(),
            "assumptions": [] if plan is None else list(plan.guarantee.assumptions),
            "relation": None if given is None else given.relation,
            "adversary": about.adversary if given is None else given.adversary,
            "cost": about.cost,
            "warnings": [] if plan is None else list(plan.warnings),
            "refused": self.reason or None,
        }


def advise(config: RunConfig, progress: Callable[[int, int, str], None] | None = None) -> list[Advice]:
    """Plan every strategy for the declared problem, users and budget, and sort by predicted excess risk.

    Strategies without a forecast come after those with one, and those that refuse last. The file's own strategy has the
    file's settings, all others have their defaults. ``progress`` is called before each plan, with the number
    made, the number of strategies, and the one to be planned.
    """
    problem, facts = starting_problem(config), public_facts(config)
    if isinstance(problem, SharesProblem):
        raise BadInput("a query trains nothing, so no strategies are ranked for it; userdp plan shows its guarantee")
    names = [name for name in STRATEGIES.loaded()[0] if name != REFERENCE]
    found = []
    for done, name in enumerate(names):
        if progress is not None:
            progress(done, len(names), name)
        found.append(_advice(config, problem, facts, name))
    return sorted(found, key=lambda one: (one.plan is None, one.predicted is None, one.predicted or 0.0))


def _advice(config: RunConfig, problem: Problem, facts: PublicFacts, name: str) -> Advice:
    own = name == config.strategy.kind
    trusting = STRATEGIES[name].about.server_trusted and config.privacy.trust == "server"
    try:
        if not own:
            other, plain = strategy_section(name).model_validate({"kind": name}), OutputSection.model_validate({})
            changed = {"strategy": other, "preparation": "where_useful", "output": plain}
            config = config.model_copy(update=changed)
        made = make_strategy(config, problem, facts)
    except UserdpError as error:
        return Advice(name, own, None, str(error), trusting)
    return Advice(name, own, with_declarations(made.plan, config), "", trusting)
