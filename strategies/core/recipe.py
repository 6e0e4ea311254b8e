"""A strategy as a recipe: its settings, its declarations, and the method that makes its scheme."""

import inspect
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from strategies.core.about import MEANINGS, NOTES, About, Fact
from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.program import Preparation
from strategies.core.public_facts import Given, PublicFacts
from strategies.core.scheme import AnyRecipe, Scheme
from strategies.wire.wire import Wire
from userdp.accounting import Privacy
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.registry import PROBLEMS

RADIUS = 2.0  # Of the domain of a strategy's example


class Recipe(StrategyOptions):
    """A strategy: one frozen class of settings, with its declarations and the method that makes its scheme.

    ``DPFedSGD(rounds=5)`` is a recipe, ``DPFedSGD(rounds=5).strategy(problem, public, privacy)`` the Flower strategy
    that runs it. The docstring of a recipe states its *Formal guarantees*. Raises `BadInput`: names the setting, the
    value and what is allowed.
    """

    about: ClassVar[About]  # the strategy's declarations; base classes of a family have none

    @abstractmethod
    def scheme(self, given: Given) -> Scheme:
        """Make the scheme, from public facts alone; `BadInput` for a setting that does not suit them."""

    def settled(self, given: Given) -> Self:
        """Return these settings with those that the plan chooses, once: they stay, whatever a preparation finds."""
        return self

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(["strategy", *map(str, first["loc"])])
            known = ", ".join(sorted(type(self).model_fields))
            hint = f"; options are {known}" if first["type"] == "extra_forbidden" else ""
            raise BadInput(f"{where} = {first.get('input')!r}: {first['msg']}{hint}") from None

    # A file that holds a recipe as a section words the faults of all sections itself.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def strategy(
        self,
        problem: Problem,
        public: PublicFacts,
        privacy: Privacy,
        *,
        seed: int | None = None,
        wire: Wire | None = None,
        compare_with_initial: bool = False,
        preparation: type[Preparation] | None = None,
        held_out: int = 0,
        choose_best: bool = False,
    ) -> UserLevelStrategy:
        """Plan these settings, and return the Flower strategy that runs the plan.

        Args:
            problem: the loss to minimise.
            public: public facts about the users.
            privacy: the budget.
            seed: of sampling and of seeded noise, which whoever knows it can undo; the operating system's, secret, if
                None.
            wire: how models and answers travel; to nodes that run `client_app` if not given.
            compare_with_initial: end with a `LastComparison`, for part of the budget.
            preparation: the class of a `Preparation` to begin with, for part of the budget; a recipe with
                `PreparedOptions` then works in the coordinates, and with the clip, that it finds.
            held_out: users n, n + 1, ... who evaluate models privately, and train none; see `Testers`.
            choose_best: end once they find models worse than the best by more than noise, and release that.

        Raises `BadInput`: the plan cannot be made; before any data is seen.
        """
        return UserLevelStrategy(
            self,
            problem,
            public,
            privacy,
            seed=seed,
            wire=wire or Wire(),
            compare_with_initial=compare_with_initial,
            preparation=preparation,
            held_out=held_out,
            choose_best=choose_best,
        )

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        """Refuse a missing or misspelt declaration; the `BadInput` names class, fault and remedy."""
        super().__pydantic_init_subclass__(**more)
        if "about" in vars(cls) and (fault := next(_faults(cls), None)) is not None:
            raise BadInput(f"{cls.__module__}.{cls.__qualname__} {fault}")


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


def meanings_of(recipe: type[AnyRecipe]) -> dict[str, str]:
    """Return the meanings of a plan's numbers, by name."""
    return {**MEANINGS, **recipe.about.meanings}


def example_problem(recipe: type[Recipe], shape: Shape) -> Problem:
    """Build the ``example_problem`` that a strategy declares, for data of this shape, by default within `RADIUS`."""
    section, kind = recipe.about.example_problem, PROBLEMS[recipe.about.example_problem["kind"]]
    radius = {"radius": RADIUS} if "radius" in kind.model_fields else {}
    fitting = replace(shape, has_target=shape.has_target and kind.family != "separable")
    return kind.model_validate({**radius, **section}).build(fitting, seed=0)


def notes_of(recipe: type[AnyRecipe]) -> dict[str, Fact]:
    """Return the facts of a strategy's rounds, by name."""
    return {**NOTES, **recipe.about.notes}


def guarantees(recipe: type[Recipe]) -> str:
    """Return the *Formal guarantees* of the strategy's docstring, to the end of their *Assumptions*."""
    text = inspect.getdoc(recipe) or ""
    _, _, after = text.partition("*Formal guarantees.*")
    stated = re.match(r".*?\*Assumptions\.\*.*?(?=\n\n|\Z)", after, flags=re.DOTALL)
    return (stated[0] if stated else after.split("\n\n")[0]).strip()
