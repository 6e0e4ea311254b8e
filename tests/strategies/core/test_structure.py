"""How strategies are built: abstract or final, at most two levels, few hooks, and nothing set on the side.

The rules hold for every class that the package holds, also for those to come; small classes that break them show that
each rule is one.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pytest

import strategies
from strategies.clipping.clipped_rounds import ClippedOptions
from strategies.clipping.dp_fed_sgd import DPFedSGD
from strategies.core.base import UserLevelStrategy
from strategies.core.scheme import Scheme, Step
from strategies.registry import STRATEGIES

LEVELS, HOOKS = 2, 10
BEHAVIOUR = (property, cached_property, classmethod, staticmethod)


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


each_strategy = pytest.mark.parametrize("kind", found(UserLevelStrategy), ids=lambda kind: kind.__name__)
each_scheme = pytest.mark.parametrize("kind", found(Scheme), ids=lambda kind: kind.__name__)


def chain(kind: type) -> list[type]:
    """The class and its bases down to `UserLevelStrategy`, mixins included."""
    return kind.__mro__[: kind.__mro__.index(UserLevelStrategy) + 1]


def is_concrete(value: object) -> bool:
    """Whether it is a method or property with a body of its own; plain data is neither."""
    return (inspect.isfunction(value) or isinstance(value, BEHAVIOUR)) and not is_abstract(value)


def is_abstract(value: object) -> bool:
    return bool(getattr(value, "__isabstractmethod__", False))


def redefined(kind: type) -> set[str]:
    """Methods and properties that a class defines though one of its bases does so concretely."""
    parts = [base for base in UserLevelStrategy.__mro__[1:] if base.__module__.partition(".")[0] == strategies.__name__]
    above = [*chain(kind)[1:], *parts]
    return {name for name in vars(kind) for base in above if is_concrete(vars(base).get(name))}


def hooks(kind: type) -> set[str]:
    """Methods that some class of the chain leaves to those below."""
    return {name for base in chain(kind) for name, value in vars(base).items() if is_abstract(value)}


def set_on_self(kind: type) -> set[str]:
    """Attributes of the instance that the class's methods assign or delete, by ``setattr`` or ``__dict__`` too."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.args.args]
    return {name for method in methods for name in assigned(method, method.args.args[0].arg)}


def assigned(method: ast.FunctionDef, instance: str) -> Iterator[str]:
    """What a method assigns to the attributes of its first argument."""

    def is_instance(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == instance

    def is_setter(call: ast.Call) -> bool:
        setters = ("setattr", "delattr", "__setattr__", "__delattr__")
        return ast.unparse(call.func).endswith(setters) and is_instance(call.args[0])

    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and is_instance(node.value):
            if not isinstance(node.ctx, ast.Load) or node.attr == "__dict__":
                yield node.attr
        elif isinstance(node, ast.Call) and is_setter(node):
            yield ast.unparse(node.args[1])


def is_frozen(kind: type) -> bool:
    """Whether the class itself, not a base alone, is declared a frozen dataclass."""
    parameters = vars(kind).get("__dataclass_params__")
    return parameters is not None and parameters.frozen


# --- The rules -------------------------------------------------------------------------------------------------------


def test_the_package_is_searched_to_the_last_strategy():
    assert set(STRATEGIES) <= {getattr(kind, "name", "a base") for kind in found(UserLevelStrategy)}
    assert len(found(Scheme)) > 5


@each_strategy
def test_what_a_base_defines_is_final(kind):
    assert redefined(kind) == set()


@each_strategy
def test_a_strategy_is_at_most_two_levels_below_the_base(kind):
    assert len(chain(kind)) - 1 <= LEVELS


@each_strategy
def test_there_are_at_most_ten_hooks_to_know(kind):
    assert len(hooks(kind)) <= HOOKS


@each_strategy
def test_hooks_set_nothing_on_the_strategy(kind):
    assert set_on_self(kind) == set()


@each_scheme
def test_a_scheme_is_frozen(kind):
    assert is_frozen(kind)


# --- The rules are rules ---------------------------------------------------------------------------------------------


class Proper(UserLevelStrategy):
    """Breaks no rule: hooks are filled in, data are declared, what changes is in the memory."""

    needs: ClassVar[str] = "anything"

    def _ask(self, index):
        self.memory.asked = index

    def _step(self, index, x, gathered):
        local = x
        return Step(local, local)

    @abstractmethod
    def _own(self):
        """A hook of the family."""


class Leaf(Proper):
    """The second level."""

    needs: ClassVar[str] = "nothing"

    def _own(self):
        return self.scheme


@pytest.mark.parametrize("kind", [Proper, Leaf])
def test_a_class_that_keeps_the_rules_passes(kind):
    assert redefined(kind) == set_on_self(kind) == set()
    assert len(chain(kind)) - 1 <= LEVELS
    assert hooks(kind) == {"_make_scheme", "_make_plan", "_ask", "_step", "_own"}


def test_redefining_is_found_whatever_is_redefined_by_whatever():
    class Overrides(Leaf):
        spent_epsilon: ClassVar[float] = 0.0

        def _own(self):
            return None

        @cached_property
        def _default_step(self):
            return 1.0

        def start(self, grid, **more):
            return super().start(grid, **more)

        @abstractmethod
        def _step(self, index, x, gathered):
            """Abstract again."""

    assert redefined(Overrides) == {"spent_epsilon", "_own", "_default_step", "start", "_step"}


def test_redefining_what_a_mixin_defines_and_a_level_too_many_are_found():
    class Mixin:
        def _shared(self):
            return 1

    class Mixed(Proper, Mixin, UserLevelStrategy):
        def _shared(self):
            return 2

    assert redefined(Mixed) == {"_shared"}
    assert len(chain(Mixed)) - 1 == LEVELS + 1


def test_a_hook_too_many_is_found():
    extra = {f"_hook_{index}": abstractmethod(lambda self: None) for index in range(HOOKS - 4)}
    kind = type("ManyHooks", (UserLevelStrategy,), extra)
    assert len(hooks(kind)) == HOOKS
    assert len(hooks(type("OneMore", (Proper, kind), {}))) == HOOKS + 1


def test_whatever_sets_an_attribute_of_the_strategy_is_found():
    class Sets(Leaf):
        def _one(self, pair):
            self.plain = self.other = 1
            self.counted += 1
            self.typed: int = 1
            self.first, [self.second, *self.rest] = pair
            for self.turn in pair:
                pass
            with open(pair) as self.file:
                del self.gone

        def _two(this, name, value):  # noqa: N805
            this.renamed = [value for this.inner in value]
            setattr(this, name, value)
            object.__setattr__(this, "frozen", value)
            this.__dict__["hidden"] = value
            this.memory.fine = value

    assert set_on_self(Sets) == {
        *("plain", "other", "counted", "typed", "first", "second", "rest", "turn", "file", "gone"),
        *("renamed", "inner", "name", "'frozen'", "__dict__"),
    }


def test_a_scheme_that_is_no_frozen_dataclass_of_its_own_is_found():
    class Plain(Scheme):
        extra: int = 0

    @dataclass(frozen=True, kw_only=True)
    class Frozen(Scheme):
        extra: int = 0

    assert not is_frozen(Plain)
    assert is_frozen(Frozen)
    assert is_frozen(Scheme)


# Options -------------------------------------------------------------------------------------------------------


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
