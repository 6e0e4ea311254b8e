"""Private means and gradients of sparse vectors.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024, "Differentially Private Optimization with Sparse Gradients".
"""

from userdp.sparse_gradients.hard_instances import block_data, greedy_packing, hardest_blocks
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

__all__ = [
    "ProjectionMechanism",
    "SparseRecovery",
    "SparseVectors",
    "basis_pursuit",
    "block_data",
    "classical_multiplier",
    "enforce_membership",
    "error_bound",
    "expected_error",
    "gershgorin_stretch",
    "greedy_packing",
    "hardest_blocks",
    "least_measurements",
    "project_l1",
    "project_l1_l2",
    "stretch_bound",
]
