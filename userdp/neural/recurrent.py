"""nn.GRU and nn.LSTM with their gradients written out: for many users at once, each with weights of its own.

torch's own layers have no rule for batches of weights (`torch.func.vmap` refuses them) and, on a processor, keep a
graph of every step and add up weights' gradients step by step. Here the way back computes what each step sends to its
gates, and a weight's gradient is one product over all steps. What inputs send to the gates is an ordinary product of
all steps before the recurrence begins. The mathematics are those of torch's documentation: the same parameters give
the same outputs and gradients, up to rounding.

Gates lie one behind the other, (gates, users, sequences, H), so that whatever is done to one of them reads and writes
a single piece of memory; what is sent back lies row by row, (users, sequences, gates, H), for products that read it.

Shapes: G users, N sequences of each, L steps, I inputs, H hidden numbers, K gates' numbers (3 H or 4 H).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from userdp.neural.devices import own_forward
from userdp.neural.lookups import Looked


class _Recurrence(torch.autograd.Function):
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
        outputs = _applied(cls, *whole)
        shown = (each.reshape(size, -1, *each.shape[1:]) for each in outputs[: cls.shown])
        return (*shown, *outputs[cls.shown :]), (0,) * cls.shown + (None,) * (len(outputs) - cls.shown)


def _applied(layer: type[_Recurrence], *tensors: Tensor | None) -> tuple[Tensor, ...]:
    return cast(tuple[Tensor, ...], layer.apply(*tensors))  # type: ignore[no-untyped-call]


def _gates(sent: Tensor, count: int) -> Tensor:
    """(L, count, G, N, H): what inputs send to the gates (G, L, N, K), gate by gate, for the recurrence to write on."""
    return torch.unflatten(sent, -1, (count, -1)).permute(1, 3, 0, 2, 4).clone(memory_format=torch.contiguous_format)


def _places(codes: Tensor, rows: int) -> Tensor:
    """(L, G, N): where what codes (G, L, N) choose is, in tables of so many rows, one behind the other."""
    begin = torch.arange(0, rows * len(codes), rows, device=codes.device)
    return (codes + begin[:, None, None]).transpose(0, 1).contiguous()


def _chosen(sent: Tensor, places: Tensor | None) -> Tensor:
    """(L, G, N, K): what inputs send (G, L, N, K), or rows at places (L, G, N) of tables (G, V, K); to write on."""
    if places is None:
        return sent.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    return sent.flatten(0, 1).index_select(0, places.flatten()).reshape(*places.shape, -1)


def _add_chosen(of_tables: Tensor, gradient: Tensor, places: Tensor) -> None:
    """Add the gradient (L, G, N, K) of what was chosen at places (L, G, N) to that of the tables (G, V, K)."""
    rows = of_tables.flatten(0, 1)
    if gradient.is_cuda:  # whose other way adds up in an order that changes
        rows += torch.ops.aten.embedding_dense_backward(gradient, places, len(rows), -1, False)
    else:
        rows.index_add_(0, places.flatten(), gradient.flatten(0, 2))


def _by_gate(weight: Tensor, count: int) -> Tensor:
    """(count G, H, H): the factor of each gate by which states (G, N, H) are multiplied, of weights (G, count H, H)."""
    return torch.unflatten(weight, 1, (count, -1)).transpose(0, 1).flatten(0, 1).mT


def _add_products(gates: Tensor, state: Tensor, factors: Tensor) -> Tensor:
    """Gates (count G, N, H), to which what a state (G, N, H) sends to each is added."""
    count = len(gates) // len(state)
    read = state.expand(count, -1, -1) if len(state) == 1 else state.repeat(count, 1, 1)
    return gates.baddbmm_(read, factors)


def _steps(*tensors: Tensor) -> Iterator[Any]:
    """Their views of one step after the other, all made beforehand: a view costs as much as what is done to it."""
    return zip(*(tensor.unbind(0) for tensor in tensors), strict=True)


def _steps_back(*tensors: Tensor) -> Iterator[Any]:
    """The same from the last step to the first."""
    return iter(list(_steps(*tensors))[::-1])


def _tanh(values: Tensor, one: Tensor, out: Tensor) -> Tensor:
    """tanh(x) = 2 sigmoid(2 x) - 1: torch's sigmoid takes a sixth of the time of its tanh.

    Numbers of Python would be made tensors at every call, which takes longer than what is done to a step.
    """
    torch.add(values, values, out=out).sigmoid_()
    return out.add_(out).sub_(one)


def _sigmoid_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """What a gradient of sigmoid's output is to its input, in one pass."""
    return cast(Tensor, torch.ops.aten.sigmoid_backward(gradient, output))


