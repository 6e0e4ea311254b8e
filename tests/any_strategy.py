"""A small run of any strategy, from what its class declares: so tests know of strategies that nobody named to them."""

from typing import Any

import numpy as np
from helpers import federation_of

from strategies import STRATEGIES
from userdp.data import Federation
from userdp.data.shape import Shape
from userdp.problems import Problem
from userdp.problems.registry import PROBLEMS

SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=10.0, target_range=(-1.0, 1.0))
"""Two features in [-1, 1], and a target there."""


def options_of(name: str) -> dict[str, Any]:
    """Options with which the strategy makes a short run."""
    return dict(STRATEGIES[name].example)


def problem_of(name: str) -> Problem:
    """A problem of two features that the strategy can be run with, with models in [-2, 2]^2."""
    section = dict(STRATEGIES[name].example_problem)
    return PROBLEMS[section["kind"]].model_validate({"radius": 2.0} | section).build(SHAPE, seed=0)


def halves(problem: Problem, users: int = 400) -> Federation:
    """Users of one sample, all of whose features are 0.5, and its target if it has one."""
    return federation_of(np.full((users, 2), 0.5), targets=np.full(users, 0.5) if problem.has_targets else None)
