"""Private means and gradients of sparse vectors.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024, "Differentially Private Optimization with Sparse Gradients".
"""

from userdp.sparse_gradients.bias_reduction import (
    Draw,
    ExactMean,
    MeanOracle,
    ProjectedMean,
    bias_reduced_gradient,
    second_moment_bound,
)
from userdp.sparse_gradients.boosting import SelectionBudget, boosted_sgd, private_select
from userdp.sparse_gradients.hard_instances import block_data, greedy_packing, hardest_blocks
from userdp.sparse_gradients.output_perturbation import ConvexRisk, OutputPerturbation
from userdp.sparse_gradients.privacy_filter import PrivacyFilter
from userdp.sparse_gradients.projection_mechanism import (
    ProjectionMechanism,
    SparseVectors,
    classical_multiplier,
    enforce_membership,
    error_bound,
    expected_error,
)
from userdp.sparse_gradients.projections import project_l1, project_l1_l2
from userdp.sparse_gradients.recovery import (
    SparseRecovery,
    basis_pursuit,
    gershgorin_stretch,
    least_measurements,
    stretch_bound,
)
from userdp.sparse_gradients.sparse_exponential import SparseExponential
from userdp.sparse_gradients.stopped_sgd import (
    StepBudget,
    StoppedRun,
    convex_rate,
    stationary_rate,
    typical_length,
)
from userdp.sparse_gradients.sup_projection import sup_project_ball, sup_project_box
from userdp.sparse_gradients.truncated_geometric import TruncatedGeometric

__all__ = [
    "ConvexRisk",
    "Draw",
    "ExactMean",
    "MeanOracle",
    "OutputPerturbation",
    "PrivacyFilter",
    "ProjectedMean",
    "ProjectionMechanism",
    "SelectionBudget",
    "SparseExponential",
    "SparseRecovery",
    "SparseVectors",
    "StepBudget",
    "StoppedRun",
    "TruncatedGeometric",
    "basis_pursuit",
    "bias_reduced_gradient",
    "block_data",
    "boosted_sgd",
    "classical_multiplier",
    "convex_rate",
    "enforce_membership",
    "error_bound",
    "expected_error",
    "gershgorin_stretch",
    "greedy_packing",
    "hardest_blocks",
    "least_measurements",
    "private_select",
    "project_l1",
    "project_l1_l2",
    "second_moment_bound",
    "stationary_rate",
    "stretch_bound",
    "sup_project_ball",
    "sup_project_box",
    "typical_length",
]
