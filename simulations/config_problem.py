"""The [problem] section: one model a loss. Dimensions follow from the declared data columns."""

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import Field

from simulations.config_data import Shape
from simulations.config_problem_base import RADIUS, RIDGE, ProblemSection, TargetRange
from simulations.config_problem_sparse import SparseLogisticSection, SparseSquaredSection
from simulations.modules import module_factory
from userdp.errors import BadInput
from userdp.problems import (
    Bernoulli,
    Huber,
    HuberRegression,
    Linear,
    Logistic,
    LpRegression,
    OneHotLogistic,
    OneHotPoisson,
    OneHotSquared,
    Poisson,
    Problem,
    Quadratic,
    Squared,
)


class _Separable(ProblemSection):
    family: ClassVar[str] = "separable"
    certificate: ClassVar[str] = "A1 to A4 always"

    def build(self, shape: Shape, seed: int) -> Problem:
        if shape.levels is not None:
            raise BadInput(f"problem.kind = {self.kind!r} needs numeric features, and data.codes gives categories")
        return super().build(shape, seed)


class _Bounded(_Separable):
    bound: float | None = Field(
        None,
        gt=0,
        description="Of every |z_j|; samples are clipped into it. Known for tables (1); inf for none, where the loss "
        "allows it.",
    )

    def _bound(self, shape: Shape) -> float:
        return self._declared("bound", self.bound, shape.bound, "the bound of a sample's coordinates")


class LinearSection(_Bounded):
    """Settings of `userdp.problems.Linear`."""

    kind: Literal["linear"]
    summary: ClassVar[str] = Linear.summary
    radius: float = Field(1.0, gt=0, description=RADIUS)

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Linear(shape.columns, self._bound(shape), self.radius)


class QuadraticSection(_Bounded):
    """Settings of `userdp.problems.Quadratic`."""

    kind: Literal["quadratic"]
    summary: ClassVar[str] = Quadratic.summary
    radius: float = Field(1.0, gt=0, description=RADIUS)

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Quadratic(shape.columns, self._bound(shape), self.radius)


