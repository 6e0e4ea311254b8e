"""Strategies that clip what users send and add noise to the sum."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.clipping.clipped_rounds import ClippedOptions, rounds_of
    from strategies.clipping.cohort_options import SECRET_COHORTS, NoisyMean

__all__ = ["SECRET_COHORTS", "ClippedOptions", "NoisyMean", "rounds_of"]

__getattr__, __dir__ = lazily(__name__)
