"""Small instances of a run: the same strategy with the same settings and budget, for as few users as it accepts.

The leakage about one user, compared with the claim, does not grow with n: noise is calibrated to the influence of one
user. So a few users and two columns suffice to attack the strategy, thousands of times.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulations.config.run_config import RunConfig
from simulations.runs.build import make_strategy, public_facts, starting_problem
from strategies.core.about import About
from strategies.core.base import UserLevelStrategy
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.core.recipe import example_problem
from strategies.registry import STRATEGIES
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.separable import Linear, Quadratic
from userdp.sampling.base import Sampler

_BOUND, _RADIUS = 1e3, 1e6  # bound of features far above sensible clips, and of a domain that models do not leave
_NEAR = 1.0  # small bound or radius, for noise that follows from the domain or from the distance of users
_SAMPLES = 1000  # factor on the samples of each user, for noise that follows from the distance of averages over samples
_SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=2.0, target_range=(-1.0, 1.0))
"""Two features in [-1, 1] and a target, for strategies that need a loss of their own."""
CANARIES = 128  # columns of an instance with many canaries: one direction for each canary and one for the crowd
_CROWD = 64  # users of an instance with two columns, enough for users to agree
_HEARD = 16  # users whose single answers the server sees, in each round
_MOST_USERS = 1 << 14
_SIZES = ("cohort", "batch")  # settings that count users and shrink with their number


@dataclass(frozen=True)
class Instance:
    """A run for few users: smaller settings, the loss, public facts, and the strategy planned before its rounds."""

    config: RunConfig
    problem: Problem
    facts: PublicFacts
    template: UserLevelStrategy

    @classmethod
    def all_of(cls, config: RunConfig) -> "tuple[Instance, ...]":
        """Return the smallest instance that the strategy accepts in each scene; it reads no data.

        Strategies calibrate noise to different things, so canaries need different scenes to reach them. BadInput if the
        strategy promises nothing, its own plan cannot be made, or it accepts no small instance.
        """
        seeded = config.model_copy(update={"privacy": config.privacy.model_copy(update={"noise": "seeded"})})
        facts = public_facts(config)
        whole = make_strategy(seeded, starting_problem(config), facts).plan
        if not whole.guarantee.holds:
            raise BadInput(
                f"strategy.kind = {config.strategy.kind!r} promises nothing that could be audited: "
                f"{whole.guarantee}; choose a strategy with a guarantee"
            )
        prepared = "learn" if "preparation_epsilon" in whole.numbers else "none"
        seeded = seeded.model_copy(update={"preparation": prepared})
        found: list[Instance] = []
        reason = BadInput("no user")
        # The loss of the strategy's own example comes last, for strategies that accept no other scene.
        last = Scene((example_problem(STRATEGIES[config.strategy.kind], _SHAPE),), 1)
        for scene in (*_scenes(config.strategy.kind), last):
            if found and scene is last:
                break
            try:
                found.append(cls._smallest(seeded, scene, whole, facts))
            except BadInput as error:
                reason = error
        if not found:
            where = f"strategy.kind = {config.strategy.kind!r} has no small instance to attack"
            if prepared == "learn":
                raise BadInput(
                    f"{where} with a preparation, which its plan has and no loss of such instances takes: audit it "
                    "without, by preparation = 'none' (--set preparation=none)"
                )
            raise BadInput(f"{where}: {reason}")
        return tuple(found)

    @classmethod
    def _smallest(cls, config: RunConfig, scene: "Scene", whole: Plan, facts: PublicFacts) -> "Instance":
        """Return the instance with a scene's first accepted loss and fewest accepted users; BadInput for none."""
        reason = BadInput("no user")
        for problem in scene.losses:
            for users in _populations(whole, scene.people):
                each = (
                    1 if config.privacy.unit == "sample" else (facts.max_samples or facts.min_samples) * scene.samples
                )
                few, shrunk = PublicFacts(users, each, each, users * each), _shrunk(config, users, facts.users)
                try:
                    found = cls(shrunk, problem, few, make_strategy(shrunk, problem, few))
                except BadInput as error:
                    reason = error
                else:
                    if found.template.plan.rounds > 0:
                        return found
        raise reason

    @property
    def plan(self) -> Plan:
        """The plan of the small instance."""
        return self.template.plan

    @property
    def heard(self) -> bool:
        """True if the guarantee is against the server, who then sees the answers of single users."""
        return not self.template.about.server_trusted

    def strategy(self, seed: int) -> UserLevelStrategy:
        """Return the strategy before its first round, with noise of its own.

        Public cohorts are the same in all runs, since an attacker may know them; secret cohorts are drawn anew.
        """
        if public_sampler(self.template) is None:
            return make_strategy(self.config.model_copy(update={"seed": seed}), self.problem, self.facts)
        made = copy.deepcopy(self.template)
        made.noise_seed = seed
        return made


@dataclass(frozen=True)
class Scene:
    """The setting of an instance: losses to try in turn, least users of a cohort, factor on each user's samples."""

    losses: Sequence[Problem]
    people: int
    samples: int = 1


def _scenes(strategy: str) -> Iterator[Scene]:
    """Yield scenes with many canaries and as many other users, if possible, and with as few users as possible.

    Steps on a quadratic loss are as long as the releases. If noise follows from certified bounds, canaries reach those
    of a linear loss at every model. If it follows from the domain, canaries lie beyond it. If it follows from the
    distance of users, users hold many samples, so that canaries can be further away.
    """
    kind = STRATEGIES[strategy]
    first, second = (
        (Quadratic, Linear) if kind.about.needs.startswith(About.model_fields["needs"].default) else (Linear, Quadratic)
    )
    # If users add their own noise against the server, the noise of others hides nobody.
    sizes = [(2, 1)] if kind.about.server_trusted else [(2, _HEARD)]
    if kind.about.server_trusted and not kind.about.compares_users:
        sizes.insert(0, (CANARIES, 2 * CANARIES))
    for columns, people in sizes:
        yield Scene((first(columns, _BOUND, _RADIUS), second(columns, _BOUND, _RADIUS)), people)
    if kind.about.server_trusted:
        for columns, people in sizes:
            yield Scene((Quadratic(columns, _BOUND, _NEAR),), people)
        yield Scene((Linear(2, _NEAR, _RADIUS),), _CROWD, _SAMPLES)


def _populations(whole: Plan, people: int) -> Iterator[int]:
    """Yield numbers of users to try: ``people`` for each cohort in an epoch of the run, twice that, four times that ...

    With many canaries, at most twice: strategies that need a crowd take long in many columns.
    """
    users = people * max(1, whole.users // max(1, whole.cohort))
    most = max(_MOST_USERS, whole.users) if people == 1 else 2 * users
    while users <= most:
        yield users
        users *= 2


def _shrunk(config: RunConfig, users: int, whole: int) -> RunConfig:
    options = config.strategy
    sizes = {
        name: max(1, round(getattr(options, name) * users / whole))
        for name in _SIZES
        if name in type(options).model_fields and getattr(options, name) is not None
    }
    return config.model_copy(update={"strategy": options.model_copy(update=sizes)}) if sizes else config


def public_sampler(strategy: UserLevelStrategy) -> Sampler | None:
    """Return the sampler of public cohorts; None if cohorts are secret or no sampler draws them."""
    sampler = strategy.scheme.sampler
    return sampler if sampler is not None and not sampler.secret else None


def edge(problem: Problem) -> float:
    """Return the largest feature that the instance's loss admits."""
    return float(np.max(problem.high)) if isinstance(problem, Linear | Quadratic) else 1.0
