"""Modules, losses and metrics that Python gives as objects: a configuration names them by the digest of their code."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from userdp.errors import BadInput
from userdp.named import keep_object
from userdp.neural.contents import code_in, described, without_value
from userdp.neural.isolation import as_trained
from userdp.neural.problem import made_by

_RECORDED = ("builtins", "functools", "numpy", "torch")  # a run records their versions, in place of their source


def place_of(value: Callable[..., Any], field: str) -> str:
    """Keep an object for this process, and return the place by which a configuration names it.

    The digest in it is of the source of the object, of its layers and of the functions and callable objects in them,
    what closures and defaults hold, and the layers with their shapes and attributes. A module also has its values in
    it, a function or class only what it makes. ``field`` of [problem] gets the object. Raises `BadInput` if that is
    "module" and cannot be trained, if there is no source, or if a variable of a closure or an object has no value.
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
        for one in code_in(thing):
            if id(one) not in seen:
                seen.add(id(one))
                kinds += [] if isinstance(one, MethodType) else [one]
                contents += _held(one, field)
    sources = [_source(one, field) for one in dict.fromkeys(_with_bases(kinds))]
    found = described(contents)
    if (blind := without_value(found)) is not None:
        raise BadInput(
            f"problem.{field} holds a {blind}, whose value cannot be read, though the record of a run needs a digest "
            "of it: hold a number, a text, a list or an array in its place"
        )
    told = repr((sources, sorted(found.items())))
    return keep_object(value, kind.__qualname__, sha256(told.encode()).hexdigest())


def _held(code: FunctionType | MethodType | type, field: str) -> list[Any]:
    """Return what code holds beside its source: defaults, attributes, values of a closure; of a method its own."""
    if isinstance(code, MethodType):
        return [code.__func__, code.__self__, type(code.__self__)]
    if isinstance(code, type):
        return []
    cells = code.__closure__ or ()
    try:
        return [code.__defaults__, code.__kwdefaults__, vars(code), [cell.cell_contents for cell in cells]]
    except ValueError:
        raise BadInput(
            f"problem.{field}: {code.__qualname__} uses {', '.join(code.__code__.co_freevars)} from around it, and one "
            "has no value yet, though the record of a run needs a digest of all: give each its value first"
        ) from None


def _with_bases(kinds: list[Any]) -> Iterator[Any]:
    for kind in kinds:
        for one in kind.__mro__ if isinstance(kind, type) else (kind,):
            if (one.__module__ or "").partition(".")[0] not in _RECORDED:
                yield one


def _source(kind: Any, field: str) -> str:
    try:
        code = getattr(kind, "__code__", kind)  # of a decorated function its own, and not that of the one within
        return _of_lambda(code) if kind.__name__ == "<lambda>" else inspect.getsource(code)
    except (OSError, TypeError, ValueError):  # the last where Python was told to keep no columns
        methods = [one for one in vars(kind).values() if isinstance(one, FunctionType)]
        if isinstance(kind, type) and methods:  # a notebook has the source of methods, and not of classes
            return "".join(_source(one, field) for one in methods)
    raise BadInput(
        f"problem.{field} = {kind.__qualname__}: its source cannot be read, and the record of a run needs its digest: "
        f"define it in a file or a notebook, or name the file, 'file.py:{kind.__qualname__}'"
    )


def _of_lambda(code: CodeType) -> str:
    """Return the lines of a lambda, and its place in them: a line may hold several, and `inspect` gives one line."""
    places = code.co_positions()
    spans = [(first, left or 0, last, right) for first, last, left, right in places if first and last and right]
    (first, left), (last, right) = min(span[:2] for span in spans), max(span[2:] for span in spans)
    begin = code.co_firstlineno
    lines = inspect.findsource(code)[0][begin - 1 : last]
    return repr((lines, first - begin, left, right))
