"""Phases whose iterates stay private: what their guarantee takes, and the average iterate, which they release."""

from collections.abc import Mapping

import numpy as np

from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.base import Certificate

ADVERSARY = "against whoever sees the released models; nodes of a phase and the server see its iterates and are trusted"
"""Who may see what, where noise is added once a phase."""

ASSUMPTIONS = (
    "every user's answer is the certified function of the model: nodes are honest",
    "data lie in the declared bounds (they are clipped into them)",
    "n and who takes part are public",
)
"""What every guarantee of a phase rests on."""


def check_contractive(
    strategy: str,
    certificate: Certificate,
    learning_rate: float | None,
    *,
    opted_out: bool,
    needed_then: Mapping[str, float | None],
) -> None:
    """Refuse losses and step sizes for which steps are not proven to be contractive.

    Args:
        strategy: its name.
        certificate: of the loss.
        learning_rate: of the first phase, where it is set.
        opted_out: a loss without certificate is accepted, and no privacy is promised.
        needed_then: options that must be set for such a loss, beside the learning rate.

    Raises:
        MissingAssumption: the loss is not certified, and nobody has opted out.
        BadInput: an option is not set that a loss without certificate needs, or the step is too long.
    """
    if not opted_out:
        certificate.require_contractive(strategy)
    elif certificate.missing() and None in (*needed_then.values(), learning_rate):
        names = " and ".join(f"strategy.{name}" for name in (*needed_then, "learning_rate"))
        raise BadInput(f"{names} must be given for a loss without certificate")
    if learning_rate and certificate.smoothness and learning_rate > 2 / certificate.smoothness:
        raise BadInput(
            f"strategy.learning_rate = {learning_rate:g}: must be at most 2 / smoothness = "
            f"{2 / certificate.smoothness:.6g}, beyond which steps of this loss are not proven to be contractive"
        )


def uncertified(certificate: Certificate) -> Guarantee | None:
    """That nothing is promised, for a loss that lacks a part of its certificate."""
    missing = certificate.missing()
    return Guarantee.none(f"the loss lacks {', '.join(missing)}") if missing else None


class PhaseAverage:
    """The average iterate of the phase under way, NOT private before noise is added.

    Args:
        dimension: p.
    """

    def __init__(self, dimension: int) -> None:
        self._sum, self._count = np.zeros(dimension), 0

    def restart(self) -> None:
        """For a new phase."""
        self._sum, self._count = np.zeros_like(self._sum), 0

    def add(self, x: Vector) -> None:
        """One more iterate, (p,)."""
        self._sum += x
        self._count += 1

    @property
    def value(self) -> Vector:
        """(p,) of the iterates since the phase began."""
        return self._sum / self._count
