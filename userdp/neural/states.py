"""A module's state_dict, read from a file as the flat vector that a model is here."""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from userdp.arrays.types import Vector
from userdp.errors import BadInput

_MOST_NAMES = 3
"""Names that a message gives."""


def read_state(path: Path, told: str) -> Mapping[str, Tensor]:
    """The tensors by name in a file of `torch.save`; nothing in it is run.

    Raises:
        BadInput: it cannot be read so, or holds something else.
    """
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


def flat(
    state: Mapping[str, Tensor], trained: Mapping[str, torch.Size], fixed: Mapping[str, Tensor], told: str
) -> Vector:
    """(p,) the trained parameters, one after the other.

    Args:
        state: of a whole module.
        trained: shapes of the parameters that make the model, in their order.
        fixed: what else the module holds. Nodes make the module anew, so it must hold the same in the file.
        told: how messages begin.

    Raises:
        BadInput: names or shapes are not the module's, or what is fixed is different.
    """
    shapes = {**trained, **{name: tensor.shape for name, tensor in fixed.items()}}
    factory = "name the factory that made it as problem.module"
    _refuse(shapes.keys() - state.keys(), f"{told} lacks", factory)
    _refuse(state.keys() - shapes.keys(), f"{told} holds, and the module lacks,", factory)
    wrong = (
        f"{name} {tuple(state[name].shape)} in place of {tuple(shape)}"
        for name, shape in shapes.items()
        if state[name].shape != shape
    )
    _refuse(wrong, f"{told} has shapes that do not fit,", factory)
    others = (name for name, tensor in fixed.items() if not torch.equal(state[name].to(tensor.dtype), tensor))
    _refuse(
        others,
        f"{told} has other values of what is not trained,",
        "have the factory in problem.module set them, for every node makes the module by it",
    )
    vector: Vector = torch.cat([state[name].detach().double().reshape(-1) for name in trained]).numpy()
    return vector


def _refuse(found: Iterable[str], told: str, remedy: str) -> None:
    """Refuse if there are any, naming the first of them."""
    names = sorted(found)
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise BadInput(f"{told} {', '.join(names[:_MOST_NAMES])}{more}: {remedy}")