class HuberSection(_Bounded):
    """Settings of `userdp.problems.Huber`."""

    kind: Literal["huber"]
    summary: ClassVar[str] = Huber.summary
    radius: float = Field(1.0, gt=0, description=RADIUS)
    threshold: float = Field(1.0, gt=0, description="Distance at which the square becomes a line.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Huber(shape.columns, self._bound(shape), self.radius, self.threshold)


class BernoulliSection(_Separable):
    """Settings of `userdp.problems.Bernoulli`."""

    kind: Literal["bernoulli"]
    summary: ClassVar[str] = Bernoulli.summary
    radius: float = Field(5.0, gt=0, description=RADIUS + " Log-odds: 5 covers rates from 0.7 % to 99.3 %.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Bernoulli(shape.columns, self.radius)


class _GeneralisedLinear(ProblemSection):
    family: ClassVar[str] = "generalised linear"
    certificate: ClassVar[str] = "A1 to A3; A4 from a ridge of curvature * feature_norm^2 / 8 on"
    feature_norm: float | None = Field(
        None,
        gt=0,
        description="Bound on a sample's ||a||_1, the intercept's 1 included; inf for none. Known from declared "
        "columns.",
    )
    radius: float = Field(5.0, gt=0, description=RADIUS)
    ridge: float = Field(0.0, ge=0, description=RIDGE)
    intercept: bool = Field(True, description="Append a feature of value 1 to each sample.")

    def build(self, shape: Shape, seed: int) -> Problem:
        if shape.levels is not None:
            instead = f"one_hot_{self.kind}"
            raise BadInput(
                f"problem.kind = {self.kind!r} needs feature columns, and the data give codes: use problem.kind = "
                f"{(instead if instead in PROBLEMS else 'one_hot_squared')!r}"
            )
        return super().build(shape, seed)

    def _arguments(self, shape: Shape) -> dict[str, Any]:
        norm = None if shape.feature_norm is None else shape.feature_norm + self.intercept
        bound = self._declared("feature_norm", self.feature_norm, norm, "the bound on a sample's ||a||_1")
        return {
            "columns": shape.columns,
            "feature_norm": bound,
            "radius": self.radius,
            "ridge": self.ridge,
            "intercept": self.intercept,
        }


class LogisticSection(_GeneralisedLinear):
    """Settings of `userdp.problems.Logistic`."""

    kind: Literal["logistic"]
    summary: ClassVar[str] = Logistic.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Logistic(**self._arguments(shape))


class _CountBound(ProblemSection):
    count_bound: float = Field(gt=0, description="Largest count; larger ones are clipped to it.")


class SquaredSection(TargetRange, _GeneralisedLinear):
    """Settings of `userdp.problems.Squared`."""

    kind: Literal["squared"]
    summary: ClassVar[str] = Squared.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return Squared(**self._arguments(shape), low=low, high=high)


class HuberRegressionSection(TargetRange, _GeneralisedLinear):
    """Settings of `userdp.problems.HuberRegression`."""

    kind: Literal["huber_regression"]
    summary: ClassVar[str] = HuberRegression.summary
    threshold: float = Field(1.0, gt=0, description="Residual at which the square becomes a line.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return HuberRegression(**self._arguments(shape), low=low, high=high, threshold=self.threshold)


class LpRegressionSection(TargetRange, _GeneralisedLinear):
    """Settings of `userdp.problems.LpRegression`."""

    kind: Literal["lp_regression"]
    certificate: ClassVar[str] = "A1, A2; below order 2 Hoelder instead of A3, and no A4"
    summary: ClassVar[str] = LpRegression.summary
    order: float = Field(1.5, gt=1, le=2, description="Power of the absolute error, which the loss is.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return LpRegression(**self._arguments(shape), low=low, high=high, order=self.order)


class PoissonSection(_CountBound, _GeneralisedLinear):
    """Settings of `userdp.problems.Poisson`."""

    kind: Literal["poisson"]
    summary: ClassVar[str] = Poisson.summary
    radius: float = Field(1.0, gt=0, description=RADIUS)

    def _make(self, shape: Shape, seed: int) -> Problem:
        return Poisson(**self._arguments(shape), count_bound=self.count_bound)


class _OneHot(ProblemSection):
    family: ClassVar[str] = "one-hot"
    certificate: ClassVar[str] = "A1 to A4 always"
    radius: float = Field(3.0, gt=0, description=RADIUS)
    ridge: float = Field(0.0, ge=0, description=RIDGE)

    def build(self, shape: Shape, seed: int) -> Problem:
        if shape.levels is None:
            raise BadInput(f"problem.kind = {self.kind!r} needs one column of categories: set data.codes, data.levels")
        return super().build(shape, seed)


class OneHotLogisticSection(_OneHot):
    """Settings of `userdp.problems.OneHotLogistic`."""

    kind: Literal["one_hot_logistic"]
    summary: ClassVar[str] = OneHotLogistic.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        return OneHotLogistic(shape.levels or 1, self.radius, ridge=self.ridge)


class OneHotSquaredSection(TargetRange, _OneHot):
    """Settings of `userdp.problems.OneHotSquared`."""

    kind: Literal["one_hot_squared"]
    summary: ClassVar[str] = OneHotSquared.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        low, high = self._range(shape)
        return OneHotSquared(shape.levels or 1, self.radius, ridge=self.ridge, low=low, high=high)


class OneHotPoissonSection(_CountBound, _OneHot):
    """Settings of `userdp.problems.OneHotPoisson`."""

    kind: Literal["one_hot_poisson"]
    summary: ClassVar[str] = OneHotPoisson.summary

    def _make(self, shape: Shape, seed: int) -> Problem:
        return OneHotPoisson(shape.levels or 1, self.radius, ridge=self.ridge, count_bound=self.count_bound)


class TorchSection(ProblemSection):
    """Settings of `userdp.problems.TorchProblem`."""

    kind: Literal["torch"]
    family: ClassVar[str] = "torch"
    certificate: ClassVar[str] = "none"
    summary: ClassVar[str] = "any torch module with a loss"
    module: str | None = Field(
        None, description="'package.module:function' that returns a torch module; a perceptron if not given."
    )
    hidden: list[int] = Field(default_factory=list, description="Widths of the perceptron's hidden layers.")
    outputs: int = Field(1, ge=1, description="Outputs of the perceptron.")
    loss: Literal["cross_entropy", "mse", "bce_with_logits"] = Field(description="Loss of outputs and target.")
    has_targets: bool = Field(True, description="False: features are their own targets (reconstruction).")
    precision: Literal["single", "double"] = Field("single", description="Arithmetic of the module.")

    def _make(self, shape: Shape, seed: int) -> Problem:
        from userdp.problems.torch_module import TorchProblem  # noqa: PLC0415  (torch is slow to import)

        return TorchProblem(
            module_factory(self.module, shape.columns, self.hidden, self.outputs),
            self.loss,
            shape.columns,
            has_targets=self.has_targets,
            seed=seed,
            precision=self.precision,
        )


_SECTIONS: tuple[type[ProblemSection], ...] = (
    LinearSection,
    QuadraticSection,
    HuberSection,
    BernoulliSection,
    LogisticSection,
    SquaredSection,
    HuberRegressionSection,
    LpRegressionSection,
    PoissonSection,
    OneHotLogisticSection,
    OneHotSquaredSection,
    OneHotPoissonSection,
    SparseLogisticSection,
    SparseSquaredSection,
    TorchSection,
)


def kind_of(section: type[ProblemSection]) -> str:
    """The ``kind`` that chooses a section's model."""
    return str(section.model_fields["kind"].annotation.__args__[0])  # type: ignore[union-attr]


PROBLEMS: dict[str, type[ProblemSection]] = {kind_of(section): section for section in _SECTIONS}
"""The section's model for each loss."""

AnyProblem: Any = Annotated[Union[_SECTIONS], Field(discriminator="kind")]  # noqa: UP007
