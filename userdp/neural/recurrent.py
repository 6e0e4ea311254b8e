"""nn.GRU and nn.LSTM with their gradients written out: for many users at once, each with weights of its own.

torch's own layers have no rule for batches of weights (`torch.func.vmap` refuses them) and, on a processor, keep a
graph of every step and add up weights' gradients step by step. Here the way back computes what each step sends to its
gates, and a weight's gradient is one product over all steps. The mathematics are those of torch's documentation: the
same parameters give the same outputs and gradients, up to rounding.

Shapes: G users, N sequences of each, L steps, I inputs, H hidden numbers, K gates' numbers (3 H or 4 H).
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from userdp.neural.devices import own_forward


class _Recurrence(torch.autograd.Function):
    """What both layers share: for a further batch of users, it goes in front of the users there are.

    Attributes:
        shown: outputs that are for others; what follows is kept for the way back.
    """

    shown: int

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """All outputs, of which those that are shown are by user first."""
        size, whole = info.batch_size, []
        for tensor, dim in zip(tensors, in_dims, strict=True):
            moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            whole.append(moved.reshape(size * moved.shape[1], *moved.shape[2:]))
        outputs = _applied(cls, *whole)
        shown = (each.reshape(size, -1, *each.shape[1:]) for each in outputs[: cls.shown])
        return (*shown, *outputs[cls.shown :]), (0,) * cls.shown + (None,) * (len(outputs) - cls.shown)


def _applied(layer: type[_Recurrence], *tensors: Tensor) -> tuple[Tensor, ...]:
    return cast(tuple[Tensor, ...], layer.apply(*tensors))  # type: ignore[no-untyped-call]


def _rows(values: Tensor) -> Tensor:
    """(L, G, N, K) as (G, L N, K)."""
    steps, users, sequences, width = values.shape
    return values.transpose(0, 1).reshape(users, steps * sequences, width)


def _input_rows(x: Tensor) -> Tensor:
    """(G, N, L, I) as (G, L N, I)."""
    return x.transpose(1, 2).reshape(x.shape[0], -1, x.shape[3])


def _gates(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(L, G, N, K): what inputs (G, N, L, I) send to the gates, all steps in one product."""
    users, sequences, steps, _ = x.shape
    sent = torch.baddbmm(bias.unsqueeze(1), _input_rows(x), weight.mT)
    return sent.reshape(users, steps, sequences, -1).transpose(0, 1).contiguous()


def _back(ctx: Any, x: Tensor, weight: Tensor, sent: Tensor) -> tuple[Tensor | None, Tensor]:
    """Gradients of inputs (where they are asked for) and of their weight, of what was sent to gates, (G, L N, K)."""
    users, sequences, steps, width = x.shape
    into = None
    if ctx.needs_input_grad[0]:
        into = torch.bmm(sent, weight).reshape(users, steps, sequences, width).transpose(1, 2)
    return into, torch.bmm(sent.mT, _input_rows(x))


