"""How loops are compiled: by numba, when a process first calls them, and kept beside their source where that may be.

Compiling takes up to a second a loop, reading what was kept some hundredths. Importing a module with such loops takes a
third of a second, so only who is about to call one should; and only where `can_compile`, for numba, which takes 200 MB,
may be left out: without it everything is computed by numpy alone, more slowly.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., object])


@cache
def can_compile() -> bool:
    """Whether numba is there."""
    return find_spec("numba") is not None


def compiled(*liberties: str) -> Callable[[Loop], Loop]:
    """A loop compiled, which lets other threads go on; with these of LLVM's liberties with floats (``fastmath``)."""
    from numba import njit  # noqa: PLC0415 -- may be missing, where nobody asks for a loop

    def of(loop: Loop) -> Loop:
        def made(kept: bool) -> Loop:
            return cast(Loop, njit(cache=kept, nogil=True, error_model="numpy", fastmath=set(liberties))(loop))

        try:
            return made(kept=True)
        except RuntimeError:  # nowhere to keep it, as in a container whose disk cannot be written
            return made(kept=False)

    return of
