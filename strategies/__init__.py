"""Flower strategies with user-level differential privacy.

Each is a Flower `Strategy`; give it a problem, public facts about the users and a budget, and start it on any grid.
They are imported on first use, so that nobody waits for those of others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from strategies.base import UserLevelStrategy
from strategies.options import StrategyOptions
from strategies.plan import Plan, PublicFacts
from strategies.protocol import model_record, model_vector
from strategies.registry import STRATEGIES
from strategies.results import PrivateResult, RoundRecord

if TYPE_CHECKING:
    from strategies.adaptive_clipping import AdaptiveClipping
    from strategies.averaged_clipping import AveragedClipping
    from strategies.averaged_clipping_restarted import RestartedAveragedClipping
    from strategies.client import client_app
    from strategies.drop_in import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping
    from strategies.fed_avg import DPFedAvg
    from strategies.fed_sgd import DPFedSGD, NonPrivate
    from strategies.ftrl import DPFTRL
    from strategies.iterative_mean import IterativeMeanSGD
    from strategies.local_dp import LocalDPSGD
    from strategies.localized import LocalizedRobustSGD
    from strategies.localized_clipping import LocalizedClipping
    from strategies.outlier_removal import OutlierRemovalSGD
    from strategies.output_perturbation import SparseOutputPerturbation
    from strategies.poisson_sample_sgd import PoissonSampleSGD
    from strategies.private_lasso import PrivateLasso
    from strategies.projected_sgd import ProjectedSGD
    from strategies.recentred import RecentredClipping
    from strategies.robust_frank_wolfe import RobustFrankWolfe
    from strategies.robust_rounds import RobustRounds
    from strategies.sample_clipped import SampleClippedSGD
    from strategies.smoothed_truncation import SmoothedTruncationGD
    from strategies.sparse_optimisation import SparseOptimisation
    from strategies.sparse_regression import PrivateHardThresholding
    from strategies.stopped_sgd import StoppedSGD
    from strategies.winsorized_rotation import WinsorizedRotation

__all__ = [
    "DPFTRL",
    "STRATEGIES",
    "AdaptiveClipping",
    "AveragedClipping",
    "DPFedAvg",
    "DPFedSGD",
    "DropInAdaptiveClipping",
    "DropInFedAvg",
    "DropInRecentredClipping",
    "IterativeMeanSGD",
    "LocalDPSGD",
    "LocalizedClipping",
    "LocalizedRobustSGD",
    "NonPrivate",
    "OutlierRemovalSGD",
    "Plan",
    "PoissonSampleSGD",
    "PrivateHardThresholding",
    "PrivateLasso",
    "PrivateResult",
    "ProjectedSGD",
    "PublicFacts",
    "RecentredClipping",
    "RestartedAveragedClipping",
    "RobustFrankWolfe",
    "RobustRounds",
    "RoundRecord",
    "SampleClippedSGD",
    "SmoothedTruncationGD",
    "SparseOptimisation",
    "SparseOutputPerturbation",
    "StoppedSGD",
    "StrategyOptions",
    "UserLevelStrategy",
    "WinsorizedRotation",
    "client_app",
    "model_record",
    "model_vector",
]

_HOMES = {place.partition(":")[2]: place.partition(":")[0] for place in STRATEGIES.places.values()}
_HOMES |= {f"DropIn{name}": "strategies.drop_in" for name in ("AdaptiveClipping", "FedAvg", "RecentredClipping")}
_HOMES["client_app"] = "strategies.client"


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