class _GatedUnit(_Recurrence):
    """A layer of nn.GRU from a state of zeros: x (G, N, L, I) to outputs (G, N, L, H)."""

    shown = 1

    @staticmethod
    def forward(
        x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The outputs; gates r, z, n (L, G, N, 3 H), what n gets from the state, and all states."""
        gates, hidden = _gates(x, weight_ih, bias_ih), weight_hh.shape[-1]
        recurrent, offset = weight_hh.mT, bias_hh.unsqueeze(1)
        states = gates.new_zeros((len(gates) + 1, *gates.shape[1:3], hidden))
        candidates = gates.new_empty((len(gates), *gates.shape[1:3], hidden))
        for step, own in enumerate(gates):
            sent = torch.baddbmm(offset, states[step], recurrent)
            own[..., : 2 * hidden].add_(sent[..., : 2 * hidden]).sigmoid_()
            candidates[step] = sent[..., 2 * hidden :]
            own[..., 2 * hidden :].addcmul_(own[..., :hidden], candidates[step]).tanh_()
            torch.lerp(own[..., 2 * hidden :], states[step], own[..., hidden : 2 * hidden], out=states[step + 1])
        return states[1:].permute(1, 2, 0, 3), gates, candidates, states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the way back reads."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:3], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """What each step sends to its gates, from the last to the first; then every weight in one product."""
        x, weight_ih, weight_hh, gates, candidates, states = ctx.saved_tensors
        reset, update, new = gates.chunk(3, -1)
        hidden, incoming = new.shape[-1], gradients[0].permute(2, 0, 1, 3)
        # How much of a state's gradient a gate gets, for all steps at once rather than in small pieces.
        to_new = (1 - update).mul_(1 - new * new)
        to_update = (states[:-1] - new).mul_(update).mul_(1 - update)
        to_reset = (1 - reset).mul_(reset).mul_(candidates)
        sent, flowing = torch.empty_like(gates), torch.zeros_like(states[0])
        for step in range(len(gates) - 1, -1, -1):
            flowing += incoming[step]
            fresh, own = to_new[step].mul_(flowing), sent[step]
            torch.mul(fresh, to_reset[step], out=own[..., :hidden])
            torch.mul(flowing, to_update[step], out=own[..., hidden : 2 * hidden])
            torch.mul(fresh, reset[step], out=own[..., 2 * hidden :])
            flowing = torch.baddbmm(flowing.mul_(update[step]), own, weight_hh)
        recurrent = _rows(sent)
        of_recurrent = torch.bmm(recurrent.mT, _rows(states[:-1])), recurrent.sum(1)
        sent[..., 2 * hidden :] = to_new
        into = _rows(sent)
        of_x, of_weight = _back(ctx, x, weight_ih, into)
        return of_x, of_weight, of_recurrent[0], into.sum(1), of_recurrent[1]


class _LongShortTerm(_Recurrence):
    """A layer of nn.LSTM from states of zeros: x (G, N, L, I) to outputs (G, N, L, H) and last cells (G, N, H)."""

    shown = 2

    @staticmethod
    def forward(
        x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The outputs and the last cells; gates i, f, g, o (L, G, N, 4 H), all cells, and all states."""
        gates, hidden = _gates(x, weight_ih, bias_ih + bias_hh), weight_hh.shape[-1]
        recurrent = weight_hh.mT
        states = gates.new_zeros((len(gates) + 1, *gates.shape[1:3], hidden))
        cells = torch.zeros_like(states)
        for step, own in enumerate(gates):
            own.baddbmm_(states[step], recurrent)
            own[..., : 2 * hidden].sigmoid_()
            own[..., 2 * hidden : 3 * hidden].tanh_()
            own[..., 3 * hidden :].sigmoid_()
            put, kept, new, shown = own.chunk(4, -1)
            torch.mul(kept, cells[step], out=cells[step + 1]).addcmul_(put, new)
            torch.tanh(cells[step + 1], out=states[step + 1]).mul_(shown)
        return states[1:].permute(1, 2, 0, 3), cells[-1].clone(), gates, cells, states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the way back reads."""
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs[:3], *output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """As that of `_GatedUnit`."""
        x, weight_ih, weight_hh, gates, cells, states = ctx.saved_tensors
        put, kept, new, shown = gates.chunk(4, -1)
        hidden, incoming = new.shape[-1], gradients[0].permute(2, 0, 1, 3)
        size = torch.tanh(cells[1:])
        to_cell = (1 - size * size).mul_(shown)
        to_gates = torch.stack(
            [(1 - put).mul_(put).mul_(new), (1 - kept).mul_(kept).mul_(cells[:-1]), (1 - new * new).mul_(put)], -2
        )
        to_shown = size.mul_(shown).mul_(1 - shown)
        sent = gates.new_empty((*gates.shape[:-1], 4, hidden))
        flowing, of_cell = torch.zeros_like(states[0]), gradients[1].clone()
        for step in range(len(gates) - 1, -1, -1):
            flowing += incoming[step]
            own = sent[step]
            torch.mul(flowing, to_shown[step], out=own[..., 3, :])
            of_cell.addcmul_(flowing, to_cell[step])
            torch.mul(to_gates[step], of_cell.unsqueeze(-2), out=own[..., :3, :])
            of_cell.mul_(kept[step])
            flowing = torch.bmm(own.flatten(-2), weight_hh)
        rows = _rows(sent.flatten(-2))
        of_x, of_weight = _back(ctx, x, weight_ih, rows)
        of_bias = rows.sum(1)
        return of_x, of_weight, torch.bmm(rows.mT, _rows(states[:-1])), of_bias, of_bias.clone()


_LAYERS: dict[type[nn.Module], type[_Recurrence]] = {nn.GRU: _GatedUnit, nn.LSTM: _LongShortTerm}


def _forward(own: Any, layer: type[_Recurrence], x: Tensor, state: Any = None) -> Any:
    """What the layer ``own`` of torch would return of x."""
    if state is not None or x.ndim != 3:
        return own_forward(own, x, state)
    outputs = (x if own.batch_first else x.transpose(0, 1)).unsqueeze(0)
    last = []
    for number in range(own.num_layers):
        weights = [getattr(own, f"{name}_l{number}").unsqueeze(0) for name in ("weight_ih", "weight_hh")]
        biases = [outputs.new_zeros((1, weights[0].shape[1]))] * 2
        if own.bias:
            biases = [getattr(own, f"{name}_l{number}").unsqueeze(0) for name in ("bias_ih", "bias_hh")]
        outputs, *rest = _applied(layer, outputs, *weights, *biases)[: layer.shown]
        last.append([outputs[:, :, -1], *rest])
    final = [torch.cat(of_layers) for of_layers in zip(*last, strict=True)]
    shown = outputs.squeeze(0)
    return (shown if own.batch_first else shown.transpose(0, 1)), final[0] if len(final) == 1 else tuple(final)


def with_way_back(module: nn.Module) -> nn.Module:
    """The module, whose recurrent layers are torch's own, with a way back on every device."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.forward = partial(own_forward, part)
    return module


def with_own_recurrence(module: nn.Module) -> nn.Module:
    """The same, whose layers of nn.GRU and nn.LSTM are computed here, where that is known how."""
    for part in with_way_back(module).modules():
        layer = _LAYERS.get(type(part))
        if layer is not None and not part.bidirectional and not getattr(part, "proj_size", 0):
            part.forward = partial(_forward, part, layer)
    return module
