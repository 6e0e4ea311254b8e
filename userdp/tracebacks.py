"""Tracebacks of errors that are the caller's to fix: the caller's own lines, and none of what lies below."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from userdp.errors import UserdpError

DEBUG = "USERDP_DEBUG"
"""The environment variable that is 1 where whole tracebacks are wanted."""

P = ParamSpec("P")
R = TypeVar("R")


def shows_internals() -> bool:
    """Whether whole tracebacks are wanted."""
    return os.environ.get(DEBUG) == "1"


@contextmanager
def with_internals() -> Iterator[None]:
    """Whole tracebacks within this block, and in the processes that it starts."""
    before = os.environ.get(DEBUG)
    os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[DEBUG]
        else:
            os.environ[DEBUG] = before


def without_internals(call: Callable[P, R]) -> Callable[P, R]:
    """A public function whose errors end at the line that called it.

    A `UserdpError` keeps its type, its sentence and the cause that it names, such as an exception of the caller's own
    module. Any other exception is a defect and keeps its whole traceback.
    """

    @wraps(call)
    def public(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except UserdpError as error:
            if shows_internals():
                raise
            raise error.with_traceback(None) from error.__cause__  # USERDP_DEBUG=1 shows the whole traceback

    return public
