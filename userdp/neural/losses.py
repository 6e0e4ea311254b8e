"""Losses of a module's outputs, one number for each prediction, and the metrics derived from them."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from userdp.arrays.fixed_order import order_is_fixed
from userdp.errors import BadInput
from userdp.neural.kernels.exact import Exact
from userdp.problems.base import NEXT_TO_NOTHING

LossName = Literal["cross_entropy", "mse", "bce_with_logits"]
SampleLoss = Callable[[Tensor, Tensor], Tensor]  # Outputs, targets -> losses: one a sample; for sequences one a step.
CLASSES = frozenset({"cross_entropy"})  # Losses with targets in classes 0..C-1 and an output for each.


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    rows = outputs.reshape(-1, outputs.shape[-1])
    return functional.cross_entropy(rows, targets.reshape(-1).long(), reduction="none").reshape(targets.shape)


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    errors = (outputs.reshape(targets.shape) - targets) ** 2
    return errors.flatten(1).mean(1) if errors.ndim > 1 else errors


def _bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    scores = outputs.reshape(targets.shape)
    return functional.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="none")


LOSSES: Mapping[str, SampleLoss] = {"cross_entropy": _cross_entropy, "mse": _mse, "bce_with_logits": _bce_with_logits}


def loss_of(loss: str | SampleLoss) -> tuple[str, SampleLoss]:
    """Return the loss and its name, "custom" for the user's own function; `BadInput` refuses an unknown name."""
    if not isinstance(loss, str):
        return "custom", loss
    if loss not in LOSSES:
        raise BadInput(f"problem.loss = {loss!r} is unknown; there are {', '.join(sorted(LOSSES))}")
    return loss, LOSSES[loss]


def measures(name: str, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Compute each prediction's "accuracy" of classes, or "squared_error" of numbers, averaged over outputs."""
    if name in CLASSES:
        return {"accuracy": outputs.argmax(-1) == targets}
    if name == "bce_with_logits":
        return {"accuracy": (outputs.reshape(targets.shape) > 0) == (targets > 0.5)}
    return {"squared_error": _mse(outputs, targets)} if name == "mse" else {}


def constant_outputs(name: str, mean: Tensor, targets: Tensor) -> Tensor | None:
    """Return constant outputs: ``mean`` (k,), for classes their shares; None for the user's own loss."""
    if name == "custom":
        return None
    if name == "mse":
        return mean.expand(len(targets), -1).reshape(targets.shape)
    held = mean.clamp(NEXT_TO_NOTHING, 1 - NEXT_TO_NOTHING)
    scores = held.log() if name in CLASSES else torch.logit(held)
    return scores.expand(len(targets), -1)


def predictions(name: str, outputs: Tensor) -> dict[str, Tensor]:
    """Return predictions of outputs (S, ...): classes and probabilities, or the one output; `BadInput` for several."""
    if name in CLASSES:
        shares = {f"probability.{k}": share for k, share in enumerate(outputs.softmax(1).T)}
        return {"prediction": outputs.argmax(1), **shares}
    if outputs.numel() != len(outputs):
        several = outputs.numel() // max(len(outputs), 1)
        raise BadInput(f"problem.outputs = {several}: predictions of {name} need one output")
    scores = outputs.reshape(len(outputs))
    if name == "bce_with_logits":
        with Exact() if order_is_fixed() else nullcontext():  # type: ignore[no-untyped-call]
            return {"prediction": scores > 0, "probability": torch.sigmoid(scores)}
    return {"prediction": scores}
