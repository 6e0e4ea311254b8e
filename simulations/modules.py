"""Torch modules that a configuration can name without any code: multi-layer perceptrons."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING

from userdp.errors import BadInput

if TYPE_CHECKING:
    from torch import nn


def perceptron(columns: int, hidden: Sequence[int], outputs: int) -> "nn.Module":
    """Linear layers with ReLU between them; no hidden layer gives a linear model."""
    from torch import nn  # noqa: PLC0415  (torch is slow to import and most runs do without)

    layers: list[nn.Module] = []
    widths = [columns, *hidden]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def module_factory(module: str | None, columns: int, hidden: Sequence[int], outputs: int) -> Callable[[], "nn.Module"]:
    """The factory that ``module`` ("package.module:function") names, or a perceptron's.

    Raises:
        BadInput: ``module`` cannot be imported.
    """
    if module is None:
        return partial(perceptron, columns, tuple(hidden), outputs)
    home, _, name = module.partition(":")
    try:
        factory: Callable[[], nn.Module] = getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"problem.module = {module!r} cannot be imported ({type(error).__name__}): give 'package.module:function', "
            "a function without arguments that returns a torch module, installed where every node can import it"
        ) from None
    return factory
