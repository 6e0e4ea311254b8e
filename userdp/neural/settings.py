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
from userdp.named import OBJECT, is_object, keep_object
from userdp.problems.base import Problem
from userdp.problems.settings import ProblemSettings
from userdp.settings import Section

if TYPE_CHECKING:
    from torch import nn

LOSSES = ("cross_entropy", "mse", "bce_with_logits")
_TARGETS = {"cross_entropy": "classes 0, 1, 2 and so on", "bce_with_logits": "0 and 1, or shares between"}
_HUB = "hf:"
_FEW = 2  # Samples of a made-up user of a language model, which takes long for each.
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
        """Pickle the place alone, for other processes to import the function themselves; an object goes with it."""
        if is_object(self.place):
            return _with_object, (self.field, self.place, self.found)
        return type(self), (self.field, self.place)

    @cached_property
    def found(self) -> Callable[..., Any]:
        """The function; `BadInput` if the file, module or function does not exist, or importing it fails."""
        told = f"problem.{self.field} = {self.place!r}"
        function = imported(self.place, told)
        if not callable(function):
            raise BadInput(f"{told} is of type {type(function).__name__}: name a function or a class")
        return cast("Callable[..., Any]", function)


def _with_object(field: str, place: str, value: object) -> Named:
    digest, _, name = place.removeprefix(OBJECT).partition(":")
    return Named(field, keep_object(value, name, digest))


class AdapterSettings(Section):
    """A low-rank adapter of a language model: it is trained and sent, and the model itself stays as it is."""

    kind: Literal["lora"]
    rank: int = Field(8, ge=1, description="Columns of each factor of the adapter.")
    alpha: float = Field(16.0, gt=0, description="The product of the factors counts alpha / rank times.")
    targets: list[str] | None = Field(None, min_length=1)
    """Names of the layers that get one, such as ['q_proj', 'v_proj']; those that peft knows for the model if not
    given."""


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
    torch module. In Python also a module, or that function. A perceptron if not given."""
    model: str | None = None
    """'hf:FOLDER', relative to the configuration, or 'hf:OWNER/NAME' on the Hugging Face hub: a language model in place
    of a module, of safetensors files and without code. It predicts the next token of sequences, or a target's class."""
    adapter: AdapterSettings | None = Field(None, description="What of the model is trained; all of it if not given.")
    pretrained: bool = Field(True, description="False: only the model's architecture is read, and weights are drawn.")
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
    precision: Literal["single", "double", "bf16"] = "single"
    """Arithmetic of the module. bf16, for problem.model: weights that are not trained are bfloat16, and so are most
    products; what is trained is float32, as are its gradients' sums, clips and noise."""
    execution: Literal["auto", "loop", "grouped"] = "auto"
    """Users one after the other, several at once, or the faster way, measured at the start."""
    kernels: Literal["own", "torch"] = "own"
    """Layers that compute gradients: 'own' may replace GRU, LSTM and attention layers by this package's, which give the
    same gradients to rounding, faster; 'torch' computes the module as it is. Torch alone cannot compute
    GRU and LSTM layers for several users at once: execution = 'auto' then computes users one after the other, and
    'grouped' is refused. With execution = 'loop' layers are always torch's."""
    memory: int = Field(256, ge=1, description="Mebibytes that gradients may take at once.")

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.has_targets and self.loss == "bce_with_logits" else None

    def _make(self, shape: Shape, seed: int) -> Problem:
        if shape.scaled_target and self.has_targets and self.loss in _TARGETS:
            raise BadInput(
                f"data.target_range scales the target to [-1, 1], and problem.loss = {self.loss!r} needs "
                f"{_TARGETS[self.loss]}: leave data.target_range out"
            )
        if self.has_targets:
            self._check_classes(shape.classes, _MOST_CLASSES.get(self.loss), f"problem.loss = {self.loss!r}")
        from userdp.neural.problem import TorchProblem  # noqa: PLC0415  (torch is slow to import)

        language = self.model is not None
        return TorchProblem(
            self._factory(shape),
            self.loss if self.loss in LOSSES else self._named("loss", self.loss),  # type: ignore[arg-type]
            shape.columns,
            has_targets=self.has_targets,
            seed=seed,
            precision="single" if self.precision == "bf16" else self.precision,
            levels=shape.code_levels if shape.levels is None else (shape.levels,),
            sequence=shape.sequence,
            input_shape=self.input_shape,
            metrics={name: self._named("metrics", place) for name, place in self.metrics.items()},
            execution=self.execution,
            kernels="torch" if language else self.kernels,
            typical_samples=_FEW if language else 32,
            memory=self.memory,
        )

    def _factory(self, shape: Shape) -> "Callable[[], nn.Module]":
        """Return the module's factory; `BadInput` refuses a perceptron for samples that are codes."""
        if self.model is not None:
            return self._language(shape, self.model)
        if self.adapter is not None or not self.pretrained or self.precision == "bf16":
            field = "adapter" if self.adapter else "precision = 'bf16'" if self.pretrained else "pretrained = false"
            raise BadInput(f"problem.{field} is for language models: name one as problem.model = 'hf:FOLDER'")
        if self.module is not None:
            return self._named("module", self.module).found
        if shape.sequence is not None or shape.levels is not None or shape.code_levels is not None:
            raise BadInput(
                "problem.module is missing: samples are codes, which a perceptron of numbers cannot read; give "
                "'file.py:function', whose module begins with torch.nn.Embedding"
            )
        return partial(perceptron, shape.columns, tuple(self.hidden), self._outputs(shape))

    def _language(self, shape: Shape, model: str) -> "Callable[[], nn.Module]":
        if self.module is not None or self.hidden:
            raise BadInput("problem.model and problem.module (or hidden) both make the module: leave one out")
        if not model.startswith(_HUB):
            raise BadInput(f"problem.model = {model!r}: write 'hf:FOLDER', or 'hf:OWNER/NAME' of the Hugging Face hub")
        levels = shape.code_levels if shape.sequence is None else shape.sequence.levels
        if levels is None or self.loss != "cross_entropy" or len({*levels}) != 1 or (shape.sequence and levels[1:]):
            raise BadInput(
                "problem.model reads one column of text and predicts its next token, or a target's class: give "
                "data.sequence with a tokenizer, and problem.loss = 'cross_entropy'"
            )
        from userdp.neural.language import Adapter, Language  # noqa: PLC0415  (torch is slow to import)

        adapter = None
        if self.adapter is not None:
            targets = None if self.adapter.targets is None else tuple(self.adapter.targets)
            adapter = Adapter(self.adapter.rank, self.adapter.alpha, targets)
        place, classes = model.removeprefix(_HUB), None if shape.sequence else shape.classes
        tokens = levels[0] - (shape.sequence is None)  # rows have a further code, for padding
        steps = shape.sequence.steps if shape.sequence else shape.columns
        return Language(place, tokens, steps, classes, adapter, self.pretrained, self.precision == "bf16")

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
