"""A module's trainable parameters as one flat vector, and files of them."""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.embeddings import Tables

_MOST_NAMES = 3  # Names in a message.


class Parameters:
    """The places of a module's trainable parameters in the vector; `BadInput` refuses a module without any.

    Attributes:
        shapes: by name, in the module's order.
        initial: (p,) the parameters' values.
        tables: those that layers of embeddings read; None for none.
        table_names: their names.
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = {name: tensor.detach() for name, tensor in module.named_parameters() if tensor.requires_grad}
        if not trainable:
            raise BadInput("problem.module has no trainable parameter; check what the factory returns")
        self.shapes: Mapping[str, torch.Size] = {name: tensor.shape for name, tensor in trainable.items()}
        self._sizes = [shape.numel() for shape in self.shapes.values()]
        self.initial = _flat(trainable.values())
        layers = (layer for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
        read = {layer.weight.data_ptr() for layer in layers}
        firsts = np.cumsum([0, *self._sizes]).tolist()
        places = {
            name: (first, *tensor.shape)
            for first, (name, tensor) in zip(firsts, trainable.items(), strict=False)
            if tensor.data_ptr() in read
        }
        self.tables, self.table_names = Tables(tuple(places.values())) if places else None, frozenset(places)

    def named(self, models: Tensor) -> dict[str, Tensor]:
        """Return the parameters of models (..., p) by name, as views."""
        pieces = torch.split(models, self._sizes, dim=-1)
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.reshape(*models.shape[:-1], *shape) for (name, shape), piece in named}

    def of_state(self, module: nn.Module, state: Mapping[str, Tensor], told: str) -> Vector:
        """Return (p,) the trained parameters of the whole module's state_dict; ``told`` begins error messages.

        Raises `BadInput` if names or shapes are not the module's, or an untrained tensor differs: nodes make it anew.
        """
        fixed = {name: tensor for name, tensor in module.state_dict().items() if name not in self.shapes}
        shapes = {**self.shapes, **{name: tensor.shape for name, tensor in fixed.items()}}
        factory = "name the factory that made it as problem.module"
        _refuse(shapes.keys() - state.keys(), f"{told} lacks", factory)
        _refuse(state.keys() - shapes.keys(), f"{told} holds, and the module lacks,", factory)
        wrong = (
            f"{name} {tuple(state[name].shape)} in place of {tuple(shape)}"
            for name, shape in shapes.items()
            if state[name].shape != shape
        )
        _refuse(wrong, f"{told} has shapes that do not fit,", factory)
        _refuse(
            (name for name, tensor in fixed.items() if not torch.equal(state[name].to(tensor.dtype), tensor)),
            f"{told} has other values of untrained tensors,",
            "have the factory in problem.module set them, because every node makes the module by it",
        )
        return _flat(state[name].detach() for name in self.shapes)


def _flat(tensors: Iterable[Tensor]) -> Vector:
    return cast(Vector, torch.cat([each.double().reshape(-1) for each in tensors]).numpy())


def _refuse(found: Iterable[str], told: str, remedy: str) -> None:
    names = sorted(found)
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise BadInput(f"{told} {', '.join(names[:_MOST_NAMES])}{more}: {remedy}")


def read_state(path: Path, told: str) -> Mapping[str, Tensor]:
    """Read the tensors by name from a file of `torch.save`, without running code in it; `BadInput` for others."""
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
        raise BadInput(
            f"{told} cannot be read by torch.load(weights_only=True) ({type(error).__name__}): save "
            "module.state_dict() alone, by torch.save"
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BadInput(f"{told} holds a {type(state).__name__} that is no state_dict: save module.state_dict() alone")
    return state
