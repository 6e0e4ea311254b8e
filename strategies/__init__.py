"""Flower strategies with user-level differential privacy.

Each is a Flower `Strategy`; give it a problem, public facts about the users and a budget, and start it on any grid.
Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from strategies.registry import STRATEGIES
from userdp.lazy import names_from

if TYPE_CHECKING:
    from strategies.auto.preparation import LearnCoordinates
    from strategies.constructor import Constructor
    from strategies.core.about import About, Fact
    from strategies.core.base import UserLevelStrategy
    from strategies.core.mean_rounds import Descent, MeanRounds
    from strategies.core.options import StrategyOptions
    from strategies.core.plan import Plan
    from strategies.core.public_facts import Given, PublicFacts
    from strategies.core.recipe import Recipe
    from strategies.core.results import PrivateResult, RoundRecord
    from strategies.core.scheme import Outline, Scheme
    from strategies.core.step import Step
    from strategies.drop_in import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping
    from strategies.wire.client import client_app
    from strategies.wire.questions import model_record, model_vector
    from strategies.wire.replies import Gathered, Request

    AdaptiveClipping: Constructor
    Auto: Constructor
    AveragedClipping: Constructor
    AveragedClippingRestarted: Constructor
    DPFTRL: Constructor
    DPFedAvg: Constructor
    DPFedSGD: Constructor
    IterativeMeanSGD: Constructor
    LocalDP: Constructor
    LocalizedClipping: Constructor
    LocalizedRobustSGD: Constructor
    NonPrivate: Constructor
    OutlierRemoval: Constructor
    OutputPerturbation: Constructor
    PoissonSampleSGD: Constructor
    PrivateHardThresholding: Constructor
    PrivateLasso: Constructor
    ProjectedSGD: Constructor
    RecentredClipping: Constructor
    RobustFrankWolfe: Constructor
    RobustRounds: Constructor
    SampleClippedSGD: Constructor
    SmoothedTruncationGD: Constructor
    SparseExponentialChoice: Constructor
    SparseOptimisation: Constructor
    StoppedSGD: Constructor
    WinsorizedRotation: Constructor

__all__ = [
    "DPFTRL",
    "STRATEGIES",
    "About",
    "AdaptiveClipping",
    "Auto",
    "AveragedClipping",
    "AveragedClippingRestarted",
    "Constructor",
    "DPFedAvg",
    "DPFedSGD",
    "Descent",
    "DropInAdaptiveClipping",
    "DropInFedAvg",
    "DropInRecentredClipping",
    "Fact",
    "Gathered",
    "Given",
    "IterativeMeanSGD",
    "LearnCoordinates",
    "LocalDP",
    "LocalizedClipping",
    "LocalizedRobustSGD",
    "MeanRounds",
    "NonPrivate",
    "OutlierRemoval",
    "Outline",
    "OutputPerturbation",
    "Plan",
    "PoissonSampleSGD",
    "PrivateHardThresholding",
    "PrivateLasso",
    "PrivateResult",
    "ProjectedSGD",
    "PublicFacts",
    "RecentredClipping",
    "Recipe",
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

# The baselines of papers are plug-ins; their names are those of this package all the same.
_BASELINES = [place for place in STRATEGIES.installed.values() if place.startswith("strategies.baselines.")]
_PLACES = [place.partition(":")[::2] for place in (*STRATEGIES.places.values(), *_BASELINES)]
__getattr__ = names_from(
    __name__,
    {
        "strategies.auto.preparation": ("LearnCoordinates",),
        "strategies.core.base": ("UserLevelStrategy",),
        "strategies.constructor": ("Constructor",),
        "strategies.wire.client": ("client_app",),
        "strategies.drop_in": ("DropInAdaptiveClipping", "DropInFedAvg", "DropInRecentredClipping"),
        "strategies.core.options": ("StrategyOptions",),
        "strategies.core.plan": ("Plan",),
        "strategies.core.public_facts": ("Given", "PublicFacts"),
        "strategies.core.recipe": ("Recipe",),
        "strategies.core.mean_rounds": ("Descent", "MeanRounds"),
        "strategies.wire.questions": ("model_record", "model_vector"),
        "strategies.wire.replies": ("Gathered", "Request"),
        "strategies.core.results": ("PrivateResult", "RoundRecord"),
        "strategies.core.scheme": ("Outline", "Scheme"),
        "strategies.core.step": ("Step",),
        "strategies.core.about": ("About", "Fact"),
        **{
            module: tuple(name for place, name in _PLACES if place == module)
            for module in dict.fromkeys(place for place, _ in _PLACES)
        },
    },
)


def __dir__() -> list[str]:
    return __all__
