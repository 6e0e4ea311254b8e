"""All strategies by name, in the order for a newcomer; a new one here takes a file and a line.

Other packages add theirs as entry points of the group ``userdp.strategies``, and ``strategy.kind`` may name a class in
a file: "my_file.py:MyStrategy".
"""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds, below

if TYPE_CHECKING:
    from strategies.core.recipe import Recipe


STRATEGIES: "Kinds[type[Recipe]]" = Kinds(
    {
        "auto": "strategies.auto.auto:Auto",
        "dp_fed_sgd": "strategies.clipping.dp_fed_sgd:DPFedSGD",
        "dp_fed_avg": "strategies.clipping.dp_fed_avg:DPFedAvg",
        "adaptive_clipping": "strategies.clipping.adaptive_clipping:AdaptiveClipping",
        "recentred_clipping": "strategies.clipping.recentred_clipping:RecentredClipping",
        "dp_ftrl": "strategies.clipping.dp_ftrl:DPFTRL",
        "localized_clipping": "strategies.localized.localized_clipping:LocalizedClipping",
        "local_dp": "strategies.clipping.local_dp:LocalDP",
        "robust_rounds": "strategies.robust.robust_rounds:RobustRounds",
        "localized_robust_sgd": "strategies.localized.localized_robust_sgd:LocalizedRobustSGD",
        "outlier_removal": "strategies.robust.outlier_removal:OutlierRemoval",
        "winsorized_rotation": "strategies.robust.winsorized_rotation:WinsorizedRotation",
        "sample_clipped_sgd": "strategies.samples.sample_clipped_sgd:SampleClippedSGD",
        "poisson_sample_sgd": "strategies.samples.poisson_sample_sgd:PoissonSampleSGD",
        "averaged_clipping": "strategies.samples.averaged_clipping:AveragedClipping",
        "averaged_clipping_restarted": "strategies.samples.averaged_clipping_restarted:AveragedClippingRestarted",
        "iterative_mean_sgd": "strategies.samples.iterative_mean_sgd:IterativeMeanSGD",
        "smoothed_truncation_gd": "strategies.samples.smoothed_truncation_gd:SmoothedTruncationGD",
        "projected_sgd": "strategies.clipping.projected_sgd:ProjectedSGD",
        "stopped_sgd": "strategies.sparse.stopped_sgd:StoppedSGD",
        "sparse_exponential": "strategies.sparse.sparse_exponential:SparseExponentialChoice",
        "output_perturbation": "strategies.sparse.output_perturbation:OutputPerturbation",
        "robust_frank_wolfe": "strategies.sparse.robust_frank_wolfe:RobustFrankWolfe",
        "private_lasso": "strategies.sparse.private_lasso:PrivateLasso",
        "private_hard_thresholding": "strategies.sparse.private_hard_thresholding:PrivateHardThresholding",
        "sparse_optimisation": "strategies.sparse.sparse_optimisation:SparseOptimisation",
        "non_private": "strategies.non_private:NonPrivate",
    },
    "userdp.strategies",
    files=True,
    check=below("strategies.core.recipe:Recipe", "docs/add-a-strategy.md shows how a strategy is made"),
)