def _tanh_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """The same of tanh."""
    return cast(Tensor, torch.ops.aten.tanh_backward(gradient, output))


def _incoming(gradient: Tensor | None, states: Tensor) -> Tensor:
    """(L, G, N, H): the gradient of outputs (G, L, N, H); zeros where nobody reads them."""
    return torch.zeros_like(states[1:]) if gradient is None else gradient.transpose(0, 1)


def _by_user(rows: Tensor) -> Tensor:
    """(G, L N, K): rows (L, G, N, K) of all steps of a user, one below the other."""
    return rows.transpose(0, 1).flatten(1, 2)


class _GatedUnit(_Recurrence):
    """nn.GRU from a state of zeros: what inputs send (G, L, N, 3 H) to outputs (G, L, N, H).

    The gates r and z have no biases of their own here, for theirs are sent with the inputs.
    """

    shown = 1

    @staticmethod
    def forward(sent: Tensor, weight: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The outputs; gates r, z, n (L, 3, G, N, H), what n gets from the state, and all states."""
        gates, factors, offset = _gates(sent, 3), _by_gate(weight, 3), offset.unsqueeze(1)
        of_two, of_new = factors.tensor_split([2 * len(weight)])
        states = gates.new_empty((len(gates) + 1, *gates.shape[2:]))
        states[0], one = 0, gates.new_ones(())
        candidates = torch.empty_like(states[1:])
        views = gates[:, :2].flatten(1, 2), *gates.unbind(1), states[:-1], states[1:], candidates
        for two, reset, update, new, state, after, candidate in _steps(*views):
            _add_products(two, state, of_two).sigmoid_()
            torch.baddbmm(offset, state, of_new, out=candidate)
            torch.lerp(_tanh(new.addcmul_(reset, candidate), one, out=new), state, update, out=after)
        return states[1:].transpose(0, 1), gates, candidates, states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the way back reads."""
        ctx.set_materialize_grads(False)  # zeros of every output, also of those that nobody differentiates
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[1], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, ...]:
        """What each step sends to its gates, from the last to the first; then the weight in one product."""
        weight, gates, candidates, states = ctx.saved_tensors
        reset, update, new = gates.unbind(1)
        incoming = _incoming(gradients[0], states)
        # How much of a state's gradient a gate gets, for all steps at once rather than in small pieces.
        to_new = _tanh_backward(1 - update, new)
        to_update = _sigmoid_backward(states[:-1] - new, update)
        to_reset = _sigmoid_backward(candidates, reset)
        sent = gates.new_empty((*states[1:].shape[:-1], 3, states.shape[-1]))
        flowing = torch.zeros_like(states[0])
        views = to_new, to_update, to_reset, reset, update, incoming, sent.flatten(-2), *sent.unbind(-2)
        for fresh, share, of_reset, opened, kept, own, rows, to_first, to_second, to_third in _steps_back(*views):
            flowing += own
            fresh.mul_(flowing)
            torch.mul(fresh, of_reset, out=to_first)
            torch.mul(flowing, share, out=to_second)
            torch.mul(fresh, opened, out=to_third)
            flowing = torch.baddbmm(flowing.mul_(kept), rows, weight)
        of_weight = torch.bmm(_by_user(sent.flatten(-2)).mT, _by_user(states[:-1]))
        of_offset = sent[..., 2, :].sum((0, 2))
        sent[..., 2, :] = to_new
        return sent.flatten(-2).transpose(0, 1), of_weight, of_offset


