"""A module's trainable parameters as one flat vector, in the module's order."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from userdp.arrays.types import Vector
from userdp.errors import BadInput


class Parameters:
    """Where each trainable parameter of a module lies in the vector.

    Attributes:
        shapes: by name, in the module's order.
        initial: (p,) their values.

    Raises:
        BadInput: nothing is trainable.
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = {name: tensor.detach() for name, tensor in module.named_parameters() if tensor.requires_grad}
        if not trainable:
            raise BadInput("problem.module has no trainable parameter; check what the factory returns")
        self.shapes: Mapping[str, torch.Size] = {name: tensor.shape for name, tensor in trainable.items()}
        self._sizes = [shape.numel() for shape in self.shapes.values()]
        self.initial = cast(Vector, torch.cat([each.reshape(-1) for each in trainable.values()]).double().numpy())

    def named(self, models: Tensor) -> dict[str, Tensor]:
        """Parameters by name of models (..., p), as views."""
        pieces = torch.split(models, self._sizes, dim=-1)
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.reshape(*models.shape[:-1], *shape) for (name, shape), piece in named}
