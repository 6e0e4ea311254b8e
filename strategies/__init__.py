"""Flower strategies with user-level differential privacy.

Each is a Flower `Strategy`; give it a problem, public facts about the users and a budget, and start it on any grid.
Everything is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

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
    from strategies.registry import STRATEGIES
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

__getattr__ = names_from(
    __name__,
    {
        "strategies.adaptive_clipping": ("AdaptiveClipping",),
        "strategies.averaged_clipping": ("AveragedClipping",),
        "strategies.averaged_clipping_restarted": ("RestartedAveragedClipping",),
        "strategies.base": ("UserLevelStrategy",),
        "strategies.client": ("client_app",),
        "strategies.drop_in": ("DropInAdaptiveClipping", "DropInFedAvg", "DropInRecentredClipping"),
        "strategies.fed_avg": ("DPFedAvg",),
        "strategies.fed_sgd": ("DPFedSGD", "NonPrivate"),
        "strategies.ftrl": ("DPFTRL",),
        "strategies.iterative_mean": ("IterativeMeanSGD",),
        "strategies.local_dp": ("LocalDPSGD",),
        "strategies.localized": ("LocalizedRobustSGD",),
        "strategies.localized_clipping": ("LocalizedClipping",),
        "strategies.options": ("StrategyOptions",),
        "strategies.outlier_removal": ("OutlierRemovalSGD",),
        "strategies.output_perturbation": ("SparseOutputPerturbation",),
        "strategies.plan": ("Plan", "PublicFacts"),
        "strategies.poisson_sample_sgd": ("PoissonSampleSGD",),
        "strategies.private_lasso": ("PrivateLasso",),
        "strategies.projected_sgd": ("ProjectedSGD",),
        "strategies.protocol": ("model_record", "model_vector"),
        "strategies.recentred": ("RecentredClipping",),
        "strategies.registry": ("STRATEGIES",),
        "strategies.replies": ("Gathered", "Request"),
        "strategies.results": ("PrivateResult", "RoundRecord"),
        "strategies.robust_frank_wolfe": ("RobustFrankWolfe",),
        "strategies.robust_rounds": ("RobustRounds",),
        "strategies.sample_clipped": ("SampleClippedSGD",),
        "strategies.smoothed_truncation": ("SmoothedTruncationGD",),
        "strategies.sparse_optimisation": ("SparseOptimisation",),
        "strategies.sparse_regression": ("PrivateHardThresholding",),
        "strategies.stopped_sgd": ("StoppedSGD",),
        "strategies.winsorized_rotation": ("WinsorizedRotation",),
    },
)