class _LongShortTerm(_Recurrence):
    """A layer of long short-term memory, of what inputs send to its gates; states and cells start at zero.

    Written with sigmoids alone, as tanh(x) = 2 sigmoid(2 x) - 1: here states are nn.LSTM's with the OTHER SIGN, cells
    DOUBLE, and what goes to the third gate is double. With gates i, f, g, o, the sigmoids of what is sent to them,

        cell' = f cell + (4 g - 2) i,     state' = o - 2 o sigmoid(cell').

    What inputs send is (G, L, N, 4 H), or rows of a table (G, V, 4 H) that codes (G, L, N) choose.
    """

    shown = 2

    @staticmethod
    def forward(sent: Tensor, weight: Tensor, codes: Tensor | None) -> tuple[Tensor | None, ...]:
        """States (G, L, N, H) and the last cells; gates (L, G, N, 4 H), all cells, their sigmoids, states, places."""
        places = None if codes is None else _places(codes, sent.shape[1])
        gates = _chosen(sent, places)
        states = gates.new_empty((len(gates) + 1, *gates.shape[1:-1], weight.shape[-1]))
        cells, sizes = torch.empty_like(states), torch.empty_like(states[1:])
        factors, state, cell = weight.mT.contiguous(), states[0].zero_(), cells[0].zero_()
        views = gates, *torch.unflatten(gates, -1, (4, -1)).unbind(-2), states[1:], cells[1:], sizes
        for rows, put, kept, new, told, next_state, next_cell, size in _steps(*views):
            rows.baddbmm_(state, factors).sigmoid_()
            torch.mul(kept, cell, out=next_cell).addcmul_(put, new, value=4).sub_(put, alpha=2)
            torch.sigmoid(next_cell, out=size)
            torch.addcmul(told, told, size, value=-2, out=next_state)
            state, cell = next_state, next_cell
        by_sequence = states.new_empty([states[1:].shape[axis] for axis in (1, 2, 0, 3)])  # as modules ask for them
        shown = torch.neg(states[1:].permute(1, 2, 0, 3), out=by_sequence).transpose(1, 2)
        return shown, cells[-1].clone(), gates, cells, sizes, states, places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep what the way back reads."""
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(each for each in output[2:] if each is not None))
        ctx.sent = inputs[0].shape
        ctx.save_for_backward(inputs[1], *output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """As that of `_GatedUnit`, some steps at a time, so that what is made of them is still at hand when it is read.

        Where inputs are chosen from a table, what is sent to gates is added to the table's rows, and not kept.
        """
        weight, gates, cells, sizes, states, places = ctx.saved_tensors
        span = _span(gates)
        kept_sent = gates.new_empty((span if places is not None else len(gates), *gates.shape[1:]))
        of_sent = kept_sent.transpose(0, 1) if places is None else gates.new_zeros(ctx.sent)
        of_weight, of_cell = torch.zeros_like(weight), torch.zeros_like(states[0])
        incoming = torch.zeros_like(sizes)
        if gradients[0] is not None:
            torch.neg(gradients[0].transpose(0, 1), out=incoming)
        if gradients[1] is not None:
            of_cell += gradients[1]
        before = iter(incoming.unbind(0)[-2::-1])
        for first in range((len(gates) - 1) // span * span, -1, -span):
            part = slice(first, min(first + span, len(gates)))
            sent = kept_sent[part] if places is None else kept_sent[: len(gates[part])]
            shares = torch.unflatten(sent, -1, (4, -1))
            kept, to_cell = _shares(shares, gates[part], cells[part], sizes[part])
            views = to_cell, kept, incoming[part], sent, shares[..., :3, :], shares[..., 3, :]
            for size, stays, flowing, rows, three, last in _steps_back(*views):
                last.mul_(flowing)
                of_cell.addcmul_(flowing, size, value=-2)
                three.mul_(of_cell.unsqueeze(-2))
                of_cell.mul_(stays)
                if (earlier := next(before, None)) is not None:
                    earlier.baddbmm_(rows, weight)
            of_weight.baddbmm_(_by_user(sent).mT, _by_user(states[part]))
            if places is not None:
                _add_chosen(of_sent, sent, places[part])
        return of_sent, of_weight, None


_AT_HAND = 1 << 20
"""Bytes of what is sent to gates that stay in a processor's cache, beside what else is read."""


