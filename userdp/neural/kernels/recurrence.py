"""The shared parts of the written-out gradients of nn.GRU and nn.LSTM.

One product of all steps computes the inputs' part of the gates before the recurrence begins. The backward pass computes
each step's gradient of the gates, and a weight's gradient is one product over all steps. The mathematics are those of
torch's documentation: the same parameters give the same outputs and gradients, up to rounding.

Gates are contiguous, (gates, users, sequences, H), so that an operation on one of them reads and writes a single piece
of memory; their gradients lie row by row, (users, sequences, gates, H), for products that read them.

Shapes: G users, N sequences of each, L steps, I inputs, H hidden numbers, K gates' numbers (3 H or 4 H).
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

# From a gradient of the function's output, and that output, to the gradient of its input, in one pass.
sigmoid_backward: Callable[[Tensor, Tensor], Tensor] = torch.ops.aten.sigmoid_backward
tanh_backward: Callable[[Tensor, Tensor], Tensor] = torch.ops.aten.tanh_backward


class Recurrence(torch.autograd.Function):
    """A layer that puts further batches of users first; its first ``shown`` outputs are for other layers."""

    shown: int

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the weight and the outputs that are not shown for the backward pass."""
        kept = output[cls.shown :]
        ctx.set_materialize_grads(False)  # no zeros for outputs that nobody differentiates
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(inputs[1], *kept)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """Return all outputs; those that are shown are by user first."""
        size = info.batch_size

        def joined(tensor: Tensor, dim: int | None) -> Tensor:
            moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return moved.reshape(size * moved.shape[1], *moved.shape[2:])

        outputs = applied(cls, *map(joined, tensors, in_dims))
        shown = (each.reshape(size, -1, *each.shape[1:]) for each in outputs[: cls.shown])
        return (*shown, *outputs[cls.shown :]), (0,) * cls.shown + (None,) * (len(outputs) - cls.shown)


def applied(layer: type[Recurrence], *arguments: Tensor) -> tuple[Tensor, ...]:
    """Return all outputs of a layer's function, which torch does not type."""
    return cast(tuple[Tensor, ...], layer.apply(*arguments))  # type: ignore[no-untyped-call]


def steps(*tensors: Tensor) -> Iterator[Any]:
    """Iterate over views of steps, all made beforehand: a view costs as much as an operation on it."""
    return zip(*(tensor.unbind(0) for tensor in tensors), strict=True)


def steps_back(*tensors: Tensor) -> Iterator[Any]:
    """Iterate from the last step to the first."""
    return iter(list(steps(*tensors))[::-1])


def by_user(rows: Tensor) -> Tensor:
    """Reshape rows (L, G, N, K) to (G, L N, K)."""
    return rows.transpose(0, 1).flatten(1, 2)


def sent_by(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return gate inputs (1, L, N, K) of x (L, N, I).

    One matrix of all steps of all sequences: else each step would have a product of its own, and in the backward pass a
    gradient as large as the weight's.
    """
    rows = x.transpose(0, 1)
    sent = functional.linear(rows.flatten(0, 1), weight, bias)
    return sent.unflatten(0, rows.shape[:2]).transpose(0, 1).unsqueeze(0)  # type: ignore[no-untyped-call, no-any-return]
