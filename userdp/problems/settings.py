"""The shared settings of losses: how a configuration's [problem] section becomes a `Problem`."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field

from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.by_period import ByPeriod
from userdp.settings import Section

RADIUS = "The domain is |x_j| <= radius."
RIDGE = "Strength of the ridge term (ridge / 2) ||x||^2, part of the loss."


class ProblemSettings(Section):
    """A loss."""

    # A domain may be all of space: radius = inf.
    model_config = ConfigDict(allow_inf_nan=True)
    family: ClassVar[str]
    certificate: ClassVar[str]
    summary: ClassVar[str]
    sparse: ClassVar[bool] = False
    unscaled: ClassVar[str | None] = None
    """The values that targets must have in the table; None for numbers on any scale."""
    most_classes: ClassVar[int | None] = 0
    """The most classes that a target of declared levels may have; 0 for numeric targets, None for no limit."""
    code_fields: ClassVar[tuple[str, ...]] = ()
    """The fields, or tables of fields, that may name code."""

    kind: str
    dimension: int | None = Field(None, ge=1)
    """Number of model parameters; follows from the data, and must agree if given."""

    initial_model: str | None = None
    """A PUBLIC model to start from (a warm start): model.npz of an earlier run, or for a torch module also a file of
    its state_dict; the path is relative to this file. Its own privacy cost is not counted."""

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """[low, high] into which the loss clips targets, unless the data declare their range; None if that is open."""
        return None

    def build(self, shape: Shape, seed: int) -> Problem:
        """Return the problem for samples of this shape, without ``initial_model``; `BadInput` if the two do not fit."""
        if (shape.sparsity is not None) != self.sparse:
            needs, given, remedy = (
                ("sparse", "dense", "leave out 'sparse_'")
                if self.sparse
                else ("dense", "sparse", "use sparse_logistic or sparse_squared")
            )
            raise BadInput(f"problem.kind = {self.kind!r} needs {needs} samples, and the data's are {given}: {remedy}")
        if shape.scaled_target and self.unscaled is not None:
            raise BadInput(
                f"data.target_range scales the target to [-1, 1], and problem.kind = {self.kind!r} needs "
                f"{self.unscaled}: leave data.target_range out"
            )
        self._check_classes(shape.classes, self.most_classes)
        if shape.periods is not None and not isinstance(self, BinaryTarget):
            raise BadInput(f"problem.kind = {self.kind!r} has no hazards: use cloglog or logistic for data.survival")
        problem = self._make(shape, seed)
        if shape.terms is not None:
            problem = problem.with_terms(*shape.terms, exposed=shape.exposed)
        if problem.has_targets and not shape.has_target:
            raise BadInput(f"problem.kind = {self.kind!r} predicts a target, and the data have none: set data.target")
        if self.dimension is not None and self.dimension != problem.dimension:
            raise BadInput(
                f"problem.dimension = {self.dimension}, but the declared data give {problem.dimension} parameters: "
                "leave problem.dimension out or change the data's columns"
            )
        return problem

    def _check_classes(self, classes: int | None, most: int | None, subject: str = "") -> None:
        if classes is None or most is None or 2 <= classes <= most:
            return
        subject = subject or f"problem.kind = {self.kind!r}"
        if most:
            raise BadInput(
                f"data.target_levels lists {classes} classes, and {subject} tells two apart: use problem.kind = "
                "'softmax' for several, or list two"
            )
        raise BadInput(
            f"data.target_levels makes the target one of {classes} classes, and {subject} needs numbers: leave "
            "data.target_levels out, or use problem.kind = 'softmax'"
        )

    @abstractmethod
    def _make(self, shape: Shape, seed: int) -> Problem: ...

    def _declared(self, field: str, value: float | None, from_data: float | None, meaning: str) -> float:
        chosen = from_data if value is None else value
        if chosen is None:
            raise BadInput(f"problem.{field} is missing: {meaning} does not follow from these data, so declare it")
        return chosen


class LossSettings(ProblemSettings):
    """The settings of one loss, a keyword of the class; the loss takes all own fields, and what the data declare."""

    loss: ClassVar[type[Any]]

    def __init_subclass__(cls, loss: type[Problem] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if loss is not None:
            cls.loss, cls.summary = loss, loss.summary
            cls.__annotations__["kind"] = Literal[loss.name]

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        own = type(self).model_fields.keys() - ProblemSettings.model_fields.keys()
        return {name: getattr(self, name) for name in own}

    def _make(self, shape: Shape, seed: int) -> Problem:
        return self.loss(**self._arguments(shape))  # type: ignore[no-any-return]


class BinaryTarget(LossSettings):
    """A loss of targets 0 and 1."""

    unscaled: ClassVar[str | None] = "0 and 1, which data.positive makes of words"
    most_classes: ClassVar[int | None] = 2

    @property
    def target_bounds(self) -> tuple[float, float]:
        return 0.0, 1.0


class TargetRange(LossSettings):
    """A loss of targets in a declared range."""

    target_range: list[float] | None = Field(None, min_length=2, max_length=2)
    """[low, high] of the target, which is clipped into it; -inf and inf for no bound."""

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        return None if self.target_range is None else (self.target_range[0], self.target_range[1])

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        declared = self.target_range or shape.target_range
        if declared is None:
            raise BadInput(
                "problem.target_range is missing: the data declare no data.target_range, so give [low, high] of the "
                "target"
            )
        arguments = {**super()._arguments(shape), "low": declared[0], "high": declared[1]}
        del arguments["target_range"]
        return arguments


class CountBound(LossSettings):
    """A loss of counts up to a declared bound."""

    unscaled: ClassVar[str | None] = "counts"
    count_bound: float = Field(gt=0)
    """Largest count; larger ones are clipped to it. A table's data.target_range = [0, count_bound] declares it too."""

    @property
    def target_bounds(self) -> tuple[float, float]:
        return 0.0, self.count_bound


