"""Settings of torch modules, and the perceptrons that a configuration can name without any code."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.settings import ProblemSettings

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


class TorchSettings(ProblemSettings):
    """Settings of `userdp.problems.TorchProblem`."""

    kind: Literal["torch"]
    family: ClassVar[str] = "torch"
    certificate: ClassVar[str] = "none"
    summary: ClassVar[str] = "any torch module with a loss"
    module: str | None = Field(
        None, description="'package.module:function' that returns a torch module; a perceptron if not given."
    )
    hidden: list[int] = Field(default_factory=list, description="Widths of the perceptron's hidden layers.")
    outputs: int = Field(1, ge=1, description="Outputs of the perceptron.")
    loss: Literal["cross_entropy", "mse", "bce_with_logits"] = Field(description="Loss of outputs and target.")
    has_targets: bool = Field(True, description="False: features are their own targets (reconstruction).")
    precision: Literal["single", "double"] = Field("single", description="Arithmetic of the module.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        from userdp.problems.torch_module import TorchProblem  # noqa: PLC0415  (torch is slow to import)

        return TorchProblem(
            module_factory(self.module, shape.columns, self.hidden, self.outputs),
            self.loss,
            shape.columns,
            has_targets=self.has_targets,
            seed=seed,
            precision=self.precision,
        )
