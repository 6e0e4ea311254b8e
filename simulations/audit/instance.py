"""A small instance of a run: the same strategy with the same settings and budget, for as few people as it accepts.

What a strategy leaks of one user against what it claims does not grow with n: noise is calibrated to what one user can
move. So a few users and two columns are enough to attack it, thousands of times.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulations.config.run_config import RunConfig
from simulations.runs.build import make_strategy, public_facts, starting_problem
from strategies.core.about import About
from strategies.core.base import UserLevelStrategy
from strategies.core.descriptions import example_problem
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.registry import STRATEGIES
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.masking.sums import LEAST_NODES
from userdp.problems.base import Problem
from userdp.problems.linear import Linear
from userdp.problems.separable import Quadratic
from userdp.sampling.base import Sampler

_BOUND, _RADIUS = 1e3, 1e6
"""Of the users' features, far beyond any sensible clip, and of a domain that models do not leave."""

_NEAR = 1.0
"""The same where noise follows from them: from a domain beyond which users lie, or from how far users are apart."""

_SAMPLES = 1000
"""Times as many of each user, where noise follows from how far averages over samples are apart."""

_SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=2.0, target_range=(-1.0, 1.0))
"""Two features in [-1, 1], and a target there, for strategies that need a loss of their own."""

CANARIES = 128
"""Columns, one for each canary of a run and one for the crowd, where each can pull in a direction of its own."""

_CROWD = 64
"""Users in two columns: enough to agree on something."""

_HEARD = 16
"""Users whom the server hears one by one: as many answers in each round."""

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
        """The first of `all_of`."""
        return cls.all_of(config)[0]

    @classmethod
    def all_of(cls, config: RunConfig) -> "tuple[Instance, ...]":
        """Instances worth attacking: the smallest that the strategy accepts in each scene; reads no data.

        What noise follows from differs between strategies, and with it where canaries can reach what it is made for.

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
        found: list[Instance] = []
        reason = BadInput("no user")
        for scene in (*_scenes(config.strategy.kind), _last_scene(config.strategy.kind)):
            if found and scene.last:
                break
            try:
                found.append(cls._smallest(seeded, scene, whole, facts))
            except BadInput as error:
                reason = error
        if not found:
            raise BadInput(f"strategy.kind = {config.strategy.kind!r} has no small instance to attack: {reason}")
        return tuple(found)

    @classmethod
    def _smallest(cls, config: RunConfig, scene: "Scene", whole: Plan, facts: PublicFacts) -> "Instance":
        """With the first loss of a scene, and the fewest users, that the strategy accepts.

        Raises:
            BadInput: it accepts none.
        """
        reason = BadInput("no user")
        for problem in scene.losses:
            for users in _populations(whole, scene.people):
                few = _few(facts, users, config, scene.samples)
                try:
                    found = cls._planned(_shrunk(config, users, facts.users), problem, few)
                except BadInput as error:
                    reason = error
                else:
                    if found.template.plan.rounds > 0:
                        return found
        raise reason

    @classmethod
    def _planned(cls, config: RunConfig, problem: Problem, facts: PublicFacts) -> "Instance":
        return cls(config, problem, facts, make_strategy(config, problem, facts))

    @property
    def plan(self) -> Plan:
        """Of the small instance."""
        return self.template.plan

    @property
    def heard(self) -> bool:
        """Whether users are protected from the server, who then hears each of them by itself."""
        return not self.template.about.server_trusted

    @property
    def least_nodes(self) -> int:
        """The fewest nodes that may hold the users of a round."""
        return LEAST_NODES if self.template.privacy.trust == "sum" else 1

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
        made.noise_seed = seed
        return made


@dataclass(frozen=True)
class Scene:
    """What an instance may be like.

    Attributes:
        losses: to try in turn.
        people: users in each cohort, at least.
        samples: times as many of each user as the configuration says.
        last: only if there is nothing else.
    """

    losses: Sequence[Problem]
    people: int
    samples: int = 1
    last: bool = False


def _scenes(strategy: str) -> Iterator[Scene]:
    """Scenes to try: with canaries and as many others, where that is possible, and with as few users as there can be.

    Steps on a quadratic loss are as long as what is released. Where noise follows from certified bounds, those of a
    linear loss are what a canary has at every model; where it follows from the domain, canaries lie beyond it; and
    where it follows from how far users are apart, users hold many samples, so that canaries can be further away.
    """
    kind = STRATEGIES[strategy]
    first, second = (
        (Quadratic, Linear) if kind.about.needs.startswith(About.model_fields["needs"].default) else (Linear, Quadratic)
    )
    # Where users add their own noise, that of others hides nobody from the server, whom they are protected from.
    sizes = [(2, 1)] if kind.about.server_trusted else [(2, _HEARD)]
    if kind.about.server_trusted and not kind.about.compares_users:
        sizes.insert(0, (CANARIES, 2 * CANARIES))
    for columns, people in sizes:
        yield Scene((first(columns, _BOUND, _RADIUS), second(columns, _BOUND, _RADIUS)), people)
    if kind.about.server_trusted:
        for columns, people in sizes:
            yield Scene((Quadratic(columns, _BOUND, _NEAR),), people)
        yield Scene((Linear(2, _NEAR, _RADIUS),), _CROWD, _SAMPLES)


def _last_scene(strategy: str) -> Scene:
    """The loss that the strategy's own example has."""
    return Scene((example_problem(STRATEGIES[strategy], _SHAPE),), 1, last=True)


def _populations(whole: Plan, people: int) -> Iterator[int]:
    """Numbers of users to try: ``people`` for each cohort in an epoch of the run, and twice, four times ... that.

    Where many would be canaries, no more than twice: what asks for a crowd takes long in many columns.
    """
    users = people * max(1, whole.users // max(1, whole.cohort))
    most = max(_MOST_USERS, whole.users) if people == 1 else 2 * users
    while users <= most:
        yield users
        users *= 2


def _few(facts: PublicFacts, users: int, config: RunConfig, samples: int) -> PublicFacts:
    """The same facts for fewer users, who hold as many times the same number of samples each."""
    each = 1 if config.privacy.unit == "sample" else (facts.max_samples or facts.min_samples) * samples
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
    return float(np.max(problem.high)) if isinstance(problem, Linear | Quadratic) else 1.0
