"""Settings of torch modules, and the perceptrons that a configuration can name without any code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field

from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.kinds import imported
from userdp.problems.base import Problem
from userdp.problems.settings import ProblemSettings

if TYPE_CHECKING:
    from torch import nn

LOSSES = ("cross_entropy", "mse", "bce_with_logits")
_TARGETS = {"cross_entropy": "classes 0, 1, 2 and so on", "bce_with_logits": "0 and 1, or shares between"}
_MOST_CLASSES = {"mse": 0, "bce_with_logits": 2}  # No limit for other losses.


def perceptron(columns: int, hidden: Sequence[int], outputs: int) -> "nn.Module":
    """Make linear layers with ReLU between them; no hidden layer gives a linear model."""
    from torch import nn  # noqa: PLC0415  (torch is slow to import and most runs do without)

    layers: list[nn.Module] = []
    widths = [columns, *hidden]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


@dataclass(frozen=True)
class Named:
    """A function by its place, imported on first use, so that it travels to other processes as text.

    ``field`` of the configuration names it. ``place`` is "package.module:function", or "file.py:function" with the
    file's absolute path.
    """

    field: str
    place: str

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.found(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place alone: other processes import the function themselves."""
        return type(self), (self.field, self.place)

    @cached_property
    def found(self) -> Callable[..., Any]:
        """The function; `BadInput` if the file, module or function does not exist, or importing it fails."""
        told = f"problem.{self.field} = {self.place!r}"
        function = imported(self.place, told)
        if not callable(function):
            raise BadInput(f"{told} is of type {type(function).__name__}: name a function or a class")
        return cast("Callable[..., Any]", function)


class TorchSettings(ProblemSettings):
    """Settings of `userdp.problems.TorchProblem`."""

    kind: Literal["torch"]
    family: ClassVar[str] = "torch"
    certificate: ClassVar[str] = "none"
    summary: ClassVar[str] = "any torch module with a loss"
    code_fields: ClassVar[tuple[str, ...]] = ("module", "loss", "metrics")
    most_classes: ClassVar[int | None] = None
    module: str | None = None
    """'file.py:function' beside the configuration, or 'package.module:function'; it takes no arguments and returns a
    torch module. A perceptron if not given."""
    hidden: list[int] = Field(default_factory=list, description="Widths of the perceptron's hidden layers.")
    outputs: int | None = Field(None, ge=1)
    """Outputs of the perceptron; if not given, one for each of data.target_levels, or 1."""
    loss: str
    """The loss: 'cross_entropy', 'mse', 'bce_with_logits', or a function named like module, from outputs and targets to
    one loss a sample (for sequences: a step)."""
    metrics: dict[str, str] = Field(default_factory=dict)
    """Name = a function named like module, from outputs and targets to one number a prediction."""
    has_targets: bool = Field(True, description="False: features are their own targets (reconstruction).")
    input_shape: list[int] | None = None
    """The shape of a sample's columns, such as [1, 28, 28]; a row if not given."""
    precision: Literal["single", "double"] = Field("single", description="Arithmetic of the module.")
    execution: Literal["auto", "loop", "grouped"] = "auto"
    """Users one after the other, several at once, or the faster way, measured at the start."""
    kernels: Literal["own", "torch"] = "own"
    """Layers that compute gradients: 'own' may replace embedding, GRU, LSTM and attention layers by this package's,
    which give the same gradients to rounding, faster; 'torch' computes the module as it is. Torch alone cannot compute
    GRU and LSTM layers for several users at once: execution = 'auto' then computes users one after the other, and
    'grouped' is refused. With execution = 'loop' layers are always torch's."""
    memory: int = Field(256, ge=1, description="Mebibytes that gradients may take at once.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        if shape.scaled_target and self.has_targets and self.loss in _TARGETS:
            raise BadInput(
                f"data.target_range scales the target to [-1, 1], and problem.loss = {self.loss!r} needs "
                f"{_TARGETS[self.loss]}: leave data.target_range out"
            )
        if self.has_targets:
            self._check_classes(shape.classes, _MOST_CLASSES.get(self.loss), f"problem.loss = {self.loss!r}")
        from userdp.neural.problem import TorchProblem  # noqa: PLC0415  (torch is slow to import)

        return TorchProblem(
            self._factory(shape),
            self.loss if self.loss in LOSSES else self._named("loss", self.loss),  # type: ignore[arg-type]
            shape.columns,
            has_targets=self.has_targets,
            seed=seed,
            precision=self.precision,
            levels=shape.code_levels if shape.levels is None else (shape.levels,),
            sequence=shape.sequence,
            input_shape=self.input_shape,
            metrics={name: self._named("metrics", place) for name, place in self.metrics.items()},
            execution=self.execution,
            kernels=self.kernels,
            memory=self.memory,
        )

    def _factory(self, shape: Shape) -> "Callable[[], nn.Module]":
        """Return the module's factory; `BadInput` refuses a perceptron for samples that are codes."""
        if self.module is not None:
            return self._named("module", self.module)
        if shape.sequence is not None or shape.levels is not None or shape.code_levels is not None:
            raise BadInput(
                "problem.module is missing: samples are codes, which a perceptron of numbers cannot read; give "
                "'file.py:function', whose module begins with torch.nn.Embedding"
            )
        return partial(perceptron, shape.columns, tuple(self.hidden), self._outputs(shape))

    def _outputs(self, shape: Shape) -> int:
        classes = shape.classes if self.loss == "cross_entropy" and self.has_targets else None
        if self.outputs is None:
            return classes or 1
        if classes not in (None, self.outputs):
            raise BadInput(
                f"problem.outputs = {self.outputs}, but data.target_levels lists {classes} classes, and each needs an "
                "output: leave problem.outputs out"
            )
        return self.outputs

    def _named(self, field: str, place: str) -> Named:
        named = Named(field, place)
        _ = named.found  # refuse a missing function now rather than during a run
        return named
