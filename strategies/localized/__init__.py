"""Strategies that release once per phase, from steps on fresh users."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.localized.phases import (
        PHASE_ABOUT,
        PHASE_FACT,
        PHASE_MEANINGS,
        Phase,
        PhaseRounds,
        check_contractive,
        gradient_rounding,
        phase_rounding,
        phase_rounds,
    )

__all__ = [
    "PHASE_ABOUT",
    "PHASE_FACT",
    "PHASE_MEANINGS",
    "Phase",
    "PhaseRounds",
    "check_contractive",
    "gradient_rounding",
    "phase_rounding",
    "phase_rounds",
]

__getattr__, __dir__ = lazily(__name__)
