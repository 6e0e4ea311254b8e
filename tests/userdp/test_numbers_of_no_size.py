"""A number that is none, or has no end, or has the wrong sign, passes nowhere that a promise is made of."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from strategies.baselines.outlier_removal.neighbour_mean import IndicatorKernel
from userdp.accounting import Cost, Privacy
from userdp.accounting.filter import Total
from userdp.accounting.sampled_gaussian import SampledRounds
from userdp.errors import BadInput
from userdp.estimators import Debiased, Winsorized
from userdp.estimators.concentration import ExpKernel, RampKernel
from userdp.masking.grid import IntegerGrid
from userdp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from userdp.mechanisms.concentration_tests import AboveThreshold, MinimumScore
from userdp.mechanisms.set_union import SetUnion
from userdp.mechanisms.user_quantile import UserQuantile
from userdp.noise import Scores, SecureNoise, discrete_gaussian, granularity
from userdp.sampling import MixedBatches, PoissonBatches, WeightedBatches
from userdp.sampling.coins import SampleCoins

ENDLESS = {(Cost, "noise_multiplier"), (SampledRounds, "noise_multiplier")}  # no release to pay for
ZERO = {
    *((Cost, name) for name in ("pure_epsilon", "failure_delta", "shared_epsilon")),
    *((Privacy, name) for name in ("delta", "colluding")),
    *((one, name) for one in (AboveThreshold, MinimumScore) for name in ("movement", "raised")),
    (SecureNoise, "slack"),
    (Total, "others"),
}


@dataclass(frozen=True)
class Grid:
    """The grid of a masked sum, made by its classmethod."""

    deviation: float
    longest: float

    def __post_init__(self):
        IntegerGrid.finest(self.deviation, 3, self.longest)


@dataclass(frozen=True)
class Drawn:
    """Noise that the operating system draws."""

    secure: float
    discrete: float

    def __post_init__(self):
        granularity(self.secure)
        discrete_gaussian(1, self.discrete)


@dataclass(frozen=True)
class Quantile:
    """A choice of a quantile, as it is made."""

    share: float
    epsilon: float

    def __post_init__(self):
        assert UserQuantile(self.share, self.epsilon, "replace_one").cost


VALUES = [
    Privacy(1.0, 1e-6, trust="sum", colluding=0.1),
    Cost(1.0, 0.1, 1e-7, 0.1),
    Total(1.0, 1e-6, others=0.5),
    Scores(np.zeros(2), 1.0),
    SecureNoise(0.1),
    GaussianMechanism(1.0, 1.0),
    LaplaceMechanism(1.0, 1.0),
    ExponentialMechanism(1.0, 1.0),
    SetUnion(1.0, 1e-6, 3, "replace_one"),
    Quantile(0.5, 1.0),
    *(
        one(batch=30, kernel=RampKernel(1.0), epsilon=1.0, delta=1e-6, movement=0.1)
        for one in (AboveThreshold, MinimumScore)
    ),
    *(one(1.0) for one in (ExpKernel, RampKernel, IndicatorKernel)),
    Debiased("median", 1.0, 1.0),
    Winsorized(1.0, 1.0),
    SampledRounds(1.0, 0.1),
    PoissonBatches(10, 0.1, 2),
    SampleCoins(0.1, np.zeros(1, dtype=np.uint64)),
    Grid(1.0, 1.0),
    Drawn(1.0, 1.0),
]
PLACES = [(one, field.name) for one in VALUES for field in fields(one) if isinstance(getattr(one, field.name), float)]


@pytest.mark.parametrize(
    ("one", "name"), PLACES, ids=lambda each: each if isinstance(each, str) else type(each).__name__
)
def test_a_number_of_no_size_is_refused_wherever_a_promise_is_made_of_it(one, name):
    replace(one, **{name: getattr(one, name)})
    place = type(one), name
    wrong = [math.nan, -0.1, -math.inf]
    wrong += [] if place in ENDLESS else [math.inf]
    wrong += [] if place in ZERO else [0.0]
    for value in wrong:
        with pytest.raises(BadInput):
            replace(one, **{name: value})


@pytest.mark.parametrize("wrong", [math.nan, -0.5, math.inf, 0.0])
def test_a_share_or_a_rate_of_no_size_is_refused_in_its_list(wrong):
    for make in (
        lambda: MixedBatches(10, (0.5, wrong), (0.5, 0.5)),
        lambda: MixedBatches(10, (0.5, 0.5), (0.5, wrong)),
        lambda: WeightedBatches(4, 4, 2, 0, shares=(0.5, wrong)),
    ):
        with pytest.raises(BadInput):
            make()


@pytest.mark.parametrize("shares", [(0.5, 0.51), (0.6, 0.6), (1.0, 1e-3)])
def test_shares_that_are_more_than_one_whole_are_refused(shares):
    for make in (lambda: MixedBatches(10, (0.5, 0.5), shares), lambda: WeightedBatches(4, 4, 2, 0, shares=shares)):
        with pytest.raises(BadInput, match="shares"):
            make()
