"""What a strategy does differently where noise is secure (`userdp.noise.SecureNoise`): refuse, ask, and say so."""

from dataclasses import replace

from strategies.wire.replies import Request
from userdp.accounting import NoiseKind, Privacy, Unit
from userdp.errors import BadInput

_OPERATING_SYSTEM = "noise comes from the operating system's randomness, which nobody can predict"

SECURE_ASSUMPTIONS: dict[Unit, tuple[str, ...]] = {
    "user": (_OPERATING_SYSTEM, "users are computed one by one, and equal data give equal bits"),
    "sample": (_OPERATING_SYSTEM, "the last bits of a sample's gradient do not depend on the user's other samples"),
}
"""What secure noise rests on, by the unit of privacy."""

NOISE_SOURCES: dict[NoiseKind, str] = {
    "seeded": "seeded (simulation only: whoever knows the seed removes the noise)",
    "secure": "secure (the operating system's randomness, safe in floating point; never seeded: running again draws "
    "other noise and spends the budget again)",
}
"""Where noise comes from, for people."""


def check_noise(privacy: Privacy, strategy: str, objection: str | None) -> None:
    """Refuse secure noise where rounding is not accounted for.

    Raises:
        BadInput: secure noise is asked for and there is an objection.
    """
    if privacy.noise == "secure" and objection is not None:
        raise BadInput(
            f"privacy.noise = 'secure': {strategy} has no proof for it, because {objection}; use recentred_clipping or "
            "another clipping strategy, or noise = 'seeded' for a simulation"
        )


def separately(request: Request) -> Request:
    """The request, with users computed one by one."""
    return replace(request, computation=replace(request.computation, separate=True))
