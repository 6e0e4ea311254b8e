"""Loops compiled by numba on their first call in a process, and cached beside their source if that can be written.

Compiling takes up to a second a loop, reading the cache some hundredths, and importing a module with such loops a third
of a second: import it only where a loop is about to run, and only if `can_compile`. numba takes 200 MB and may be
absent; numpy then computes the same, more slowly.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., object])


@cache
def can_compile() -> bool:
    """Return whether numba is installed."""
    return find_spec("numba") is not None


def compiled(*liberties: str) -> Callable[[Loop], Loop]:
    """Compile a loop, without Python's lock; ``liberties`` are LLVM's with floats (``fastmath``)."""
    from numba import njit  # noqa: PLC0415 -- may be missing if no loop is needed

    def of(loop: Loop) -> Loop:
        def made(kept: bool) -> Loop:
            return cast(Loop, njit(cache=kept, nogil=True, error_model="numpy", fastmath=set(liberties))(loop))

        try:
            return made(kept=True)
        except RuntimeError:  # no place for the cache, as in a container with a read-only disk
            return made(kept=False)

    return of
