"""Any torch module with a loss: no certificate, so only strategies that need none will take it."""

import math
from collections.abc import Callable, Iterator
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.bounds import (
    check_columns,
    clip_targets,
    count,
    counted,
    rebuilt,
    set_aside,
    set_aside_not_finite,
    targets_of,
)
from userdp.problems.segments import parts, user_averages

LossName = Literal["cross_entropy", "mse", "bce_with_logits"]
SampleLoss = Callable[[Tensor, Tensor], Tensor]
Parameters = dict[str, Tensor]

PIECE_NUMBERS = 1 << 23
"""Numbers in the features and gradients of one piece, which bounds memory (the module's own activations aside)."""


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets.long(), reduction="none")


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    errors = (outputs.reshape(targets.shape) - targets) ** 2
    return errors.flatten(1).mean(1) if errors.ndim > 1 else errors


def _bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets, reduction="none")


LOSSES: dict[str, SampleLoss] = {"cross_entropy": _cross_entropy, "mse": _mse, "bce_with_logits": _bce_with_logits}


class TorchProblem(Problem):
    """The loss of a torch module as a function of its trainable parameters, flattened in the module's order.

    Args:
        module_factory: makes the module, from (N, columns) features to outputs; no arguments. Must be picklable for
            engines that run in other processes.
        loss: "cross_entropy" (targets are classes 0..C-1), "mse" (the mean over outputs), "bce_with_logits" (targets
            in [0, 1]), or a callable from (outputs, targets) to (N,) losses.
        columns: feature columns of a sample.
        has_targets: False for reconstruction: the features are their own targets.
        seed: of the initial parameters.
        precision: "single" computes in float32, so results depend on how users are grouped in blocks to about 1e-6
            relative; "double" to 1e-9 at about twice the time.

    Buffers are held fixed and the module is in evaluation mode (dropout off, batch normalisation by its running
    statistics): a user's gradient is a function of the model and of that user's samples alone, which user-level
    privacy needs.

    Formal guarantees:
        None: nothing is proven of an arbitrary module, the certificate is empty, the domain the whole space. Privacy
        must come from clipping rows. Clipping data is left to the caller: features need only be finite.

    Raises:
        BadInput: unknown loss or precision, no trainable parameter, or outputs that do not fit the loss.
    """

    name = "torch"
    summary = "any torch module with a loss; no certificate"

    def __init__(
        self,
        module_factory: Callable[[], nn.Module],
        loss: LossName | SampleLoss,
        columns: int,
        *,
        has_targets: bool = True,
        seed: int = 0,
        precision: Literal["single", "double"] = "single",
    ) -> None:
        if precision not in ("single", "double"):
            raise BadInput(f"problem.precision = {precision!r}: must be 'single' or 'double'")
        if isinstance(loss, str) and loss not in LOSSES:
            raise BadInput(f"problem.loss = {loss!r} is unknown; there are {', '.join(sorted(LOSSES))}")
        if not has_targets and loss in ("cross_entropy", "bce_with_logits"):
            raise BadInput(f"problem.loss = {loss!r} needs targets; name the target column or choose 'mse'")
        self.columns = count("problem.columns", columns)
        self.has_targets = has_targets
        self._loss_name = loss if isinstance(loss, str) else "custom"
        self._loss = LOSSES[loss] if isinstance(loss, str) else loss
        self._type = torch.float32 if precision == "single" else torch.float64
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._module = module_factory().to(self._type).eval()
        trainable = {name: tensor.detach() for name, tensor in self._module.named_parameters() if tensor.requires_grad}
        if not trainable:
            raise BadInput("problem.module has no trainable parameter; check what the factory returns")
        self._module.requires_grad_(False)
        self._shapes = {name: tensor.shape for name, tensor in trainable.items()}
        self._initial: Vector = _flat([tensor.reshape(1, -1) for tensor in trainable.values()])[0]
        self.dimension = len(self._initial)
        self.domain = Box(np.zeros(self.dimension), math.inf)
        self.certificate = Certificate(reason="a torch module has no certificate")
        self._outputs = self._probe()

    def _probe(self) -> int:
        """Outputs a sample, after a trial on two zero samples.

        Raises:
            BadInput: module and loss do not fit.
        """
        features = torch.zeros((2, self.columns), dtype=self._type)
        targets = torch.zeros(2, dtype=self._type) if self.has_targets else features
        try:
            outputs = self._module(features)
            losses = self._loss(outputs, targets)
        except (RuntimeError, ValueError, IndexError) as error:
            text = str(error).splitlines()[0]
            raise BadInput(
                f"problem.module does not fit {self.columns} columns and {self._loss_name}: {text}"
            ) from error
        if losses.shape != (2,):
            raise BadInput(
                f"problem.loss gives shape {tuple(losses.shape)} for 2 samples, must be (2,): one loss a sample"
            )
        return int(outputs.numel()) // 2

    def initial(self) -> Vector:
        """(p,): the factory's parameters under ``seed``."""
        return self._initial.copy()

    def bound(self, block: Block) -> tuple[Block, int]:
        """Clips targets of "bce_with_logits" into [0, 1]; sets aside what is not finite, and classes that are none.

        Raises:
            BadInput: wrong columns, or no targets.
        """
        check_columns(block, self.columns)
        block = set_aside_not_finite(block, targets=self.has_targets)
        if self._loss_name == "cross_entropy":
            targets = targets_of(block)
            strange = (targets < 0) | (targets >= self._outputs) | (targets != np.floor(targets))
            return set_aside(block, strange), 0
        if self._loss_name != "bce_with_logits":
            return block, 0
        targets, clipped = clip_targets(block, 0.0, 1.0)
        return rebuilt(block, block.features, targets), counted(block, clipped)

    def _parameters(self, x: Vector) -> Parameters:
        flat = torch.tensor(x, dtype=self._type)
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def _weighted_loss(self, parameters: Parameters, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        outputs = functional_call(self._module, parameters, (features,))
        return (self._loss(outputs, targets) * weights).sum()

    def _own_parameters(self, models: Array) -> Parameters:
        """Of R models (R, p), stacked along the first axis."""
        flat = torch.tensor(models, dtype=self._type)
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes.values()], dim=1)
        shapes = zip(self._shapes.items(), pieces, strict=True)
        return {name: piece.reshape(len(models), *shape) for (name, shape), piece in shapes}

    def _gradients(
        self, parameters: Parameters, rows: NDArray[np.int64], weights: Array, block: Block, *, own: bool = False
    ) -> Array:
        """(R, p): gradients of R weighted sums of losses; ``rows`` and ``weights`` (R, m) say of which samples.

        All at the same parameters, or each at its ``own``.
        """
        features = torch.tensor(block.dense_features[rows], dtype=self._type)
        targets = torch.tensor(targets_of(block)[rows], dtype=self._type) if self.has_targets else features
        function = vmap(grad(self._weighted_loss), in_dims=(0 if own else None, 0, 0, 0))
        gradients = function(parameters, features, targets, torch.tensor(weights, dtype=self._type))
        return _flat([gradients[name].reshape(len(rows), -1) for name in self._shapes])

    def user_gradients(self, x: Vector, block: Block) -> Array:
        """(U, p): users of like size together, padded to the largest with weights 0 (and their own last sample)."""
        parameters = self._parameters(x)
        result = np.empty((block.users, self.dimension))
        for users, rows, weights in self._padded(block):
            result[users] = self._gradients(parameters, rows, weights, block)
        return result

    def user_gradients_at(self, models: Array, block: Block) -> Array:
        """(U, p): likewise, each user at its own parameters."""
        result = np.empty((block.users, self.dimension))
        for users, rows, weights in self._padded(block):
            result[users] = self._gradients(self._own_parameters(models[users]), rows, weights, block, own=True)
        return result

    def _padded(self, block: Block) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Array]]:
        """Groups of users, with rows and weights of their samples."""
        sizes = block.sizes
        for users in self._groups(np.argsort(sizes, kind="stable"), sizes):
            own, columns = sizes[users][:, None], np.arange(sizes[users].max())
            rows = block.offsets[users][:, None] + np.minimum(columns, own - 1)
            yield users, rows, (columns < own) / own

    def _groups(self, order: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Runs of ``order`` (users by rising size) of about `PIECE_NUMBERS`, one user at least, none twice as large."""
        last = len(order)
        while last > 0:
            largest = int(sizes[order[last - 1]])
            room = max(1, PIECE_NUMBERS // (largest * self.columns + self.dimension))
            alike = int(np.searchsorted(sizes[order], (largest + 1) // 2))
            first = max(0, last - room, alike)
            yield order[first:last]
            last = first

    def sample_gradients(self, x: Vector, block: Block) -> Array:
        """(N, p)."""
        parameters = self._parameters(x)
        result = np.empty((block.samples, self.dimension))
        step = max(1, PIECE_NUMBERS // (self.columns + self.dimension))
        for first in range(0, block.samples, step):
            rows = np.arange(first, min(first + step, block.samples))[:, None]
            result[rows[:, 0]] = self._gradients(parameters, rows, np.ones(rows.shape), block)
        return result

    def _forward(self, x: Vector, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (N,), outputs (N, ...) and targets, piece by piece."""
        parameters, losses, outputs, targets = self._parameters(x), [], [], []
        for _, part in parts(block):
            features = torch.tensor(part.dense_features, dtype=self._type)
            targets.append(torch.tensor(targets_of(part), dtype=self._type) if self.has_targets else features)
            with torch.no_grad():
                outputs.append(functional_call(self._module, parameters, (features,)))
                losses.append(self._loss(outputs[-1], targets[-1]))
        return torch.cat(losses), torch.cat(outputs), torch.cat(targets)

    def sample_losses(self, x: Vector, block: Block) -> Array:
        """(N,)."""
        return _numbers(self._forward(x, block)[0])

    def metrics(self, x: Vector, block: Block) -> dict[str, Array]:
        """Per user: "test_loss", and "accuracy" where the targets are classes."""
        losses, outputs, targets = self._forward(x, block)
        result = {"test_loss": user_averages(_numbers(losses), block)}
        if self._loss_name == "cross_entropy":
            result["accuracy"] = user_averages(_numbers(outputs.argmax(1) == targets), block)
        elif self._loss_name == "bce_with_logits":
            right = (outputs.reshape(targets.shape) > 0) == (targets > 0.5)
            result["accuracy"] = user_averages(_numbers(right), block)
        return result

    def predict(self, x: Vector, block: Block) -> dict[str, Array]:
        """Classes and probabilities, or the module's one output; name -> (N,).

        Raises:
            BadInput: features are their own targets, or targets are numbers and outputs several.
        """
        if not self.has_targets:
            return super().predict(x, block)
        parameters, found = self._parameters(x), []
        for _, part in parts(block):
            features = torch.tensor(part.dense_features, dtype=self._type)
            with torch.no_grad():
                found.append(functional_call(self._module, parameters, (features,)))
        outputs = torch.cat(found)
        if self._loss_name == "cross_entropy":
            shares = {f"probability.{k}": _numbers(share) for k, share in enumerate(outputs.softmax(1).T)}
            return {"prediction": _numbers(outputs.argmax(1)), **shares}
        if self._outputs != 1:
            raise BadInput(f"problem.outputs = {self._outputs}: predictions of {self._loss_name} need one output")
        scores = outputs.reshape(len(outputs))
        if self._loss_name == "bce_with_logits":
            return {"prediction": _numbers(scores > 0), "probability": _numbers(scores.sigmoid())}
        return {"prediction": _numbers(scores)}


def _numbers(tensor: Tensor) -> Array:
    return cast(Array, tensor.detach().numpy().astype(np.float64))


def _flat(tensors: list[Tensor]) -> Array:
    """(R, ...) tensors side by side as one (R, p) float64 array."""
    return _numbers(torch.cat(tensors, dim=1))
