"""Any torch module with a loss: no certificate, so only strategies that need none accept it."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.arrays.sparse_rows import AnyRows, dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Sequence as Steps
from userdp.errors import BadInput
from userdp.neural.chance import own_randomness
from userdp.neural.devices import DEVICES
from userdp.neural.engine import Engine
from userdp.neural.habits import PROCESSOR
from userdp.neural.kernels.layers import LAYERS, Kernels
from userdp.neural.losses import CLASSES, LossName, SampleLoss, constant_outputs, loss_of, measures, predictions
from userdp.neural.model import Model
from userdp.neural.parameters import read_state
from userdp.neural.samples import Rows as SampleRows
from userdp.neural.samples import Samples, Windows, shape_of
from userdp.neural.shared import SharedModule
from userdp.neural.tuner import Choice, Execution
from userdp.nodes.local_training import LocalTraining
from userdp.problems.base import Box, Certificate, Device, Problem
from userdp.problems.bounds import count
from userdp.problems.segments import user_averages, user_shares

Metric = Callable[[Tensor, Tensor], Tensor]  # Outputs, targets of the predictions -> one number each.


class TorchProblem(Problem):
    """The loss of a torch module as a function of its trainable parameters, flattened in the module's order.

    Args:
        module: from samples to outputs, or a function without arguments that makes it. It is copied, and gets (N,
            columns) numbers; (N, *input_shape); (N, columns) whole numbers for codes; or the tensors of
            `userdp.neural.samples.Windows` for sequences.
        loss: "cross_entropy" (targets are classes 0..C-1), "mse" (the mean over outputs), "bce_with_logits" (targets in
            [0, 1]), or a callable from (outputs, targets) to (N,) losses, for sequences (N, L).
        columns: feature columns of a sample; ``sequence`` determines its own.
        has_targets: False for reconstruction: the features are their own targets.
        seed: of the initial parameters, and of random numbers that the module draws.
        precision: "single" computes in float32, so results depend on how users are grouped in blocks to about 1e-6
            relative; "double" to 1e-9 at about twice the time.
        levels: the number of codes of each column, if columns are codes.
        sequence: steps and codes, if samples are windows of a sequence.
        input_shape: the shape of a sample's columns.
        metrics: further metrics by name.
        execution: "loop" computes one user after the other, "grouped" several at once, "auto" the faster way on made-up
            users of ``typical_samples`` samples. A module that draws random numbers, or mixes samples, needs the loop.
        kernels: "own" computes nn.GRU, nn.LSTM and nn.MultiheadAttention by `userdp.neural.kernels`, if that gives the
            module's gradients and, with "auto", is faster; "torch" computes the module as it is by
            torch.func, which computes nn.GRU, nn.LSTM and nn.RNN for one user at a time only.
        memory: mebibytes that gradients may take at once.
        device: "cpu", "cuda" (an NVIDIA GPU), or "auto": a GPU if the computing process finds one. A GPU gives the
            processor's numbers to about 1e-4 in float32, and repeats itself to rounding, since some of its sums have no
            fixed order. Your own module and loss must make their tensors on the device of their inputs; metrics get
            theirs on the processor.

    Users train in the mode in which the factory leaves each layer: dropout draws from each user's and model's own
    random numbers, and batch normalisation keeps the factory's statistics. Losses, metrics and predictions are computed
    in evaluation mode. Large tables that are only looked up have sparse gradients (`userdp.neural.look_ups`).
    Parameters, buffers and attributes are the same before each user as before the first one; a module that needs to
    carry something on is refused before any data are read.

    Formal guarantees:
        Nothing is proven of the loss: the certificate is empty, the domain the whole space. Privacy must come from
        clipping rows. Clipping needs this, and it holds: unit, a user; a row (a gradient, an update) is a function of
        ``seed``, the model and that user's samples alone, up to rounding, for all data of other users and even if their
        computations fail; so replacing one user moves a sum of rows clipped at C by at most 2C, adding or removing one
        by C. The coins of dropout are public and no part of a mechanism's noise: the clip bounds a row for all coins.
        Proof and assumptions: `userdp.neural.isolation`. The caller clips data: features need only be finite.

    Raises `BadInput` for unknown settings, no trainable parameter, outputs that do not fit the loss, or a module that
    would carry one user's data to the next.
    """

    name = "torch"
    summary = "any torch module with a loss; no certificate"
    fixed_order = True
    node_bytes = 1

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        loss: LossName | SampleLoss,
        columns: int = 1,
        *,
        has_targets: bool = True,
        seed: int = 0,
        precision: Literal["single", "double"] = "single",
        levels: tuple[int, ...] | None = None,
        sequence: Steps | None = None,
        input_shape: Sequence[int] | None = None,
        metrics: dict[str, Metric] | None = None,
        execution: Execution = "auto",
        kernels: Kernels = "own",
        typical_samples: int = 32,
        memory: int = 256,
        device: Device = "cpu",
    ) -> None:
        for field, value, allowed in (
            ("problem.precision", precision, ("single", "double")),
            ("problem.execution", execution, ("auto", "loop", "grouped")),
            ("problem.kernels", kernels, tuple(LAYERS)),
            ("engine.device", device, DEVICES),
        ):
            if value not in allowed:
                *others, last = map(repr, allowed)
                raise BadInput(f"{field} = {value!r}: must be {', '.join(others)} or {last}")
        self._loss_name, function = loss_of(loss)
        if not has_targets and sequence is None and self._loss_name in ("cross_entropy", "bce_with_logits"):
            raise BadInput(f"problem.loss = {loss!r} needs targets; name the target column or choose 'mse'")
        dtype = torch.float32 if precision == "single" else torch.float64
        if sequence is not None:
            if self._loss_name == "mse":
                raise BadInput(
                    "problem.loss = 'mse': steps of a sequence are codes; use 'cross_entropy', or 'bce_with_logits' "
                    "if they are 0 and 1"
                )
            samples: Samples = Windows(sequence.steps, sequence.levels, self._loss_name)
        else:
            width, shape = count("problem.columns", columns), shape_of(input_shape)
            samples = SampleRows(width, dtype, shape, levels, has_targets, self._loss_name)
        self.columns, self.has_targets = samples.columns, has_targets and sequence is None
        self._samples, self._metrics = samples, metrics or {}
        model = Model(made_by(module, seed), function, samples, dtype, kernels=kernels, device=device, seed=seed)
        typical, most = count("typical_samples", typical_samples), count("problem.memory", memory)
        self.engine = self._rows = Engine(model, execution, typical, most)
        looked = model.original.looked_up()
        if looked.worth(model.dimension, typical):
            self.sparse, self.sample_entries = True, model.dimension - looked.entries + math.ceil(looked.numbers)
            self._rows = Engine(model, execution, typical, most, looked)
        self._check_metrics()
        self.dimension, self.start = model.dimension, model.initial
        self.tables = model.original.parameters.tables
        self.domain = Box(np.zeros(self.dimension), math.inf)
        self.certificate = Certificate(reason="a torch module has no certificate")

    def _check_metrics(self) -> None:
        found, targets = self.engine.model.original.tried(self._samples.blank(2))
        predicted, wanted = (self._samples.predicted(values, targets) for values in (found, targets))
        for name, measure in self._metrics.items():
            try:
                shape = tuple(measure(predicted, wanted).shape)
            except Exception as error:  # any error of the user's function
                raise BadInput(f"problem.metrics.{name} fails ({type(error).__name__}: {error}); correct it") from error
            if shape != (len(wanted),):
                raise BadInput(
                    f"problem.metrics.{name} gives shape {shape} for {len(wanted)} predictions, must be "
                    f"({len(wanted)},): one number each"
                )

    @property
    def choice(self) -> Choice:
        """The execution of gradients: the fastest as measured, after the first computation."""
        return self._rows.tuner.choice

    def use_device(self, device: Device) -> None:
        """Compute on this device from now on, in any process."""
        for engine in (self.engine, self._rows):
            engine.use_device(device)

    def settle_device(self) -> None:
        """Look for the device in this process; `BadInput` if it does not exist, or the module does not run on it."""
        with self.engine.model.computing():
            pass

    def state_model(self, path: Path, told: str) -> Vector:
        """Return (p,) the trainable parameters in a file of the module's state_dict; `BadInput` if it does not fit."""
        original = self.engine.model.original
        return original.parameters.of_state(original.module, read_state(path, told), told)

    def of_rows(self, x: Vector) -> nn.Module:
        """Return a copy of the module at x, in evaluation mode, as a module of rows (N, columns) of float32 numbers.

        Raises `BadInput` if samples are codes or sequences.
        """
        samples = self._samples
        if not isinstance(samples, SampleRows) or samples.levels is not None:
            raise BadInput("samples of codes or sequences are no rows of numbers")
        return _OfRows(self.module_at(x), samples)

    def module_at(self, x: Vector) -> nn.Module:
        """Return a copy of the module at x, in evaluation mode."""
        original = self.engine.model.original
        module = copy.deepcopy(original.module).eval()
        trained = original.parameters.named(torch.as_tensor(x).to(original.dtype, copy=True))
        module.load_state_dict(trained, strict=False, assign=True)  # copies may share the memory of what they replace
        return module

    def sizes(self) -> dict[str, int | float]:
        """Return parameters, and mebibytes, of a module that shares its weights; empty for others, which are small."""
        module = self.engine.model.original.module
        return self.engine.sizes() if isinstance(module, SharedModule) else {}

    def computed(self) -> dict[str, bool | int | float]:
        """Return the choice; empty before any computation that needs it."""
        if not self._rows.tuner.settled:
            return {}
        found = asdict(self.choice)
        seconds = found.pop("seconds")
        return found if seconds is None else found | {"seconds_a_sample": seconds}

    def bound(self, block: Block) -> tuple[Block, int]:
        """Clip targets of "bce_with_logits" into [0, 1]; set aside samples not finite, of unknown classes or codes."""
        return self._samples.bound(block, self.engine.model.outputs)

    def user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """Compute (U, p) each user's average gradient; sparse if the problem is."""
        return self._rows.user_gradients(x, block)

    def user_gradients_at(self, models: Array, block: Block) -> Array:
        """Compute (U, p) each user's average gradient, at its own parameters."""
        return self.engine.gradients(models, block)

    def local_updates(self, x: Vector, block: Block, training: LocalTraining) -> Rows:
        """Compute (U, p) the moves of users' models in their own training from x (`userdp.nodes.local_training`)."""
        return self.engine.local_updates(x, block, training)

    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """Compute (N, p) each sample's gradient."""
        single = Block(block.features, np.arange(block.samples + 1), block.targets)
        return dense(self.user_gradients(x, single))

    def sample_losses(self, x: Vector, block: Block) -> Array:
        """Compute (N,) each sample's loss."""
        return _numbers(self.engine.forward(x, block)[0])

    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Average "test_loss", "accuracy" of classes, "squared_error" of numbers and own metrics for each user.

        Sequences also have "bits", the log loss of a step in bits, unless the loss is the user's own.
        """
        losses, outputs, targets = self.engine.forward(x, block)
        counts = self._samples.per_sample(block)
        totals, steps = (np.add.reduceat(each, block.offsets[:-1]) for each in (_numbers(losses) * counts, counts))
        own = {name: measure(outputs, targets) for name, measure in self._metrics.items()}
        return self._measured(totals / steps, outputs, targets, block) | self._by_user(own, block)

    def _measured(self, test_loss: Array, outputs: Tensor, targets: Tensor, block: Block) -> dict[str, Array]:
        result = {"test_loss": test_loss}
        if isinstance(self._samples, Windows) and self._loss_name != "custom":
            result["bits"] = test_loss / math.log(2)
        return result | self._by_user(measures(self._loss_name, outputs, targets), block)

    def _by_user(self, values: dict[str, Tensor], block: Block) -> dict[str, Array]:
        things = self._things(block)
        return {name: user_averages(_numbers(one), things) for name, one in values.items()}

    def _things(self, block: Block) -> Block:
        """Return a block without features that has one sample for each prediction."""
        places = np.concatenate([[0], np.cumsum(self._samples.per_sample(block))])
        return Block(np.zeros((places[-1], 1), dtype=np.float32), places[block.offsets])

    def target_means(self, block: Block) -> Array:
        """Compute (U, k) each user's mean target in each of k outputs, or the share of each class."""
        targets, things = self._targets(block), self._things(block)
        if self._loss_name in CLASSES:
            return user_shares(_numbers(targets).astype(np.int64), things, self.engine.model.outputs)
        sums = np.add.reduceat(_numbers(targets.reshape(len(targets), -1)), things.offsets[:-1], axis=0)
        return np.asarray(sums / things.sizes[:, None])

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, Array]:
        """Compute metrics (U,) of a module with the same outputs for all predictions; none for the user's own loss."""
        targets = self._targets(block)
        outputs = constant_outputs(self._loss_name, torch.as_tensor(mean, dtype=torch.float64), targets)
        if outputs is None:
            return {}
        losses = loss_of(self._loss_name)[1](outputs, targets)
        return self._measured(self._by_user({"loss": losses}, block)["loss"], outputs, targets, block)

    def _targets(self, block: Block) -> Tensor:
        _, targets = self._samples.tensors(block, np.arange(block.samples))
        return self._samples.predicted(targets, targets)

    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """Predict classes and probabilities, or the module's one output; name -> (N,), for sequences one a step.

        Raises `BadInput` if features are their own targets, or targets are numbers and there are several outputs.
        """
        if not self.has_targets and not isinstance(self._samples, Windows):
            return super().predict(x, block)
        outputs = self.engine.forward(x, block)[1]
        return {name: _numbers(values) for name, values in predictions(self._loss_name, outputs).items()}

    def observed(self, block: Block) -> Array | None:
        """Return (N,) targets, for sequences one a step; None if features are their own."""
        if isinstance(self._samples, Windows):
            return _numbers(self._targets(block))
        return super().observed(block)

    def observed_sizes(self, block: Block) -> NDArray[np.int64]:
        """Return (U,) samples of each user, for sequences their steps."""
        return self._things(block).sizes


class _OfRows(nn.Module):
    """A module of samples that are rows, in the shape and the precision that it needs."""

    def __init__(self, module: nn.Module, samples: SampleRows) -> None:
        super().__init__()
        self.module, self._shape, self._dtype = module, samples.shape or (samples.columns,), samples.dtype

    def forward(self, rows: Tensor) -> Tensor:
        return cast(Tensor, self.module(rows.to(self._dtype).reshape(-1, *self._shape)))


def made_by(factory: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a module, or what a function makes with that seed; `BadInput` if it fails, or makes something else."""
    if isinstance(factory, nn.Module):
        return factory
    with own_randomness(PROCESSOR, str(seed).encode()):
        torch.default_generator.manual_seed(seed)
        try:
            module = factory()
        except BadInput:
            raise
        except Exception as error:  # any error of the user's function
            told = f"problem.module fails ({type(error).__name__}: {error})"
            raise BadInput(f"{told}: it takes no arguments and returns a torch module") from error
    if not isinstance(module, nn.Module):
        raise BadInput(f"problem.module makes a {type(module).__name__}, no torch module; return one")
    return module


def _numbers(tensor: Tensor) -> Array:
    return cast(Array, tensor.detach().numpy().astype(np.float64))
