"""The seeds of what users and nodes draw in a round; the loop puts them into every request."""

from dataclasses import replace

from userdp.nodes.computations import Computation
from userdp.randomness import stream

_ORDER = 8
"""Label that keeps the order of users' samples apart from who takes part."""


def seeded(computation: Computation, index: int, seed: int, noise_seed: int | None) -> Computation:
    """The computation in round ``index``.

    Args:
        computation: as the scheme asks it, with no seed.
        index: of the round, from 0.
        seed: of the order of users' samples, where they take minibatches.
        noise_seed: of SIMULATED noise and masks; None for those of the operating system of whoever draws them.
    """
    if computation.noise is not None:
        computation = replace(computation, noise=replace(computation.noise, seed=noise_seed, round=index))
    if computation.masked is not None:
        computation = replace(computation, masked=replace(computation.masked, seed=noise_seed, round=index))
    if computation.parameters.get("batch_size"):
        key = float(stream(seed, "sampling", index, _ORDER).integers(1, 2**53))
        computation = replace(computation, parameters={**computation.parameters, "key": key})
    return computation
