"""The problem of a strategy's small run, from what its class declares."""

from strategies.core.base import UserLevelStrategy
from userdp.data.shape import Shape
from userdp.problems import Problem
from userdp.problems.registry import PROBLEMS

RADIUS = 2.0


def example_problem(kind: type[UserLevelStrategy], shape: Shape) -> Problem:
    """The class's ``example_problem`` for data of this shape, with models within `RADIUS`, where it says no other."""
    section = {"radius": RADIUS, **kind.about.example_problem}
    return PROBLEMS[section["kind"]].model_validate(section).build(shape, seed=0)
