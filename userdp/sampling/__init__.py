"""The users of each round: one sampler draws the cohorts and is the one that a ledger accounts."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily
from userdp.sampling.allocated import AllocatedBatches
from userdp.sampling.base import Sampler, check_batch
from userdp.sampling.concentrated import ConcentratedBatches
from userdp.sampling.correlated import CorrelatedBatches
from userdp.sampling.disjoint import CyclicBatches, DisjointBatches, LaplaceBatches, WeightedBatches, WeightedSlots
from userdp.sampling.random_cohorts import FixedSizeBatches, MixedBatches, PoissonBatches
from userdp.sampling.samples import PoissonSamples

if TYPE_CHECKING:
    from userdp.sampling.random_cohorts import DRAWN_TOGETHER

__all__ = [
    "DRAWN_TOGETHER",
    "AllocatedBatches",
    "ConcentratedBatches",
    "CorrelatedBatches",
    "CyclicBatches",
    "DisjointBatches",
    "FixedSizeBatches",
    "LaplaceBatches",
    "MixedBatches",
    "PoissonBatches",
    "PoissonSamples",
    "Sampler",
    "WeightedBatches",
    "WeightedSlots",
    "check_batch",
]

__getattr__, __dir__ = lazily(__name__)