class GeneralisedLinearSettings(LossSettings):
    """Settings of every linear model on dense features."""

    for_codes: ClassVar[str] = "one_hot_squared"
    """The kind of problem to use if features are codes."""
    family: ClassVar[str] = "generalised linear"
    certificate: ClassVar[str] = (
        "convex, bounded gradient, bounded Hessian; diagonally dominant Hessian if ridge is at least "
        "K * feature_norm^2 / 8, where K is the largest second derivative of the loss"
    )
    feature_norm: float | None = Field(None, gt=0)
    """Bound on a sample's ||a||_1, the intercept's 1 included; inf for none. Known from declared columns."""
    feature_bound: float | None = Field(None, gt=0)
    """Bound on every |a_j| but the intercept's 1; features are clipped into it one by one; inf for none. Known from
    declared columns."""
    radius: float = Field(5.0, gt=0, description=RADIUS)
    ridge: float = Field(0.0, ge=0, description=RIDGE)
    intercept: bool = Field(True, description="Append a feature of value 1 to each sample; data.survival has periods.")

    def build(self, shape: Shape, seed: int) -> Problem:
        if shape.levels is not None:
            raise BadInput(
                f"problem.kind = {self.kind!r} needs feature columns, and the data give codes: use problem.kind = "
                f"{self.for_codes!r}"
            )
        if shape.codes_from is not None:
            raise BadInput(
                f"problem.kind = {self.kind!r} needs feature columns, and {shape.codes_from} gives "
                f"{shape.columns} codes a sample: use problem.kind = 'torch', or declare data.features"
            )
        problem = super().build(shape, seed)
        if shape.periods is None:
            return problem
        for name in ("feature_norm", "feature_bound"):
            if math.isfinite(value := getattr(self, name) or math.inf):
                raise BadInput(
                    f"problem.{name} = {value:g}: it would shrink the columns of data.survival's periods, too; leave "
                    "it out, and declare narrower data.ranges"
                )
        return cast(ByPeriod, problem).by_period(*shape.periods)

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        intercept = self.intercept and shape.periods is None
        norm = None if shape.feature_norm is None else shape.feature_norm + intercept
        cell = shape.bound if self.feature_bound is None else self.feature_bound
        return {
            **super()._arguments(shape),
            "intercept": intercept,
            "columns": shape.columns,
            "feature_norm": self._declared("feature_norm", self.feature_norm, norm, "the bound on a sample's ||a||_1"),
            "feature_bound": math.inf if cell is None else cell,
        }
