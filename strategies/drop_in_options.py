"""The options of strategies for ordinary clients, and the refusals of what is none."""

from collections.abc import Mapping, Sequence
from inspect import signature
from numbers import Integral, Real
from typing import Any

from strategies.clipping.local_options import LocalOptions
from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.public_facts import MOST_USERS
from strategies.core.recipe import Recipe
from userdp.errors import BadInput

BY_CLIENTS = frozenset(LocalOptions.model_fields.keys() - StrategyOptions.model_fields.keys())
"""Options of users' training, which ordinary clients choose themselves."""

_OF_FLOWER = {
    "fraction_train": "give cohort, the number of users of a round",
    "fraction_evaluate": "give held_out, a number of further nodes, or leave it out",
}
"""Options of Flower's FedAvg, with what takes their place."""

AROUND = ("compare_with_initial", "preparation")
"""Options of `Recipe.strategy`, which the wire to ordinary clients refuses."""


def check_options(name: str, within: type[Recipe], wrapped: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse (`BadInput`) strategies ``wrapped`` by the one of that name, and options that the one ``within`` lacks."""
    if wrapped:
        raise BadInput(
            f"{name} takes the place of {type(wrapped[0]).__name__} and wraps no strategy: write "
            f"{name}(users=200, epsilon=8, delta=1e-4, rounds=8), with your numbers"
        )
    if theirs := BY_CLIENTS & options.keys():
        raise BadInput(f"strategy.{min(theirs)} is for the clients to choose, which train as they like: leave it out")
    known = sorted(within.model_fields.keys() - BY_CLIENTS)
    for option in sorted(options.keys() - {*known, *AROUND}):
        of_start = option in signature(UserLevelStrategy.start).parameters
        hint = f"give it to start: strategy.start(..., {option}=...)" if of_start else "leave it out"
        hint = _OF_FLOWER.get(option, hint)
        raise BadInput(f"{option} is no option of {name}: {hint}; options are {', '.join(known)}")


def check_kinds(held_out: object, metrics: object, **patterns: Sequence[str]) -> None:
    """Refuse (`BadInput`) numbers of nodes, ranges of metrics, and patterns of names, of another kind."""
    pairs = list(metrics.values()) if isinstance(metrics, Mapping) else [metrics]
    ranges = (isinstance(pair, Sequence) and [isinstance(end, Real) for end in pair] == [True, True] for pair in pairs)
    if metrics and not all(ranges):
        raise BadInput(
            f"metrics = {metrics!r}: give the public range of each metric, such as metrics={{'accuracy': (0, 1)}}"
        )
    if not isinstance(held_out, Integral) or isinstance(held_out, bool) or int(held_out) > MOST_USERS:
        raise BadInput(f"held_out = {held_out!r}: it is a number of nodes; give a whole number, such as 40")
    for name, given in patterns.items():
        if isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise BadInput(f"{name} = {given!r}: give patterns of names, such as {name}=('0.*',)")
