"""Errors as people see them: short tracebacks, and no text that may quote data.

*The rule.* The text of a `UserdpError` names fields, values of settings and fixes, and no cell. The text of any other
error may quote whatever its code worked on, so messages, logs and files hold its kind and its place (`told`). The
environment variable `DEBUG`, or ``--debug``, shows whole tracebacks: for the holder of the data alone.
"""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from userdp.errors import UserdpError
from userdp.extras import missing_extra

DEBUG = "USERDP_DEBUG"
"""The environment variable that asks for whole tracebacks with the value 1."""

_LIBRARIES = "site-packages"
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


def told(error: BaseException) -> str:
    """Return one line on an error for a message or a log: the text of a `UserdpError`; of any other its kind and place.

    The place is the last line of code outside of installed libraries. With `DEBUG` the text stands there instead.
    """
    if isinstance(error, UserdpError):
        return str(error)
    if shows_internals():
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _LIBRARIES not in frame.filename] or list(frames)
    place = f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    return f"{type(error).__name__}{place}; {DEBUG}=1 shows its text, which may quote data"


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
