"""Facts that follow from a strategy's `About`: the problem of its small run, and the meanings of its plans' numbers."""

from strategies.core.plan import Plan
from strategies.core.recipe import Recipe, meanings_of
from userdp.data.shape import Shape
from userdp.problems import Problem
from userdp.problems.registry import PROBLEMS

RADIUS = 2.0


def example_problem(kind: type[Recipe], shape: Shape) -> Problem:
    """Build the ``example_problem`` that a strategy declares, for data of this shape, by default within `RADIUS`."""
    section = {"radius": RADIUS, **kind.about.example_problem}
    return PROBLEMS[section["kind"]].model_validate(section).build(shape, seed=0)


def explained(recipe: type[Recipe]) -> dict[str, str]:
    """Return the meaning of each number that plans of a strategy show, by name."""
    return {**meanings_of(recipe), **Plan.meanings}
