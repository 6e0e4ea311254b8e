"""The parts that the written-out gradients of nn.GRU and nn.LSTM share.

What inputs send to the gates is an ordinary product of all steps before the recurrence begins. The way back computes
what each step sends to its gates, and a weight's gradient is one product over all steps. The mathematics are those of
torch's documentation: the same parameters give the same outputs and gradients, up to rounding.

Gates lie one behind the other, (gates, users, sequences, H), so that whatever is done to one of them reads and writes
a single piece of memory; what is sent back lies row by row, (users, sequences, gates, H), for products that read it.

Shapes: G users, N sequences of each, L steps, I inputs, H hidden numbers, K gates' numbers (3 H or 4 H).
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from userdp.neural.kernels.lookups import Looked


class Recurrence(torch.autograd.Function):
    """What both layers share: for a further batch of users, it goes in front of the users there are.

    Attributes:
        shown: outputs that are for others; what follows is kept for the way back.
    """

    shown: int

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Any]:
        """All outputs, of which those that are shown are by user first."""
        size, whole = info.batch_size, list[Tensor | None]()
        for tensor, dim in zip(tensors, in_dims, strict=True):
            if tensor is None:
                whole.append(None)
                continue
            moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            whole.append(moved.reshape(size * moved.shape[1], *moved.shape[2:]))
        outputs = applied(cls, *whole)
        shown = (each.reshape(size, -1, *each.shape[1:]) for each in outputs[: cls.shown])
        return (*shown, *outputs[cls.shown :]), (0,) * cls.shown + (None,) * (len(outputs) - cls.shown)


def applied(layer: type[Recurrence], *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """All outputs of a layer's function; torch does not type them."""
    return cast(tuple[Tensor, ...], layer.apply(*tensors))  # type: ignore[no-untyped-call]


def steps(*tensors: Tensor) -> Iterator[Any]:
    """Their views of one step after the other, all made beforehand: a view costs as much as what is done to it."""
    return zip(*(tensor.unbind(0) for tensor in tensors), strict=True)


def steps_back(*tensors: Tensor) -> Iterator[Any]:
    """The same from the last step to the first."""
    return iter(list(steps(*tensors))[::-1])


def tanh(values: Tensor, one: Tensor, out: Tensor) -> Tensor:
    """The hyperbolic tangent as 2 sigmoid(2 x) - 1: torch's sigmoid takes a sixth of the time of its tanh.

    Numbers of Python would be made tensors at every call, which takes longer than what is done to a step.
    """
    torch.add(values, values, out=out).sigmoid_()
    return out.add_(out).sub_(one)


def sigmoid_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """What a gradient of sigmoid's output is to its input, in one pass."""
    return cast(Tensor, torch.ops.aten.sigmoid_backward(gradient, output))


def tanh_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """The same of tanh."""
    return cast(Tensor, torch.ops.aten.tanh_backward(gradient, output))


def incoming_gradient(gradient: Tensor | None, states: Tensor) -> Tensor:
    """(L, G, N, H): the gradient of outputs (G, L, N, H); zeros where nobody reads them."""
    return torch.zeros_like(states[1:]) if gradient is None else gradient.transpose(0, 1)


def by_user(rows: Tensor) -> Tensor:
    """(G, L N, K): rows (L, G, N, K) of all steps of a user, one below the other."""
    return rows.transpose(0, 1).flatten(1, 2)


def sent_by(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
    """What inputs (L, N, I) send, (1, L, N, K); or a table (1, V, K) and codes (1, L, N) that choose its rows."""
    if isinstance(x, Looked):
        if x.late:
            return x.product(weight, bias).unsqueeze(0), x.codes.unsqueeze(0)
        x = x.rows
    # All steps of all sequences as one matrix, whose rows lie as they came: else each step would have a product of its
    # own, and on the way back each a gradient as large as the weight's.
    rows = x.transpose(0, 1)
    sent = functional.linear(rows.flatten(0, 1), weight, bias)
    return sent.unflatten(0, rows.shape[:2]).transpose(0, 1).unsqueeze(0), None  # type: ignore[no-untyped-call]
