"""A module whose layers are computed by routines of this package, where those are known to give the same."""

from torch import nn

from userdp.neural.attention import with_own_attention
from userdp.neural.lookups import with_late_lookups
from userdp.neural.recurrent import with_own_recurrence


def with_own_layers(module: nn.Module) -> nn.Module:
    """The module with late lookups, and own recurrences and attention."""
    return with_own_attention(with_own_recurrence(with_late_lookups(module)))
