"""The layers that compute gradients: this room's where they give the same, or torch's with gradients on every device.

torch's nn.GRU and nn.LSTM have no rule for batches of weights (`torch.func.vmap` refuses them). On a processor they
keep a graph of every step and sum weights' gradients step by step; on a GPU cuDNN refuses those in evaluation mode.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from userdp.neural.kernels.attention import with_own_attention
from userdp.neural.kernels.recurrence import gated_unit, long_short_term

Kernels = Literal["own", "torch"]
Kind = Callable[[nn.Module], nn.Module]  # Replaces routines of some of a module's layers, and returns the module.
_Layer = Callable[[Tensor, list[Tensor], list[Tensor]], tuple[Tensor, ...]]
_LAYERS: dict[type[nn.Module], _Layer] = {nn.GRU: gated_unit, nn.LSTM: long_short_term}


def own_forward(layer: nn.RNNBase, *arguments: Any) -> Any:
    """Compute a recurrent layer of torch without cuDNN; on a processor nothing changes."""
    with torch.backends.cudnn.flags(enabled=False):
        return type(layer).forward(layer, *arguments)


def with_way_back(module: nn.Module) -> nn.Module:
    """Let torch's recurrent layers of the module compute gradients on every device."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.forward = partial(own_forward, part)
    return module


def _forward(own: Any, layer: _Layer, x: Tensor, state: Any = None) -> Any:
    if state is not None or x.ndim != 3:
        return own_forward(own, x, state)
    outputs, last = x.transpose(0, 1) if own.batch_first else x, []
    for number in range(own.num_layers):
        weights = [getattr(own, f"{name}_l{number}") for name in ("weight_ih", "weight_hh")]
        biases = [weights[0].new_zeros(len(weights[0]))] * 2
        if own.bias:
            biases = [getattr(own, f"{name}_l{number}") for name in ("bias_ih", "bias_hh")]
        found, *rest = layer(outputs, weights, biases)
        outputs = found.squeeze(0)
        last.append([found[:, -1], *rest])
    final = [torch.cat(of_layers) for of_layers in zip(*last, strict=True)]
    outputs = outputs.transpose(0, 1).contiguous() if own.batch_first else outputs
    return outputs, final[0] if len(final) == 1 else tuple(final)


def with_own_recurrence(module: nn.Module) -> nn.Module:
    """Compute the module's nn.GRU and nn.LSTM layers here; torch computes unusual ones."""
    for part in with_way_back(module).modules():
        layer = _LAYERS.get(type(part))
        if layer is not None and not part.bidirectional and not getattr(part, "proj_size", 0):
            part.forward = partial(_forward, part, layer)
    return module


def with_own_layers(module: nn.Module) -> nn.Module:
    """Replace recurrences and attention by this room's."""
    return with_own_attention(with_own_recurrence(module))


LAYERS: Mapping[Kernels, Kind] = {"own": with_own_layers, "torch": with_way_back}
