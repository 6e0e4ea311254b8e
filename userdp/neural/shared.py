"""Modules that share what is never trained: between copies, and between the users of a call."""

import copy
from typing import Any, Self

from torch import nn


class SharedModule(nn.Module):
    """A module that never writes to its parameters, whose copies therefore share their memory.

    Copies hold the same memory, and the same counts of writes, so `userdp.neural.contents.Marks` sees a write by any of
    them. Its samples may be of any length.

    Attributes:
        side_by_side: whether a call may hold parameters (U, ...) of U users with as many samples each, in user order,
            so that a group needs no `torch.func.vmap`.
        mixed: whether it computes in bfloat16, with trained parameters in float32.
        adapts: whether what is trained is an adapter, every tensor of which has to move.
    """

    side_by_side = False
    mixed = False
    adapts = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything but the memory of parameters."""
        memo.update((id(one), nn.Parameter(one.detach(), one.requires_grad)) for one in self.parameters())
        other = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other
