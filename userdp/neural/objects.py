"""Modules, losses and metrics that Python gives as objects: a configuration names them by the digest of their code."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from userdp.errors import BadInput
from userdp.named import keep_object
from userdp.neural.contents import described, functions
from userdp.neural.isolation import as_trained
from userdp.neural.problem import made_by

_RECORDED = ("builtins", "functools", "torch")  # libraries whose versions a run records, in place of their source


def place_of(value: Callable[..., Any], field: str) -> str:
    """Keep an object for this process, and return the place by which a configuration names it.

    The digest in it is of the source of the object, of its layers and of the functions in them, what closures and
    defaults hold, and the layers with their shapes and attributes. A module also has its values in it, a function or
    class only what it makes. ``field`` of [problem] gets the object. Raises `BadInput` if that is "module" and cannot
    be trained, or if there is no source.
    """
    root: Any = value
    while isinstance(root, partial):
        root = root.func
    kind = root if isinstance(root, type | FunctionType) else type(root)
    kinds, contents, seen = [kind], [value], set[int]()
    if field == "module":
        made = as_trained(made_by(value, seed=0), torch.float64)
        kinds += map(type, made.modules())
        contents = [made] if isinstance(value, nn.Module) else [*contents, made.to("meta")]
    for thing in contents:  # what functions hold may hold further functions
        for one in functions(thing):
            if id(one) not in seen:
                seen.add(id(one))
                kinds += [one] if isinstance(one, FunctionType) else []
                contents += _held(one)
    sources = [_source(one, field) for one in dict.fromkeys(_with_bases(kinds))]
    told = repr((sources, sorted(described(contents).items())))
    return keep_object(value, kind.__qualname__, sha256(told.encode()).hexdigest())


def _held(function: FunctionType | MethodType) -> list[Any]:
    """Return what a function holds beside its source: defaults, and the values of its closure; of a method its own."""
    if isinstance(function, MethodType):
        return [function.__func__, function.__self__]
    cells: tuple[CellType, ...] = function.__closure__ or ()
    return [function.__defaults__, function.__kwdefaults__, [cell.cell_contents for cell in cells]]


def _with_bases(kinds: list[Any]) -> Iterator[Any]:
    for kind in kinds:
        for one in kind.__mro__ if isinstance(kind, type) else (kind,):
            if one.__module__.partition(".")[0] not in _RECORDED:
                yield one


def _source(kind: Any, field: str) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        methods = [one for one in vars(kind).values() if isinstance(one, FunctionType)]
        if isinstance(kind, type) and methods:  # a notebook has the source of methods, and not of classes
            return "".join(_source(one, field) for one in methods)
    raise BadInput(
        f"problem.{field} = {kind.__qualname__}: its source cannot be read, and the record of a run needs its digest: "
        f"define it in a file or a notebook, or name the file, 'file.py:{kind.__qualname__}'"
    )
