"""Short tracebacks for the caller's own errors: the caller's lines, without userdp's internals."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from userdp.errors import UserdpError
from userdp.extras import missing_extra

DEBUG = "USERDP_DEBUG"
"""The environment variable that asks for whole tracebacks with the value 1."""

P = ParamSpec("P")
R = TypeVar("R")


def shows_internals() -> bool:
    """Return whether whole tracebacks are asked for."""
    return os.environ.get(DEBUG) == "1"


@contextmanager
def with_internals() -> Iterator[None]:
    """Show whole tracebacks within this block, and in the processes that it starts."""
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
    """Wrap a public function so that tracebacks of a `UserdpError` end at the line that called it.

    The error keeps its type, its message and its named cause, such as an exception of the caller's own module. Any
    other exception is a defect and keeps its whole traceback.
    """

    @wraps(call)
    def public(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None or shows_internals():
                raise
            raise missing from None
        except UserdpError as error:
            if shows_internals():
                raise
            raise error.with_traceback(None) from error.__cause__  # USERDP_DEBUG=1 shows the whole traceback

    return public
