"""Devices for modules: found in the computing process, and set to give the same numbers everywhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from userdp.errors import BadInput
from userdp.problems.base import Device

DEVICES = ("auto", "cpu", "cuda")


def found(device: Device) -> torch.device:
    """Return the first GPU visible to this process, or the processor; `BadInput` if a required GPU is missing."""
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise BadInput(
            "engine.device = 'cuda': torch finds no GPU in this process; use engine.device = 'auto' or 'cpu', or "
            "install a driver and a torch that is built for it"
        )
    return torch.device("cuda" if there and device != "cpu" else "cpu")


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """Compute with one thread on the processor; on a GPU in full float32, by deterministic routines.

    Convolutions of a GPU would round their inputs to ten bits by default. Attention's shortcut is off, because it has
    no gradients for many users at once.
    """
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
    """Read a clock of computing: the processor's own time, or that of a GPU after waiting for its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
