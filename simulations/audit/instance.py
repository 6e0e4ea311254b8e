"""A small instance of a run: the same strategy with the same settings and budget, for as few people as it accepts.

What a strategy leaks of one user against what it claims does not grow with n: noise is calibrated to what one user can
move. So a few users and two columns are enough to attack it, thousands of times.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from simulations.config.run_config import RunConfig
from simulations.runs.build import make_strategy, public_facts, starting_problem
from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Declarations
from strategies.core.plan import Plan, PublicFacts
from strategies.registry import STRATEGIES
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.linear import Linear
from userdp.problems.registry import PROBLEMS
from userdp.problems.separable import Quadratic
from userdp.sampling.base import Sampler

_BOUND, _RADIUS = 1e3, 1e6
"""Of the users' features, far beyond any sensible clip, and of a domain that models do not leave."""

_SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=2.0, target_range=(-1.0, 1.0))
"""Two features in [-1, 1], and a target there, for strategies that need a loss of their own."""

CANARIES = 128
"""Columns, one for each canary of a run and one for the crowd, where each can pull in a direction of its own."""

_MOST_USERS = 1 << 14
_SIZES = ("cohort", "batch")
"""Settings that count users, and shrink with them."""


@dataclass(frozen=True)
class Instance:
    """A run for few users.

    Attributes:
        config: of the run, with settings that count users made smaller.
        problem: the loss.
        facts: public facts of the few users.
        template: the strategy, planned, before its first round.
    """

    config: RunConfig
    problem: Problem
    facts: PublicFacts
    template: UserLevelStrategy

    @classmethod
    def of(cls, config: RunConfig) -> "Instance":
        """The smallest instance that the strategy accepts; reads no data.

        Raises:
            BadInput: the strategy promises nothing, the configuration's own plan cannot be made, or no small instance
                is accepted.
        """
        seeded = config.model_copy(update={"privacy": config.privacy.model_copy(update={"noise": "seeded"})})
        facts = public_facts(config)
        whole = make_strategy(seeded, starting_problem(config), facts).plan
        if not whole.guarantee.holds:
            raise BadInput(
                f"strategy.kind = {config.strategy.kind!r} promises nothing that could be audited: "
                f"{whole.guarantee.sentence()}; choose a strategy with a guarantee"
            )
        prepared = "learn" if "preparation_epsilon" in whole.numbers else "none"
        seeded = seeded.model_copy(update={"preparation": prepared})
        reason = BadInput("no user")
        for problem, people in _problems(config.strategy.kind):
            for users in _populations(whole, people):
                try:
                    found = cls._planned(_shrunk(seeded, users, facts.users), problem, _few(facts, users, config))
                except BadInput as error:
                    reason = error
                else:
                    if found.template.plan.rounds > 0:
                        return found
        raise BadInput(f"strategy.kind = {config.strategy.kind!r} has no small instance to attack: {reason}")

    @classmethod
    def _planned(cls, config: RunConfig, problem: Problem, facts: PublicFacts) -> "Instance":
        return cls(config, problem, facts, make_strategy(config, problem, facts))

    @property
    def plan(self) -> Plan:
        """Of the small instance."""
        return self.template.plan

    @property
    def samples(self) -> int:
        """Of each user: all that one may hold, where a whole user is protected."""
        return self.facts.min_samples

    def strategy(self, seed: int) -> UserLevelStrategy:
        """The strategy before its first round, with noise of its own.

        Where who takes part is public, it stays the same in all runs, which an attacker may know; else it is drawn
        anew.
        """
        if public_sampler(self.template) is None:
            return make_strategy(self.config.model_copy(update={"seed": seed}), self.problem, self.facts)
        made = copy.deepcopy(self.template)
        made.seed = seed
        return made


def _problems(strategy: str) -> Iterator[tuple[Problem, int]]:
    """Losses to try in turn, and how many users: canaries and as many others, or as few as there can be.

    Steps on a quadratic loss are as long as what is released. Where noise follows from certified bounds, those of a
    linear loss are what a canary has at every model.
    """
    kind = STRATEGIES[strategy]
    losses = [Quadratic, Linear] if kind.needs.startswith(Declarations.needs) else [Linear, Quadratic]
    # Where users add their own noise, that of others hides nobody from the server, whom they are protected from.
    many = kind.server_trusted and not kind.compares_users
    for columns, users in ((CANARIES, 2 * CANARIES), (2, 1)) if many else ((2, 1),):
        for loss in losses:
            yield loss(columns, _BOUND, _RADIUS), users
    section = dict(STRATEGIES[strategy].example_problem)
    settings = PROBLEMS[section["kind"]].model_validate({"radius": 2.0} | section)
    yield settings.build(_SHAPE, seed=0), 1


def _populations(whole: Plan, people: int) -> Iterator[int]:
    """Numbers of users to try: ``people`` for each cohort in an epoch of the run, and twice, four times ... that.

    Where many would be canaries, no more than twice: what asks for a crowd takes long in many columns.
    """
    users = people * max(1, whole.users // max(1, whole.cohort))
    most = max(_MOST_USERS, whole.users) if people == 1 else 2 * users
    while users <= most:
        yield users
        users *= 2


def _few(facts: PublicFacts, users: int, config: RunConfig) -> PublicFacts:
    """The same facts for fewer users, who hold the same number of samples each."""
    each = 1 if config.privacy.unit == "sample" else facts.max_samples or facts.min_samples
    return PublicFacts(users, each, each, users * each)


def _shrunk(config: RunConfig, users: int, whole: int) -> RunConfig:
    """The configuration with its sizes in the same proportion to fewer users."""
    options = config.strategy
    sizes = {
        name: max(1, round(getattr(options, name) * users / whole))
        for name in _SIZES
        if name in type(options).model_fields and getattr(options, name) is not None
    }
    return config.model_copy(update={"strategy": options.model_copy(update=sizes)}) if sizes else config


def public_sampler(strategy: UserLevelStrategy) -> Sampler | None:
    """Who takes part, where everybody may know; None where that is secret, or not drawn by a sampler."""
    sampler = getattr(strategy.scheme, "sampler", None)
    return sampler if isinstance(sampler, Sampler) and not sampler.secret else None


def edge(problem: Problem) -> float:
    """The largest feature that the instance's loss admits."""
    return _BOUND if isinstance(problem, Linear | Quadratic) else 1.0
