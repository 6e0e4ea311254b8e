"""Flower strategies with user-level differential privacy.

Each is a Flower `Strategy`; give it a problem, public facts about the users and a budget, and start it on any grid.
Everything is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from strategies.registry import STRATEGIES
from userdp.lazy import names_from

if TYPE_CHECKING:
    from strategies.adaptive_clipping import AdaptiveClipping
    from strategies.averaged_clipping import AveragedClipping
    from strategies.averaged_clipping_restarted import RestartedAveragedClipping
    from strategies.base import UserLevelStrategy
    from strategies.client import client_app
    from strategies.drop_in import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping
    from strategies.fed_avg import DPFedAvg
    from strategies.fed_sgd import DPFedSGD, NonPrivate
    from strategies.ftrl import DPFTRL
    from strategies.iterative_mean import IterativeMeanSGD
    from strategies.local_dp import LocalDPSGD
    from strategies.localized import LocalizedRobustSGD
    from strategies.localized_clipping import LocalizedClipping
    from strategies.options import StrategyOptions
    from strategies.outlier_removal import OutlierRemovalSGD
    from strategies.output_perturbation import SparseOutputPerturbation
    from strategies.plan import Plan, PublicFacts
    from strategies.poisson_sample_sgd import PoissonSampleSGD
    from strategies.private_lasso import PrivateLasso
    from strategies.projected_sgd import ProjectedSGD
    from strategies.protocol import model_record, model_vector
    from strategies.recentred import RecentredClipping
    from strategies.replies import Gathered, Request
    from strategies.results import PrivateResult, RoundRecord
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
    "Gathered",
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
    "Request",
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

_PLACES = [place.split(":") for place in STRATEGIES.places.values()]
__getattr__ = names_from(
    __name__,
    {
        "strategies.base": ("UserLevelStrategy",),
        "strategies.client": ("client_app",),
        "strategies.drop_in": ("DropInAdaptiveClipping", "DropInFedAvg", "DropInRecentredClipping"),
        "strategies.options": ("StrategyOptions",),
        "strategies.plan": ("Plan", "PublicFacts"),
        "strategies.protocol": ("model_record", "model_vector"),
        "strategies.replies": ("Gathered", "Request"),
        "strategies.results": ("PrivateResult", "RoundRecord"),
        "strategies.scheme": ("Scheme", "Step"),
        **{
            module: tuple(name for place, name in _PLACES if place == module)
            for module in dict.fromkeys(place for place, _ in _PLACES)
        },
    },
)
