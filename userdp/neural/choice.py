"""How a module's gradients are computed: users one after the other, or several at once."""

from dataclasses import dataclass
from typing import Literal

Execution = Literal["auto", "loop", "grouped"]


@dataclass(frozen=True)
class Choice:
    """How gradients are computed.

    Attributes:
        grouped: whether several users are computed at once.
        samples: most of a group.
        own_layers: whether layers are computed as `userdp.neural.own` does; groups need that.
        seconds: time of a sample when it was measured; None where there was no choice.
    """

    grouped: bool
    samples: int
    own_layers: bool
    seconds: float | None = None
