"""Strategies that work on single samples; what they promise a user follows from how many samples it holds."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.samples.batch_rounds import (
        BATCH_MEANING,
        BatchOptions,
        SampleRateOptions,
        accounted,
        balanced_batch,
        clamped_batch,
        drawn_apart,
        noise_numbers,
        promised_numbers,
        sample_rate,
        sample_sum,
    )
    from strategies.samples.sample_options import (
        MEANINGS,
        OutputAverage,
        SampleLevelOptions,
        clipped_sum,
        corner_of,
        most_of,
        rounds_by_theory,
        samples_of,
        whole_rounds,
    )

__all__ = [
    "BATCH_MEANING",
    "MEANINGS",
    "BatchOptions",
    "OutputAverage",
    "SampleLevelOptions",
    "SampleRateOptions",
    "accounted",
    "balanced_batch",
    "clamped_batch",
    "clipped_sum",
    "corner_of",
    "drawn_apart",
    "most_of",
    "noise_numbers",
    "promised_numbers",
    "rounds_by_theory",
    "sample_rate",
    "sample_sum",
    "samples_of",
    "whole_rounds",
]

__getattr__, __dir__ = lazily(__name__)
