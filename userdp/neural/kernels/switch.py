"""Whose layers compute gradients: those of this room where they are known to give the same, or torch's alone."""

from collections.abc import Callable, Mapping
from typing import Literal

from torch import nn

from userdp.neural.kernels.attention import with_own_attention
from userdp.neural.kernels.lookups import with_late_lookups
from userdp.neural.kernels.recurrent import with_own_recurrence
from userdp.neural.kernels.way_back import with_way_back

Kernels = Literal["own", "torch"]
Kind = Callable[[nn.Module], nn.Module]
"""Puts other routines in the place of some layers' of a module, and returns it."""


def with_own_layers(module: nn.Module) -> nn.Module:
    """The module with late lookups, and own recurrences and attention."""
    return with_own_attention(with_own_recurrence(with_late_lookups(module)))


LAYERS: Mapping[Kernels, Kind] = {"own": with_own_layers, "torch": with_way_back}
"""The layers of each setting; torch's recurrent ones keep a way back on every device."""