def _span(gates: Tensor) -> int:
    """How many steps of gates (L, G, N, K) are worked on at a time on the way back; all where nothing is gained."""
    if gates.is_cuda:
        return len(gates)
    return max(1, min(len(gates), _AT_HAND // (gates[0].numel() * gates.itemsize)))


def _shares(shares: Tensor, gates: Tensor, cells: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """How much of a cell's gradient goes on to the cell before, and of a state's to its cell, over -2; for all steps.

    Args:
        shares: (L, G, N, 4, H), overwritten with how much of a cell's gradient goes to what is sent to each of the
            first three gates, and of a state's to the last.
        gates: (L, G, N, 4 H).
        cells: (L, G, N, H) those before.
        sizes: (L, G, N, H) the sigmoids of those after.
    """
    put, kept, new, shown = torch.unflatten(gates, -1, (4, -1)).unbind(-2)
    of_put, of_kept, of_new, of_shown = shares.unbind(-2)
    one = gates.new_ones(())
    torch.add(-2 * one, new, alpha=4, out=of_put)
    of_kept.copy_(cells)
    torch.mul(put, 4, out=of_new)
    torch.add(one, sizes, alpha=-2, out=of_shown)
    sent = shares.flatten(-2)
    torch.ops.aten.sigmoid_backward.grad_input(sent, gates, grad_input=sent)
    return kept, _sigmoid_backward(shown, sizes)


def _sent(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
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


def _unit(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
    """Outputs (1, L, N, H) of nn.GRU for inputs (L, N, I)."""
    of_gates, of_new = biases[1].tensor_split([2 * weights[1].shape[1]])
    sent, codes = _sent(x, weights[0], biases[0] + functional.pad(of_gates, (0, len(of_new))))
    rows = sent if codes is None else functional.embedding(codes, sent[0])
    return _applied(_GatedUnit, rows, weights[1].unsqueeze(0), of_new.unsqueeze(0))[:1]


def _long_short_term(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
    """Outputs (1, L, N, H) and last cells (1, N, H) of nn.LSTM for inputs (L, N, I)."""
    size = weights[1].shape[1]
    double = weights[0].new_ones(4, size)
    double[2] = 2
    double = double.flatten()
    of_input, of_state = weights[0] * double[:, None], weights[1] * -double[:, None]
    sent, codes = _sent(x, of_input, (biases[0] + biases[1]) * double)
    states, doubles = _applied(_LongShortTerm, sent, of_state.unsqueeze(0), codes)[:2]
    return states, doubles / 2


_Layer = Callable[[Tensor, list[Tensor], list[Tensor]], tuple[Tensor, ...]]
_LAYERS: dict[type[nn.Module], _Layer] = {nn.GRU: _unit, nn.LSTM: _long_short_term}


def _forward(own: Any, layer: _Layer, x: Tensor, state: Any = None) -> Any:
    """What the layer ``own`` of torch would return of x."""
    if state is not None or x.ndim != 3:
        return own_forward(own, x, state)
    outputs = x.transpose(0, 1) if own.batch_first else x
    last = []
    for number in range(own.num_layers):
        weights = [getattr(own, f"{name}_l{number}") for name in ("weight_ih", "weight_hh")]
        biases = [weights[0].new_zeros(len(weights[0]))] * 2
        if own.bias:
            biases = [getattr(own, f"{name}_l{number}") for name in ("bias_ih", "bias_hh")]
        found, *rest = layer(outputs, weights, biases)
        outputs = found.squeeze(0)
        last.append([found[:, -1], *rest])
    final = [torch.cat(of_layers) for of_layers in zip(*last, strict=True)]
    return (outputs.transpose(0, 1).contiguous() if own.batch_first else outputs), final[0] if len(
        final
    ) == 1 else tuple(final)


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
