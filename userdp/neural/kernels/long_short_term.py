"""nn.LSTM with its gradient written out, as described in `userdp.neural.kernels.recurrence`.

Gain: torch cannot compute nn.LSTM for many users at once; 2.2 times as fast as its loop over users, and 1.4 times as
fast as the same steps with torch's gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from userdp.neural.kernels.recurrence import Recurrence, applied, by_user, sent_by, sigmoid_backward, steps, steps_back


class _LongShortTerm(Recurrence):
    """nn.LSTM from states and cells of zeros.

    It uses sigmoids alone, as tanh(x) = 2 sigmoid(2 x) - 1: here states are nn.LSTM's with the OTHER SIGN, cells
    DOUBLE, and the input of the third gate is double. With gates i, f, g, o, the sigmoids of their inputs,

        cell' = f cell + (4 g - 2) i,     state' = o - 2 o sigmoid(cell').

    Gate inputs are (G, L, N, 4 H).
    """

    shown = 2

    @staticmethod
    def forward(sent: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """Return states (G, L, N, H), the last cells; gates (L, G, N, 4 H), all cells, their sigmoids, and states."""
        gates = sent.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        states = gates.new_empty((len(gates) + 1, *gates.shape[1:-1], weight.shape[-1]))
        cells, sizes = torch.empty_like(states), torch.empty_like(states[1:])
        factors, state, cell = weight.mT.contiguous(), states[0].zero_(), cells[0].zero_()
        views = gates, *torch.unflatten(gates, -1, (4, -1)).unbind(-2), states[1:], cells[1:], sizes
        for rows, put, kept, new, told, next_state, next_cell, size in steps(*views):
            rows.baddbmm_(state, factors).sigmoid_()
            torch.mul(kept, cell, out=next_cell).addcmul_(put, new, value=4).sub_(put, alpha=2)
            torch.sigmoid(next_cell, out=size)
            torch.addcmul(told, told, size, value=-2, out=next_state)
            state, cell = next_state, next_cell
        # The order that modules ask for.
        by_sequence = states.new_empty([states[1:].shape[axis] for axis in (1, 2, 0, 3)])
        shown = torch.neg(states[1:].permute(1, 2, 0, 3), out=by_sequence).transpose(1, 2)
        return shown, cells[-1].clone(), gates, cells, sizes, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the gradients from the last step to the first, as `_GatedUnit` does."""
        weight, gates, cells, sizes, states = ctx.saved_tensors
        of_cell, incoming = torch.zeros_like(states[0]), torch.zeros_like(sizes)
        if gradients[0] is not None:
            torch.neg(gradients[0].transpose(0, 1), out=incoming)
        if gradients[1] is not None:
            of_cell += gradients[1]
        sent = torch.empty_like(gates)
        shares = torch.unflatten(sent, -1, (4, -1))
        kept, to_cell = _shares(shares, gates, cells[:-1], sizes)
        before = iter(incoming.unbind(0)[-2::-1])
        views = to_cell, kept, incoming, sent, shares[..., :3, :], shares[..., 3, :]
        for size, stays, flowing, rows, three, last in steps_back(*views):
            last.mul_(flowing)
            of_cell.addcmul_(flowing, size, value=-2)
            three.mul_(of_cell.unsqueeze(-2))
            of_cell.mul_(stays)
            if (earlier := next(before, None)) is not None:
                earlier.baddbmm_(rows, weight)
        return sent.transpose(0, 1), torch.bmm(by_user(sent).mT, by_user(states[:-1]))


def _shares(shares: Tensor, gates: Tensor, cells: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Compute all steps' factors of a cell's gradient for the cell before, and of a state's for its cell, over -2.

    ``shares`` (L, G, N, 4, H) are overwritten with the factors of a cell's gradient for the inputs of the first three
    gates, and of a state's for that of the last. ``gates`` are (L, G, N, 4 H), ``cells`` (L, G, N, H) before each step,
    ``sizes`` (L, G, N, H) the sigmoids of cells after it.
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
    return kept, sigmoid_backward(shown, sizes)


def long_short_term(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
    """Compute outputs (1, L, N, H) and last cells (1, N, H) of nn.LSTM for inputs (L, N, I)."""
    size = weights[1].shape[1]
    double = weights[0].new_ones(4, size)
    double[2] = 2
    double = double.flatten()
    of_input, of_state = weights[0] * double[:, None], weights[1] * -double[:, None]
    sent = sent_by(x, of_input, (biases[0] + biases[1]) * double)
    states, doubles = applied(_LongShortTerm, sent, of_state.unsqueeze(0))[:2]
    return states, doubles / 2
