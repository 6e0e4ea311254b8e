"""Every strategy there is, by name. Adding one takes its file and a line here."""

from strategies.adaptive_clipping import AdaptiveClipping
from strategies.averaged_clipping import AveragedClipping
from strategies.averaged_clipping_restarted import RestartedAveragedClipping
from strategies.base import UserLevelStrategy
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

STRATEGIES: dict[str, type[UserLevelStrategy]] = {
    strategy.name: strategy
    for strategy in (
        LocalizedRobustSGD,
        RobustRounds,
        RecentredClipping,
        LocalizedClipping,
        LocalDPSGD,
        OutlierRemovalSGD,
        WinsorizedRotation,
        DPFedSGD,
        ProjectedSGD,
        DPFedAvg,
        AdaptiveClipping,
        DPFTRL,
        SampleClippedSGD,
        IterativeMeanSGD,
        AveragedClipping,
        RestartedAveragedClipping,
        PoissonSampleSGD,
        SmoothedTruncationGD,
        RobustFrankWolfe,
        PrivateLasso,
        PrivateHardThresholding,
        SparseOptimisation,
        SparseOutputPerturbation,
        StoppedSGD,
        NonPrivate,
    )
}
