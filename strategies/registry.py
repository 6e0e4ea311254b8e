"""Every strategy there is, by name. Adding one takes its file and a line here."""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds

if TYPE_CHECKING:
    from strategies.base import UserLevelStrategy

STRATEGIES: "Kinds[type[UserLevelStrategy]]" = Kinds(
    {
        "localized_robust_sgd": "strategies.localized:LocalizedRobustSGD",
        "robust_rounds": "strategies.robust_rounds:RobustRounds",
        "recentred_clipping": "strategies.recentred:RecentredClipping",
        "localized_clipping": "strategies.localized_clipping:LocalizedClipping",
        "local_dp": "strategies.local_dp:LocalDPSGD",
        "outlier_removal": "strategies.outlier_removal:OutlierRemovalSGD",
        "winsorized_rotation": "strategies.winsorized_rotation:WinsorizedRotation",
        "dp_fed_sgd": "strategies.fed_sgd:DPFedSGD",
        "projected_sgd": "strategies.projected_sgd:ProjectedSGD",
        "dp_fed_avg": "strategies.fed_avg:DPFedAvg",
        "adaptive_clipping": "strategies.adaptive_clipping:AdaptiveClipping",
        "dp_ftrl": "strategies.ftrl:DPFTRL",
        "sample_clipped_sgd": "strategies.sample_clipped:SampleClippedSGD",
        "iterative_mean_sgd": "strategies.iterative_mean:IterativeMeanSGD",
        "averaged_clipping": "strategies.averaged_clipping:AveragedClipping",
        "averaged_clipping_restarted": "strategies.averaged_clipping_restarted:RestartedAveragedClipping",
        "poisson_sample_sgd": "strategies.poisson_sample_sgd:PoissonSampleSGD",
        "smoothed_truncation_gd": "strategies.smoothed_truncation:SmoothedTruncationGD",
        "robust_frank_wolfe": "strategies.robust_frank_wolfe:RobustFrankWolfe",
        "private_lasso": "strategies.private_lasso:PrivateLasso",
        "private_hard_thresholding": "strategies.sparse_regression:PrivateHardThresholding",
        "sparse_optimisation": "strategies.sparse_optimisation:SparseOptimisation",
        "output_perturbation": "strategies.output_perturbation:SparseOutputPerturbation",
        "stopped_sgd": "strategies.stopped_sgd:StoppedSGD",
        "non_private": "strategies.fed_sgd:NonPrivate",
    }
)
