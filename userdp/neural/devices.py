"""Where modules are computed: found in the process that computes, and made to give the same numbers everywhere."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from userdp.errors import BadInput
from userdp.problems.devices import Device

DEVICES = ("auto", "cpu", "cuda")

_TRIM_THRESHOLD, _MAP_THRESHOLD = -1, -3
"""What glibc's mallopt calls them."""
_KEPT, _MAPPED = 512 * 2**20, 32 * 2**20
"""Free bytes that are kept, and those of the largest piece that is; it takes no larger one."""


def found(device: Device) -> torch.device:
    """The device in this process: of several GPUs the first one that it may see.

    Raises:
        BadInput: a GPU is asked for, and torch finds none.
    """
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise BadInput(
            "engine.device = 'cuda': torch finds no GPU in this process; use engine.device = 'auto' or 'cpu', or "
            "install a driver and a torch that is built for it"
        )
    return torch.device("cuda" if there and device != "cpu" else "cpu")


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to half a gibibyte, to use it again; where its allocator can be told to.

    What is computed of one user after the other is of about one size. glibc gives it back to the operating system each
    time, and asks for it again page by page, which can take much of the time of many users computed at once.
    """
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    for parameter, size in ((_TRIM_THRESHOLD, _KEPT), (_MAP_THRESHOLD, _MAPPED)):
        tell(parameter, size)


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """One thread on the processor, as many as before afterwards; on a GPU full float32, by routines that repeat.

    Convolutions of a GPU would round their inputs to ten bits by default. Attention goes without its shortcut, which
    has no gradients for many users at once.
    """
    if device.type == "cpu":
        keep_freed_memory()
    before, shortcut = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if device.type == "cuda":
            with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
                yield
        else:
            yield
    finally:
        torch.set_num_threads(before)
        torch.backends.mha.set_fastpath_enabled(shortcut)


def seconds(device: torch.device) -> float:
    """A clock of what has been computed: the processor's own time; a GPU's, which works on alone, by waiting for it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
