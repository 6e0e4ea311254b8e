"""The result of a round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from userdp.arrays.types import Vector
from userdp.noise import NoiseSource

Noise = Callable[[int], NoiseSource]  # Opens the noise of a round for one purpose, one for each release


@dataclass(frozen=True)
class Step:
    """The result of a round."""

    following: Vector  # (p,) where the next round asks for gradients; private itself only if it is released
    released: Vector | None  # (p,) the newly released model; None if the round releases nothing
    facts: Mapping[str, float] = field(default_factory=dict)  # of the round; names of exact ones end in ``_private``
    # (p,) the best known model of those that predict the same of everybody, in the loss's own parameters and computed
    # from releases; None for no news
    constant: Vector | None = None
    goes_back: bool = False  # whether the next round asks at the released model, and ``following`` is dropped
