"""Flower strategies with user-level differential privacy.

Each is a Flower `Strategy`; give it a problem, public facts about the users and a budget, and start it on any grid.
Everything is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from strategies.registry import STRATEGIES
from userdp.lazy import names_from

if TYPE_CHECKING:
    from strategies.auto.auto import Auto
    from strategies.auto.preparation import LearnCoordinates
    from strategies.clipping.adaptive_clipping import AdaptiveClipping
    from strategies.clipping.dp_fed_avg import DPFedAvg
    from strategies.clipping.dp_fed_sgd import DPFedSGD
    from strategies.clipping.dp_ftrl import DPFTRL
    from strategies.clipping.local_dp import LocalDP
    from strategies.clipping.projected_sgd import ProjectedSGD
    from strategies.clipping.recentred_clipping import RecentredClipping
    from strategies.core.base import UserLevelStrategy
    from strategies.core.options import StrategyOptions
    from strategies.core.plan import Plan, PublicFacts
    from strategies.core.results import PrivateResult, RoundRecord
    from strategies.core.scheme import MeanScheme, Scheme, Step
    from strategies.drop_in import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping
    from strategies.localized.localized_clipping import LocalizedClipping
    from strategies.localized.localized_robust_sgd import LocalizedRobustSGD
    from strategies.non_private import NonPrivate
    from strategies.robust.outlier_removal import OutlierRemoval
    from strategies.robust.robust_rounds import RobustRounds
    from strategies.robust.winsorized_rotation import WinsorizedRotation
    from strategies.samples.averaged_clipping import AveragedClipping
    from strategies.samples.averaged_clipping_restarted import AveragedClippingRestarted
    from strategies.samples.iterative_mean_sgd import IterativeMeanSGD
    from strategies.samples.poisson_sample_sgd import PoissonSampleSGD
    from strategies.samples.sample_clipped_sgd import SampleClippedSGD
    from strategies.samples.smoothed_truncation_gd import SmoothedTruncationGD
    from strategies.sparse.output_perturbation import OutputPerturbation
    from strategies.sparse.private_hard_thresholding import PrivateHardThresholding
    from strategies.sparse.private_lasso import PrivateLasso
    from strategies.sparse.robust_frank_wolfe import RobustFrankWolfe
    from strategies.sparse.sparse_exponential import SparseExponentialChoice
    from strategies.sparse.sparse_optimisation import SparseOptimisation
    from strategies.sparse.stopped_sgd import StoppedSGD
    from strategies.wire.client import client_app
    from strategies.wire.questions import model_record, model_vector
    from strategies.wire.replies import Gathered, Request

__all__ = [
    "DPFTRL",
    "STRATEGIES",
    "AdaptiveClipping",
    "Auto",
    "AveragedClipping",
    "AveragedClippingRestarted",
    "DPFedAvg",
    "DPFedSGD",
    "DropInAdaptiveClipping",
    "DropInFedAvg",
    "DropInRecentredClipping",
    "Gathered",
    "IterativeMeanSGD",
    "LearnCoordinates",
    "LocalDP",
    "LocalizedClipping",
    "LocalizedRobustSGD",
    "MeanScheme",
    "NonPrivate",
    "OutlierRemoval",
    "OutputPerturbation",
    "Plan",
    "PoissonSampleSGD",
    "PrivateHardThresholding",
    "PrivateLasso",
    "PrivateResult",
    "ProjectedSGD",
    "PublicFacts",
    "RecentredClipping",
    "Request",
    "RobustFrankWolfe",
    "RobustRounds",
    "RoundRecord",
    "SampleClippedSGD",
    "Scheme",
    "SmoothedTruncationGD",
    "SparseExponentialChoice",
    "SparseOptimisation",
    "Step",
    "StoppedSGD",
    "StrategyOptions",
    "UserLevelStrategy",
    "WinsorizedRotation",
    "client_app",
    "model_record",
    "model_vector",
]

_PLACES = [place.partition(":")[::2] for place in STRATEGIES.places.values()]
__getattr__ = names_from(
    __name__,
    {
        "strategies.auto.auto": ("Auto",),
        "strategies.auto.preparation": ("LearnCoordinates",),
        "strategies.core.base": ("UserLevelStrategy",),
        "strategies.wire.client": ("client_app",),
        "strategies.drop_in": ("DropInAdaptiveClipping", "DropInFedAvg", "DropInRecentredClipping"),
        "strategies.core.options": ("StrategyOptions",),
        "strategies.core.plan": ("Plan", "PublicFacts"),
        "strategies.wire.questions": ("model_record", "model_vector"),
        "strategies.wire.replies": ("Gathered", "Request"),
        "strategies.core.results": ("PrivateResult", "RoundRecord"),
        "strategies.core.scheme": ("MeanScheme", "Scheme", "Step"),
        **{
            module: tuple(name for place, name in _PLACES if place == module)
            for module in dict.fromkeys(place for place, _ in _PLACES)
        },
    },
)


def __dir__() -> list[str]:
    return __all__
