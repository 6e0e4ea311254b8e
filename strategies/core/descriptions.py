"""What follows from a strategy's About: the problem of its small run, and what the numbers of its plans mean."""

from strategies.core.plan import Plan
from strategies.core.recipe import Recipe, meanings_of
from userdp.data.shape import Shape
from userdp.problems import Problem
from userdp.problems.registry import PROBLEMS

RADIUS = 2.0


def example_problem(kind: type[Recipe], shape: Shape) -> Problem:
    """The class's ``example_problem`` for data of this shape, with models within `RADIUS`, where it says no other."""
    section = {"radius": RADIUS, **kind.about.example_problem}
    return PROBLEMS[section["kind"]].model_validate(section).build(shape, seed=0)


def explained(recipe: type[Recipe]) -> dict[str, str]:
    """Name of each number that plans of a strategy show -> what it means."""
    return {**meanings_of(recipe), **Plan.meanings}
