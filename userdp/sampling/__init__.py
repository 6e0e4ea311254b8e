"""The users of each round: one sampler draws the cohorts and is the one that a ledger accounts."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily
from userdp.sampling.allocated import AllocatedBatches
from userdp.sampling.amplified_bands import AmplifiedBands
from userdp.sampling.base import NamedSampler, Sampler, Wanted, check_batch, check_whole
from userdp.sampling.coins import SampleCoins
from userdp.sampling.correlated import CorrelatedBatches
from userdp.sampling.disjoint import (
    ConcentratedBatches,
    CyclicBatches,
    DisjointBatches,
    WeightedBatches,
    WeightedSlots,
)
from userdp.sampling.random_cohorts import FixedSizeBatches, MixedBatches, PoissonBatches

if TYPE_CHECKING:
    from userdp.sampling.random_cohorts import DRAWN_TOGETHER

__all__ = [
    "DRAWN_TOGETHER",
    "AllocatedBatches",
    "AmplifiedBands",
    "ConcentratedBatches",
    "CorrelatedBatches",
    "CyclicBatches",
    "DisjointBatches",
    "FixedSizeBatches",
    "MixedBatches",
    "NamedSampler",
    "PoissonBatches",
    "SampleCoins",
    "Sampler",
    "Wanted",
    "WeightedBatches",
    "WeightedSlots",
    "check_batch",
    "check_whole",
]

__getattr__, __dir__ = lazily(__name__)
