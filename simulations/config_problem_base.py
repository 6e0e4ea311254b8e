"""What the models of the [problem] section share."""

from abc import abstractmethod
from typing import ClassVar

from pydantic import ConfigDict, Field

from simulations.config_data import Section, Shape
from userdp.errors import BadInput
from userdp.problems import Problem

RADIUS = "The domain is |x_j| <= radius."
RIDGE = "Strength of the ridge term (ridge / 2) ||x||^2, part of the loss."


class ProblemSection(Section):
    """A loss."""

    # A domain may be all of space: radius = inf.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)
    family: ClassVar[str]
    certificate: ClassVar[str]
    summary: ClassVar[str]
    sparse: ClassVar[bool] = False

    kind: str
    dimension: int | None = Field(
        None, ge=1, description="Number of model parameters; follows from the data, and must agree if given."
    )

    def build(self, shape: Shape, seed: int) -> Problem:
        """The problem for samples of this shape.

        Raises:
            BadInput: problem and declared data do not fit.
        """
        if (shape.sparsity is not None) != self.sparse:
            needs, are, instead = (
                ("sparse", "dense", "leave out 'sparse_'")
                if self.sparse
                else ("dense", "sparse", "use sparse_logistic or sparse_squared")
            )
            raise BadInput(f"problem.kind = {self.kind!r} needs {needs} samples, and the data's are {are}: {instead}")
        problem = self._make(shape, seed)
        if problem.has_targets and not shape.has_target:
            raise BadInput(f"problem.kind = {self.kind!r} predicts a target, and the data have none: set data.target")
        if self.dimension is not None and self.dimension != problem.dimension:
            raise BadInput(
                f"problem.dimension = {self.dimension}, but the declared data give {problem.dimension} parameters: "
                "leave problem.dimension out or change the data's columns"
            )
        return problem

    @abstractmethod
    def _make(self, shape: Shape, seed: int) -> Problem: ...

    def _declared(self, field: str, value: float | None, from_data: float | None, meaning: str) -> float:
        """The value given, or what the data declare."""
        chosen = from_data if value is None else value
        if chosen is None:
            raise BadInput(f"problem.{field} is missing: {meaning} does not follow from these data, so declare it")
        return chosen


class TargetRange(ProblemSection):
    """A loss of targets in a declared range."""

    target_range: list[float] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="[low, high] of the target, which is clipped into it; -inf and inf for none.",
    )

    def _range(self, shape: Shape) -> tuple[float, float]:
        declared = self.target_range or shape.target_range
        if declared is None:
            raise BadInput(
                "problem.target_range is missing: the data declare no data.target_range, so give [low, high] of the "
                "target"
            )
        return declared[0], declared[1]
