"""Who takes part in a round: the sampler that a ledger accounts is the one that is drawn from."""

from userdp.sampling.allocated import AllocatedBatches
from userdp.sampling.base import Sampler
from userdp.sampling.concentrated import ConcentratedBatches
from userdp.sampling.correlated import CorrelatedBatches
from userdp.sampling.disjoint import CyclicBatches, DisjointBatches, LaplaceBatches, check_batch
from userdp.sampling.mixed import MixedBatches
from userdp.sampling.random_cohorts import FixedSizeBatches, PoissonBatches
from userdp.sampling.samples import PoissonSamples
from userdp.sampling.weighted import WeightedBatches, WeightedSlots

__all__ = [
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
