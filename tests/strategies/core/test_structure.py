"""The structure of strategies: frozen recipes, schemes that are values, one loop, a core of few floors."""

import ast
import importlib
import inspect
import pkgutil
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import strategies
from strategies.baselines.averaged_clipping.averaged_clipping_restarted import Runs
from strategies.clipping.clipped_rounds import ClippedOptions
from strategies.clipping.dp_fed_sgd import DPFedSGD
from strategies.core.base import UserLevelStrategy
from strategies.core.mean_rounds import MeanRounds
from strategies.core.recipe import Recipe
from strategies.core.scheme import Scheme
from strategies.registry import STRATEGIES
from strategies.robust.row_rounds import RowRounds

LEVELS, FLOORS = 2, 4
BEHAVIOUR = (property, cached_property, classmethod, staticmethod)
OF_MEANS = {
    *("dp_fed_sgd", "dp_fed_avg", "dp_ftrl", "local_dp", "projected_sgd", "sample_clipped_sgd", "poisson_sample_sgd"),
    *("averaged_clipping", "averaged_clipping_restarted", "iterative_mean_sgd", "smoothed_truncation_gd"),
    "vote_descent",
}
OF_ROWS = {"robust_rounds", "outlier_removal", "winsorized_rotation"}
"""Strategies whose rounds are those of `MeanRounds` and `RowRounds`: they have no loop of their own."""


def below(base: type) -> Iterator[type]:
    """All classes of the package below a base."""
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] == strategies.__name__:
            yield kind
        yield from below(kind)


def found(base: type) -> list[type]:
    """All classes of the package below a base, by name, whichever module defines them."""
    for module in pkgutil.walk_packages(strategies.__path__, f"{strategies.__name__}."):
        importlib.import_module(module.name)
    return sorted(set(below(base)), key=lambda kind: kind.__qualname__)


each_scheme = pytest.mark.parametrize("kind", found(Scheme), ids=lambda kind: kind.__name__)
each_recipe = pytest.mark.parametrize("kind", found(Recipe), ids=lambda kind: kind.__name__)


def is_concrete(value: object) -> bool:
    """True for a method or property that has a body; plain data is neither."""
    behaves = inspect.isfunction(value) or isinstance(value, BEHAVIOUR)
    return behaves and not getattr(value, "__isabstractmethod__", False)


def redefined(kind: type, base: type) -> set[str]:
    """Methods and properties that a class defines though one of its bases up to ``base`` does so concretely."""
    chain = kind.__mro__[1 : kind.__mro__.index(base) + 1]
    return {
        name
        for name in vars(kind)
        if not name.startswith("__") and any(is_concrete(vars(one).get(name)) for one in chain)
    }


def is_frozen(kind: type) -> bool:
    """True if the class itself, not a base alone, is declared a frozen dataclass."""
    parameters = vars(kind).get("__dataclass_params__")
    return parameters is not None and parameters.frozen


def example(name: str) -> UserLevelStrategy:
    from simulations.testing.strategy_contract import Small

    return Small(STRATEGIES[name]).strategy()


# --- The rules -------------------------------------------------------------------------------------------------------


def test_the_package_is_searched_to_the_last_strategy():
    assert {*STRATEGIES, *STRATEGIES.unlisted} == {kind.about.name for kind in found(Recipe)}
    assert len(found(Scheme)) > 5


def test_there_is_one_loop_and_nothing_below_it():
    assert UserLevelStrategy.__final__
    assert found(UserLevelStrategy) == []


@each_recipe
def test_a_recipe_is_frozen_and_redefines_no_method_of_a_base_but_what_it_has_to(kind):
    assert kind.model_config["frozen"]
    assert redefined(kind, Recipe) <= {"found", "scheme", "settled"}  # which are open in the bases that name them


@each_scheme
def test_what_a_base_of_a_scheme_defines_is_final(kind):
    assert redefined(kind, Scheme) == set()


@each_scheme
def test_a_scheme_is_frozen_and_at_most_two_levels_below_the_base(kind):
    assert is_frozen(kind)
    assert len([one for one in kind.__mro__ if issubclass(one, Scheme)]) - 1 <= LEVELS


@pytest.mark.parametrize(("names", "kinds"), [(OF_MEANS, (MeanRounds, Runs)), (OF_ROWS, (RowRounds,))])
def test_noisy_means_and_robust_means_have_no_loop_of_their_own(names, kinds):
    for name in names:
        assert type(example(name).scheme) in kinds, name


def floors(folder: Path) -> dict[str, int]:
    """Module -> how many modules of the folder stand one upon the other below it, itself included."""
    package = ".".join(folder.relative_to(folder.parents[1]).parts)
    imported = {}
    for file in folder.glob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        imported[file.stem] = {name.rpartition(".")[2] for name in names if name.startswith(f"{package}.")}

    def floor(module: str) -> int:
        return 1 + max(map(floor, imported[module]), default=0)

    return {module: floor(module) for module in imported}


def test_the_loop_stands_on_at_most_three_floors_and_recipes_on_it():
    core = floors(Path(strategies.__file__).parent / "core")
    assert core.pop("recipe") == core["base"] + 1
    assert max(core.values()) <= FLOORS


# --- The rules are rules ---------------------------------------------------------------------------------------------


def test_redefining_is_found_whatever_is_redefined_by_whatever():
    class Proper(Scheme):
        def ask(self, index, memory):
            return None

        @property
        def told(self):
            return 1

        @abstractmethod
        def own(self):
            """A hook."""

    class Overrides(Proper):
        told = 2

        def own(self):
            return None

        def ask(self, index, memory):
            return memory

        @cached_property
        def checked_start(self):
            return None

    assert redefined(Proper, Scheme) == set()
    assert redefined(Overrides, Scheme) == {"told", "ask", "checked_start"}


def test_a_scheme_that_is_no_frozen_dataclass_of_its_own_is_found():
    class Plain(Scheme):
        extra: int = 0

    @dataclass(frozen=True, kw_only=True)
    class Frozen(Scheme):
        extra: int = 0

    assert not is_frozen(Plain)
    assert is_frozen(Frozen)
    assert is_frozen(Scheme)


def test_an_option_of_a_base_is_not_shadowed_in_silence():
    assert DPFedSGD.model_fields["clip_norm"].description != ClippedOptions.model_fields["clip_norm"].description
    with pytest.raises(TypeError, match=r"declares \['rounds'\] of its bases anew and restates \[\]"):

        class Shadowing(ClippedOptions):
            rounds: int = 3

    with pytest.raises(TypeError, match=r"restates \['clip'\]"):

        class Misspelt(ClippedOptions, restates={"clip"}):
            clip_norm: float = 2.0

    class Telling(ClippedOptions, restates={"rounds"}):
        rounds: int = 3

    assert Telling().rounds == 3
