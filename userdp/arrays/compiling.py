"""How loops are compiled: by numba, when a process first calls them, and kept beside their source where that may be.

Compiling takes up to a second a loop, reading what was kept some hundredths. Importing this module takes a third of a
second, so only who is about to call such a loop should import the module that has it.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(*liberties: str) -> Callable[[Loop], Loop]:
    """A loop compiled, which lets other threads go on; with these of LLVM's liberties with floats (``fastmath``)."""

    def of(loop: Loop) -> Loop:
        def made(kept: bool) -> Loop:
            return cast(Loop, njit(cache=kept, nogil=True, error_model="numpy", fastmath=set(liberties))(loop))

        try:
            return made(kept=True)
        except RuntimeError:  # nowhere to keep it, as in a container whose disk cannot be written
            return made(kept=False)

    return of
