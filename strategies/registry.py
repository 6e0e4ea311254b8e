"""Every strategy there is, by name. Adding one takes its file and a line here."""

from strategies.base import UserLevelStrategy
from strategies.fed_avg import DPFedAvg
from strategies.fed_sgd import DPFedSGD, NonPrivate
from strategies.localized import LocalizedRobustSGD
from strategies.robust_rounds import RobustRounds
from strategies.sample_clipped import SampleClippedSGD

STRATEGIES: dict[str, type[UserLevelStrategy]] = {
    strategy.name: strategy
    for strategy in (
        LocalizedRobustSGD,
        RobustRounds,
        DPFedSGD,
        DPFedAvg,
        SampleClippedSGD,
        NonPrivate,
    )
}
