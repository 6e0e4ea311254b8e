"""The [problem] sections of losses on sparse samples."""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from simulations.config_data import Shape
from simulations.config_problem_base import RADIUS, RIDGE, ProblemSection, TargetRange
from userdp.problems import Problem, SparseLogistic, SparseSquared


class _SparseLinear(ProblemSection):
    family: ClassVar[str] = "sparse linear"
    certificate: ClassVar[str] = "A1 to A3, sparse gradients; A4 from a ridge on that grows with sqrt(sparsity)"
    sparse: ClassVar[bool] = True
    feature_norm: float | None = Field(
        None, gt=0, description="Bound on a sample's ||a||_2; longer ones are scaled down. Known from the data."
    )
    sparsity: int | None = Field(
        None, ge=1, description="Most entries of a sample that are not zero; the largest are kept. Known from the data."
    )
    radius: float = Field(math.inf, gt=0, description=RADIUS + " All of space if not given.")
    ridge: float = Field(0.0, ge=0, description=RIDGE + " With it gradients are not sparse.")

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        norm = self._declared("feature_norm", self.feature_norm, shape.feature_length, "the bound on ||a||_2")
        sparsity = self._declared("sparsity", self.sparsity, shape.sparsity, "the number of entries")
        return {
            "columns": shape.columns,
            "feature_norm": norm,
            "sparsity": int(sparsity),
            "radius": self.radius,
            "ridge": self.ridge,
        }


class SparseLogisticSection(_SparseLinear):
    """Settings of `userdp.problems.SparseLogistic`."""

    kind: Literal["sparse_logistic"]
    summary: ClassVar[str] = SparseLogistic.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        return SparseLogistic(**self._arguments(shape))


class SparseSquaredSection(TargetRange, _SparseLinear):
    """Settings of `userdp.problems.SparseSquared`."""

    kind: Literal["sparse_squared"]
    summary: ClassVar[str] = SparseSquared.summary
    radius: float = Field(5.0, gt=0, description=RADIUS)

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return SparseSquared(**self._arguments(shape), low=low, high=high)
