"""Flower strategies with user-level differential privacy.

``DPFedSGD(rounds=5)`` is a recipe; its ``strategy(problem, public, privacy)`` is a Flower `Strategy`, to start on any
grid. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from strategies.registry import STRATEGIES
from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.auto.auto import Auto
    from strategies.auto.preparation import LearnCoordinates
    from strategies.clipping.adaptive_clipping import AdaptiveClipping
    from strategies.clipping.clip_facts import CLIP_FACTS, ClipNotes
    from strategies.clipping.dp_fed_avg import DPFedAvg
    from strategies.clipping.dp_fed_sgd import DPFedSGD
    from strategies.clipping.dp_ftrl import DPFTRL
    from strategies.clipping.local_dp import LocalDP
    from strategies.clipping.recentred_clipping import RecentredClipping
    from strategies.core.about import About, Fact
    from strategies.core.base import UserLevelStrategy
    from strategies.core.mean_rounds import Descent, MeanRounds, PlainDescent, as_is
    from strategies.core.options import StrategyOptions
    from strategies.core.plan import Plan
    from strategies.core.public_facts import Given, Price, PublicFacts
    from strategies.core.recipe import Recipe
    from strategies.core.results import Noise, PrivateResult, RoundRecord, Step
    from strategies.core.scheme import Law, Number, Outline, Scheme
    from strategies.drop_in import DropInAdaptiveClipping, DropInAuto, DropInFedAvg, DropInRecentredClipping
    from strategies.localized.localized_clipping import LocalizedClipping
    from strategies.localized.localized_weighting import LocalizedWeighting
    from strategies.non_private import NonPrivate
    from strategies.queries.statistics import Statistics
    from strategies.robust.robust_rounds import RobustRounds
    from strategies.robust.row_rounds import RowRounds
    from strategies.robust.tested_rounds import ROW_ADVERSARY, ROW_MEANINGS, RowOptions
    from strategies.robust.vote_descent import VoteDescent
    from strategies.wire.client import client_app
    from strategies.wire.private_updates import private_updates
    from strategies.wire.questions import model_record, model_vector
    from strategies.wire.replies import Gathered, Request
    from userdp.problems.noise_paths import NoisyPhase, NoisyRelease, NoisySteps, Phases

    AveragedClipping: type[Recipe]
    AveragedClippingRestarted: type[Recipe]
    IterativeMeanSGD: type[Recipe]
    LocalizedRobustSGD: type[Recipe]
    OutlierRemoval: type[Recipe]
    OutputPerturbation: type[Recipe]
    PoissonSampleSGD: type[Recipe]
    PrivateHardThresholding: type[Recipe]
    PrivateLasso: type[Recipe]
    ProjectedSGD: type[Recipe]
    RecoveredSGD: type[Recipe]
    RobustFrankWolfe: type[Recipe]
    SampleClippedSGD: type[Recipe]
    SmoothedTruncationGD: type[Recipe]
    SparseExponentialChoice: type[Recipe]
    SparseOptimisation: type[Recipe]
    StoppedSGD: type[Recipe]
    WinsorizedRotation: type[Recipe]

__all__ = [
    "CLIP_FACTS",
    "DPFTRL",
    "ROW_ADVERSARY",
    "ROW_MEANINGS",
    "STRATEGIES",
    "About",
    "AdaptiveClipping",
    "Auto",
    "AveragedClipping",
    "AveragedClippingRestarted",
    "ClipNotes",
    "DPFedAvg",
    "DPFedSGD",
    "Descent",
    "DropInAdaptiveClipping",
    "DropInAuto",
    "DropInFedAvg",
    "DropInRecentredClipping",
    "Fact",
    "Gathered",
    "Given",
    "IterativeMeanSGD",
    "Law",
    "LearnCoordinates",
    "LocalDP",
    "LocalizedClipping",
    "LocalizedRobustSGD",
    "LocalizedWeighting",
    "MeanRounds",
    "Noise",
    "NoisyPhase",
    "NoisyRelease",
    "NoisySteps",
    "NonPrivate",
    "Number",
    "OutlierRemoval",
    "Outline",
    "OutputPerturbation",
    "Phases",
    "PlainDescent",
    "Plan",
    "PoissonSampleSGD",
    "Price",
    "PrivateHardThresholding",
    "PrivateLasso",
    "PrivateResult",
    "ProjectedSGD",
    "PublicFacts",
    "RecentredClipping",
    "Recipe",
    "RecoveredSGD",
    "Request",
    "RobustFrankWolfe",
    "RobustRounds",
    "RoundRecord",
    "RowOptions",
    "RowRounds",
    "SampleClippedSGD",
    "Scheme",
    "SmoothedTruncationGD",
    "SparseExponentialChoice",
    "SparseOptimisation",
    "Statistics",
    "Step",
    "StoppedSGD",
    "StrategyOptions",
    "UserLevelStrategy",
    "VoteDescent",
    "WinsorizedRotation",
    "as_is",
    "client_app",
    "model_record",
    "model_vector",
    "private_updates",
]


def _baselines() -> dict[str, str]:
    """Return class -> module of the baselines of papers, which are plug-ins of this very package."""
    places = (place.partition(":") for place in STRATEGIES.installed.values())
    return {name: module for module, _, name in places if module.startswith("strategies.baselines.")}


__getattr__, __dir__ = lazily(__name__, others=_baselines)
