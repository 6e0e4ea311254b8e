"""What becomes of a round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from userdp.arrays.types import Vector
from userdp.noise import NoiseSource

Noise = Callable[[int], NoiseSource]
"""Opens the noise of a round for one purpose; each release of a round has a purpose of its own."""


@dataclass(frozen=True)
class Step:
    """The result of a round.

    Attributes:
        following: (p,) where the next round asks for gradients; private itself only if it is released.
        released: (p,) the newly released model; None if the round releases nothing.
        facts: numbers to keep of the round; exact ones have names that end in ``_private``.
        constant: (p,) the best that is known of the models that predict the same of everybody, released like all that
            it follows from, in the loss's own parameters; None if the round says nothing of it.
        goes_back: whether the next round asks at the released model, and ``following`` is dropped.
    """

    following: Vector
    released: Vector | None
    facts: Mapping[str, float] = field(default_factory=dict)
    constant: Vector | None = None
    goes_back: bool = False
