"""Random numbers of a module, drawn from each user's own stream and never from generators that others use.

Modules draw from generators that a whole process shares, above all torch's. Within `own_randomness` these start from a
key, and afterwards they are put back, so that a module's draws change nothing outside.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from userdp.arrays.types import Array
from userdp.data.block import Block


def _generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's generators that all code of this process shares, on the processor and the device."""
    if device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


def torch_state(device: torch.device) -> list[Tensor]:
    """Return the state of torch's generators, which changes with every draw."""
    return [generator.get_state() for generator in _generators(device)]


def set_torch_state(device: torch.device, states: list[Tensor]) -> None:
    """Put torch's generators back."""
    for generator, state in zip(_generators(device), states, strict=True):
        generator.set_state(state)


def drawn_from(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators of torch, numpy and Python, for comparison."""
    states = b"".join(state.numpy().tobytes() for state in torch_state(device))
    name, words, *places = np.random.get_state()  # noqa: NPY002
    return states, name, np.asarray(words).tobytes(), places, random.getstate()


@contextmanager
def own_randomness(device: torch.device, key: bytes = b"") -> Iterator[None]:
    """Start the shared generators of torch, numpy and Python from a key, and put them back after the block."""
    states, numbers, others = torch_state(device), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    seed_from(device, key)
    try:
        yield
    finally:
        set_torch_state(device, states)
        np.random.set_state(numbers)  # noqa: NPY002
        random.setstate(others)


def seed_from(device: torch.device, key: bytes) -> None:
    """Start the shared generators from a key; only within `own_randomness`."""
    words = np.frombuffer(blake2b(key, digest_size=16).digest(), dtype=np.uint32)
    for generator in _generators(device):
        generator.manual_seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(words)  # noqa: NPY002  (modules may draw from it)
    random.seed(words.tobytes())


def coins(seed: int, models: Array, block: Block) -> list[bytes]:
    """Return (U,) keys of users' streams: each from the seed, the user's model (U, p) and that user's samples alone.

    User and sample numbers do not enter: if a user leaves, those of others move, and their coins would too. Every round
    has another model, and so other coins.
    """
    rows = models[:1] if models.strides[0] == 0 else models
    asked = [blake2b(np.ascontiguousarray(row, dtype=np.float64).data).digest() for row in rows]
    found = []
    for user in range(block.users):
        own = block.part(user, user + 1)
        digest = blake2b(f"{seed} {own.samples}".encode() + asked[user if len(asked) > 1 else 0])
        digest.update(np.ascontiguousarray(own.dense_features).data)
        if own.targets is not None:
            digest.update(np.ascontiguousarray(own.targets).data)
        found.append(digest.digest())
    return found
