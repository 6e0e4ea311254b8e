"""The layers that compute gradients: this room's where they give the same, or torch's alone."""

from collections.abc import Callable, Mapping
from typing import Literal

from torch import nn

from userdp.neural.kernels.attention import with_own_attention
from userdp.neural.kernels.lookups import with_late_lookups
from userdp.neural.kernels.recurrent import with_own_recurrence, with_way_back

Kernels = Literal["own", "torch"]
Kind = Callable[[nn.Module], nn.Module]  # Replaces routines of some of a module's layers, and returns the module.


def with_own_layers(module: nn.Module) -> nn.Module:
    """Replace embeddings, recurrences and attention by this room's."""
    return with_own_attention(with_own_recurrence(with_late_lookups(module)))


LAYERS: Mapping[Kernels, Kind] = {"own": with_own_layers, "torch": with_way_back}
