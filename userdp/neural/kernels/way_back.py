"""torch's own recurrent layers with a way back on every device.

Why: cuDNN refuses gradients of a layer in evaluation mode. "torch" keeps it, for the layers are torch's own.
"""

from functools import partial
from typing import Any

import torch
from torch import nn


def own_forward(layer: nn.RNNBase, *arguments: Any) -> Any:
    """What a recurrent layer of torch returns, by routines that have a way back.

    Those of cuDNN refuse one in evaluation mode, in which all modules are here. On a processor nothing changes.
    """
    with torch.backends.cudnn.flags(enabled=False):
        return type(layer).forward(layer, *arguments)


def with_way_back(module: nn.Module) -> nn.Module:
    """The module, whose recurrent layers are torch's own, with a way back on every device."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.forward = partial(own_forward, part)
    return module
