"""Flower strategies with user-level differential privacy.

Each is a Flower `Strategy`; give it a problem, public facts about the users and a budget, and start it on any grid.
Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from strategies.registry import STRATEGIES
from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.auto.preparation import LearnCoordinates
    from strategies.core.about import About, Fact
    from strategies.core.base import UserLevelStrategy
    from strategies.core.mean_rounds import (
        CLIP_FACTS,
        AveragedDescent,
        Descent,
        MeanRounds,
        as_is,
        sampler_numbers,
    )
    from strategies.core.noise_forecast import NoisyPhase, NoisyRelease, NoisySteps, Phases
    from strategies.core.options import StrategyOptions
    from strategies.core.plan import Plan
    from strategies.core.public_facts import Given, PublicFacts
    from strategies.core.recipe import Recipe
    from strategies.core.results import Noise, PrivateResult, RoundRecord, Step
    from strategies.core.row_rounds import RowRounds
    from strategies.core.scheme import Law, Number, Outline, Scheme, no_ledger
    from strategies.drop_in import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping
    from strategies.registry import Constructor
    from strategies.robust.tested_rounds import ROW_ADVERSARY, ROW_MEANINGS, RowOptions
    from strategies.wire.client import client_app
    from strategies.wire.private_updates import private_updates
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
    LocalizedWeighting: Constructor
    NonPrivate: Constructor
    OutlierRemoval: Constructor
    OutputPerturbation: Constructor
    PoissonSampleSGD: Constructor
    PrivateHardThresholding: Constructor
    PrivateLasso: Constructor
    ProjectedSGD: Constructor
    RecentredClipping: Constructor
    RecoveredSGD: Constructor
    RobustFrankWolfe: Constructor
    RobustRounds: Constructor
    SampleClippedSGD: Constructor
    SmoothedTruncationGD: Constructor
    SparseExponentialChoice: Constructor
    SparseOptimisation: Constructor
    StoppedSGD: Constructor
    VoteDescent: Constructor
    WinsorizedRotation: Constructor

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
    "AveragedDescent",
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
    "Plan",
    "PoissonSampleSGD",
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
    "no_ledger",
    "private_updates",
    "sampler_numbers",
]


def _constructors() -> dict[str, str]:
    """Return class -> module of every strategy; the baselines of papers are plug-ins of this very package."""
    installed = [place for place in STRATEGIES.installed.values() if place.startswith("strategies.baselines.")]
    return {
        name: module for module, _, name in (one.partition(":") for one in (*STRATEGIES.places.values(), *installed))
    }


__getattr__, __dir__ = lazily(__name__, others=_constructors)
