"""nn.GRU and nn.LSTM for many users at once, each with weights of its own.

torch's own layers have no rule for batches of weights (`torch.func.vmap` refuses them) and, on a processor, keep a
graph of every step and add up weights' gradients step by step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from userdp.neural.kernels.gated_unit import gated_unit
from userdp.neural.kernels.long_short_term import long_short_term
from userdp.neural.kernels.way_back import own_forward, with_way_back

_Layer = Callable[[Tensor, list[Tensor], list[Tensor]], tuple[Tensor, ...]]
_LAYERS: dict[type[nn.Module], _Layer] = {nn.GRU: gated_unit, nn.LSTM: long_short_term}


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


def with_own_recurrence(module: nn.Module) -> nn.Module:
    """The same, whose layers of nn.GRU and nn.LSTM are computed here, where that is known how."""
    for part in with_way_back(module).modules():
        layer = _LAYERS.get(type(part))
        if layer is not None and not part.bidirectional and not getattr(part, "proj_size", 0):
            part.forward = partial(_forward, part, layer)
    return module
