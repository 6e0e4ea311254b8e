"""A strategy as a recipe: its settings, its declarations, and the method that makes its scheme."""

import inspect
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from strategies.core.about import MEANINGS, NOTES, About, Fact
from strategies.core.options import StrategyOptions
from strategies.core.public_facts import Given
from strategies.core.scheme import Scheme
from userdp.accounting import Privacy
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.registry import PROBLEMS

RADIUS = 2.0  # Of the domain of a strategy's example


class Recipe(StrategyOptions):
    """A strategy: one frozen class of settings, with its declarations and the method that makes its scheme.

    ``DPFedSGD(rounds=5)`` is a recipe, ``DPFedSGD(problem, public, privacy, rounds=5)`` the
    `strategies.UserLevelStrategy` that runs it. The docstring of a recipe states its *Formal guarantees*.
    """

    about: ClassVar[About]  # the strategy's declarations; base classes of a family have none

    def __new__(cls, *given: Any, **settings: Any) -> Any:
        """Make a recipe; or, with a problem, public facts and a budget, the strategy that runs it."""
        if not given and "problem" not in settings:
            return super().__new__(cls)
        # The loop imports recipes, so they look it up by name.
        loop = import_module("strategies.core.base").UserLevelStrategy
        of_run = {name: settings.pop(name) for name in signature(loop).parameters if name in settings}
        return loop(cls.parsed(settings), *given, **of_run)

    @abstractmethod
    def scheme(self, given: Given) -> Scheme:
        """Make the scheme, from public facts alone; `BadInput` for a setting that does not suit them."""

    def settled(self, given: Given) -> Self:
        """Return these settings with those that the plan chooses, once: they stay, whatever a preparation finds."""
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        """Refuse a missing or misspelt declaration; the `BadInput` names class, fault and remedy."""
        super().__pydantic_init_subclass__(**more)
        if "about" in vars(cls) and (fault := next(_faults(cls), None)) is not None:
            raise BadInput(f"{cls.__module__}.{cls.__qualname__} {fault}")

    @classmethod
    def parsed(cls, settings: Mapping[str, Any]) -> Self:
        """Make the recipe of these settings. Raises `BadInput`: names the setting, the value and what is allowed."""
        try:
            return cls(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(["strategy", *map(str, first["loc"])])
            known = ", ".join(sorted(cls.model_fields))
            hint = f"; options are {known}" if first["type"] == "extra_forbidden" else ""
            raise BadInput(f"{where} = {first.get('input')!r}: {first['msg']}{hint}") from None


def _faults(recipe: type[Recipe]) -> Iterator[str]:
    about = recipe.about
    if not isinstance(about, About):
        yield f"declares about = {about!r}: make it an About(name=..., ...)"
        return
    if recipe.scheme is Recipe.scheme:
        near = get_close_matches("scheme", vars(recipe), n=1, cutoff=0.7)
        yield "does not define scheme: " + (f"is {near[0]} meant for it?" if near else "add the method")
    if unknown := sorted(set(about.example) - set(recipe.model_fields)):
        yield f"declares an example with {unknown[0]}, which is none of its settings: correct one of them"
    claim = guarantees(recipe)
    if about.promise != "none" and not ("*Claim.*" in claim and "*Assumptions.*" in claim):
        yield (
            "states no guarantee: write *Formal guarantees.* *Claim.* ... *Why.* ... and *Assumptions.* ... into its "
            "docstring, which plans, listings and pages show"
        )


def meanings_of(recipe: type[Recipe]) -> dict[str, str]:
    """Return the meanings of a plan's numbers, by name."""
    return {**MEANINGS, **recipe.about.meanings}


def example_problem(recipe: type[Recipe], shape: Shape) -> Problem:
    """Build the ``example_problem`` that a strategy declares, for data of this shape, by default within `RADIUS`."""
    section, kind = recipe.about.example_problem, PROBLEMS[recipe.about.example_problem["kind"]]
    radius = {"radius": RADIUS} if "radius" in kind.model_fields else {}
    return kind.model_validate({**radius, **section}).build(shape, seed=0)


def notes_of(recipe: type[Recipe]) -> dict[str, Fact]:
    """Return the facts of a strategy's rounds, by name."""
    return {**NOTES, **recipe.about.notes}


def guarantees(recipe: type[Recipe]) -> str:
    """Return the *Formal guarantees* of the strategy's docstring, to the end of their *Assumptions*."""
    text = inspect.getdoc(recipe) or ""
    _, _, after = text.partition("*Formal guarantees.*")
    stated = re.match(r".*?\*Assumptions\.\*.*?(?=\n\n|\Z)", after, flags=re.DOTALL)
    return (stated[0] if stated else after.split("\n\n")[0]).strip()


def check_budget(recipe: Recipe, privacy: Privacy, users: int, seed: int | None) -> None:
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
