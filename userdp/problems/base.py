"""The learning problem: a loss with its domain, and a certificate of the proven properties of the loss.

A certificate follows from DECLARED bounds on the data, into which samples are clipped at load. It never follows from
the data: privacy proofs rest on it for every possible sample.
"""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.fixed_order import EINSUM, inner
from userdp.arrays.sparse_rows import AnyRows, dense, stacked
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.errors import BadInput, MissingAssumption
from userdp.problems.bounds import positive
from userdp.problems.embeddings import Tables
from userdp.problems.segments import clip_factors, parts, user_averages, weighted_sums

Device = Literal["auto", "cpu", "cuda"]
"""A device that computes a loss. cuda: an NVIDIA GPU; auto: a GPU if this process finds one, else the processor."""

NEXT_TO_NOTHING = 1e-9
"""The least distance, as a part of the range, from a constant prediction to an end that no finite score predicts."""

AVERAGE_SIZE = math.sqrt(2 / math.pi)
"""The expected size of a standard normal number."""

ASSUMED_SIZE = 1.0
"""The assumed largest target, and root mean square of a feature, if they have no declared bound."""


@dataclass(frozen=True)
class MeasuredCurvature:
    """A measured or guessed bound ``most`` on a loss's curvature, for step sizes; NO PROOF rests on it.

    It is no number, so that no `Certificate` can hold it and no formula can mistake it for certified.
    """

    most: float


@dataclass(frozen=True)
class Landscape:
    """The sizes of a loss on its declared bounds, from which plans predict accuracy. No privacy proof reads them."""

    start: float
    """Bound on the risk of the initial model minus the least one, which the domain is assumed to contain."""
    trace: float
    """Largest trace of a sample's Hessian at the initial model."""
    steepness: float
    """Most that the risk grows for each unit of standard deviation of independent normal noise on every coordinate of a
    model; infinite if unbounded."""
    pull: float = 0.0
    """Trace of the ridge term's Hessian, in addition to ``trace``."""
    assumed: bool = False
    """True if data have no bounds and `ASSUMED_SIZE` stands for them: a scale to compare noise with, which refuses
    nothing."""

    def of_noise(self, deviation: float) -> float:
        """Bound the cost of independent normal noise of that standard deviation on every coordinate of the best model.

        A loss of curvature H loses ``trace(H) deviation^2 / 2`` in expectation, and one of bounded slope no more than
        its slope times the expected change of its score by the noise.
        """
        square = deviation * deviation  # of a float: infinite where ** would raise
        return min(self.trace * square / 2, self.steepness * deviation) + self.pull * square / 2


@dataclass(frozen=True, eq=False)
class Box:
    """The domain ``{x : |x_j - centre_j| <= radius}``; ``radius = inf`` is the whole space."""

    centre: Vector
    radius: float

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise BadInput(f"domain radius must be positive, got {self.radius}")

    def project(self, x: Vector) -> Vector:
        """Return the nearest point of the box (1-Lipschitz in every coordinate)."""
        if np.isinf(self.radius):
            return x
        return np.clip(x, self.centre - self.radius, self.centre + self.radius)


@dataclass(frozen=True)
class Certificate:
    """The properties proven for EVERY loss f(.; z), z within the declared bounds, over the whole domain.

    Attributes:
        convex: A1.
        lipschitz: A2, bound on ``||grad f||_inf``; None if unbounded.
        gradient_norm: bound on ``||grad f||_2``; None if unbounded.
        smoothness: A3, bound on the largest absolute row sum of the Hessian; None if unbounded. Zero means that the
            loss is linear in x everywhere, not only on the domain.
        diagonally_dominant: A4, ``|H_jj| >= sum_k!=j |H_jk|``; with A1 and A3 it makes a gradient step of size
            at most ``2 / smoothness`` 1-Lipschitz in the sup norm.
        strong_convexity: lower bound on the smallest eigenvalue of the Hessian (utility only, no proof needs it).
        first_gradient: bound on ``||grad f||_inf`` at the centre of the domain, the initial model; None if no better
            bound than ``lipschitz`` is known (utility only).
        hoelder: (nu, H) with ``||grad f(x) - grad f(y)||_2 <= H ||x - y||_2^nu`` over the domain, for losses that are
            not smooth; None if A3 bounds the Hessian, or nothing is proven (utility only).
        sparsity: most non-zero entries of a SAMPLE's gradient; None if all may be non-zero.
        reason: why a property is missing, in one sentence, for error messages.
    """

    convex: bool = False
    lipschitz: float | None = None
    gradient_norm: float | None = None
    smoothness: float | None = None
    diagonally_dominant: bool = False
    strong_convexity: float = 0.0
    first_gradient: float | None = None
    hoelder: tuple[float, float] | None = None
    sparsity: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, MeasuredCurvature):
                raise TypeError(f"Certificate.{name} is a proven bound: a measured curvature cannot take its place")

    def missing(self) -> list[str]:
        """Return the names of A1 to A4 that are not proven."""
        proven = {
            "A1 (convex)": self.convex,
            "A2 (bounded gradient, sup norm)": self.lipschitz is not None,
            "A3 (bounded Hessian row sums)": self.smoothness is not None,
            "A4 (diagonally dominant Hessian)": self.diagonally_dominant,
        }
        return [name for name, holds in proven.items() if not holds]

    def require_contractive(self, who: str) -> None:
        """Raise `MissingAssumption` unless A1 to A4 all hold; it names each missing one, the reason, and the remedy."""
        if gaps := self.missing():
            why = f" ({self.reason})" if self.reason else ""
            raise MissingAssumption(
                f"{who} needs a loss certified for A1 to A4; missing: {', '.join(gaps)}{why}. Choose a strategy that "
                "needs no certificate (robust_rounds, dp_fed_sgd), change the problem's bounds or its "
                "regularisation, or set strategy.without_certificate = true to run with NO privacy guarantee."
            )

    def as_dict(self) -> dict[str, float | bool | str | list[float] | None]:
        """Return plain values, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


class Problem(ABC):
    """A loss f(x; z) over a box, with its certificate. Training minimises the mean over users of their average loss.

    Attributes:
        name: the kind of the problem in configurations.
        summary: the loss in one line.
        dimension: p, the number of model parameters.
        columns: k, the feature columns of a sample.
        has_targets: whether samples carry a target.
        domain: the set of allowed models x.
        certificate: the proven properties of f on the declared bounds.
        start: (p,) the initial model; None for the centre of the domain.
        mean_range: the range of mean targets for which `constant_model` has a model; None if there is no such model, or
            targets have no bounds.
        landscape: the sizes from which a plan predicts accuracy; None if unknown.
        measured: a measured curvature; None if step sizes follow the certificate.
        sparse: whether gradients are sparse: they and their sums are then `scipy.sparse.csr_array`; other problems
            return arrays.
        sample_entries: the entries of a sample's sparse gradient; None if they are as many as the sample has.
        gradient_rounding: bound on the distance of each entry of a user's computed average gradient from the gradient
            of a loss with the certificate, the same for every model of the domain, for any samples (at most 2^26).
            None for no such bound. Zero for a gradient that depends on no model, bit for bit.
        bends_boundedly: whether `user_curvatures` has bounds. The loss is then convex at every model, if it is
            certified as convex on the domain.
        fixed_order: whether a user's gradients (also at its own model), losses and sums have the same last bits in
            every block within `userdp.arrays.fixed_order`. Each class says so of itself: a subclass, which may add up
            otherwise, inherits nothing, and its users are computed one by one where noise is secure.
        mean_sufficient: whether users' gradients read nothing of samples but `userdp.problems.segments.user_means`;
            each class says so of itself.
        tables: the tables of rows among the parameters, such as embeddings; None for none.
        node_bytes: bytes of samples that justify a node of their own: a pass over them takes much longer than a node's
            messages.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    dimension: int
    columns: int
    has_targets: bool
    domain: Box
    certificate: Certificate
    start: Vector | None = None
    mean_range: tuple[float, float] | None = None
    landscape: Landscape | None = None
    measured: MeasuredCurvature | None = None
    sparse: bool = False
    sample_entries: int | None = None
    gradient_rounding: float | None = None
    bends_boundedly: bool = False
    fixed_order: bool = False
    mean_sufficient: bool = False
    tables: Tables | None = None
    node_bytes: int = 1 << 25

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.fixed_order = vars(cls).get("fixed_order", False)
        cls.mean_sufficient = vars(cls).get("mean_sufficient", False)

    def initial(self) -> Vector:
        """Return the (p,) initial model, which must not depend on private data."""
        return (self.domain.centre if self.start is None else self.start).copy()

    def starting_at(self, model: Vector) -> Self:
        """Return the problem with a public initial ``model`` (p,), whose distance from the best model is unknown."""
        other = copy.copy(self)
        other.start = model
        other.certificate = replace(self.certificate, first_gradient=None)
        if self.landscape is not None:
            other.landscape = replace(self.landscape, start=math.inf)
        return other

    def with_terms(self, low: float, high: float, *, exposed: bool = False) -> Self:
        """Return the problem for samples with a known term of their score in [low, high], certified with it.

        ``exposed``: it is the logarithm of an exposure. Raises `BadInput` for a loss that has no one score, or no rate.
        """
        raise BadInput(
            f"problem.kind = {self.name!r} has no one score to which data.exposure or data.offset can add: use "
            "squared, logistic, cloglog or poisson, or leave it out"
        )

    def use_device(self, device: Device) -> None:
        """Set the device for every process that computes this problem, without looking for it yet.

        Raises `BadInput` if it is a GPU and NumPy computes the problem.
        """
        if device == "cuda":
            raise BadInput(
                f"engine.device = 'cuda': problem.kind = {self.name!r} is computed on the processor, only torch "
                "modules run on a GPU; leave engine.device out"
            )

    def settle_device(self) -> None:  # noqa: B027  (the processor is always there)
        """Look for the device in this process; raise `BadInput` if it is missing or cannot compute the problem."""

    @property
    def curvature(self) -> float | None:
        """The bound on curvature for step sizes: the certified one, or else the measured one (utility only)."""
        certified = self.certificate.smoothness
        return self.measured.most if certified is None and self.measured is not None else certified

    @abstractmethod
    def bound(self, block: Block) -> tuple[Block, int]:
        """Clip samples into the declared bounds, and return how many samples changed.

        A function of each sample alone, defined for all values: no user's data raise. Samples without a place in the
        bounds are set aside (`Block.usable`). Raises `BadInput` if columns or types differ from the declaration.
        """

    @abstractmethod
    def user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """Compute the (U, p) average gradients of users at x."""

    def rough_user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """Compute `user_gradients` for rows that are clipped next: a problem may round more.

        A clip bounds every row, whatever its value. A row remains a function of x and of that user's samples alone, and
        is finite if that of `user_gradients` is.
        """
        return self.user_gradients(x, block)

    def user_gradients_at(self, models: NDArray[np.float64], block: Block) -> AnyRows:
        """Compute the (U, p) average gradients, each user's at its OWN model (U, p); by default user by user."""
        rows = [self.user_gradients(x, block.part(user, user + 1)) for user, x in enumerate(models)]
        return stacked(rows)

    def user_curvatures(self, block: Block, turn: NDArray[np.float64] | None = None) -> Vector:
        """Bound the largest eigenvalue of the Hessian of each user's average loss, (U,), at EVERY model.

        ``turn`` is T of coordinates ``x = start + T z``, for the Hessian by z (see `Coordinates`). Infinite for a user
        without a bound. Raises `BadInput` if the problem has none (``bends_boundedly``).
        """
        raise BadInput(f"problem.kind = {self.name!r} does not bound how far a user's gradient changes with the model")

    @abstractmethod
    def sample_gradients(self, x: Vector, block: Block) -> AnyRows:
        """Compute the (N, p) gradients of samples at x."""

    def sample_clipped_sums(self, x: Vector, block: Block, clip_norm: float) -> AnyRows:
        """Compute for each user the SUM of its samples' gradients, each clipped to l2 norm ``clip_norm`` first: (U, p).

        A gradient whose squared l2 norm is not finite counts as zero. Works in pieces: never holds (N, p). Raises
        `BadInput` unless ``clip_norm`` is positive and finite.
        """
        positive("clip_norm", clip_norm)
        sums = np.zeros((block.users, self.dimension))
        for users, part in parts(block, row_bytes=8 * self.dimension):
            gradients = dense(self.sample_gradients(x, part))
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and becomes zero
                factors = clip_factors(inner(gradients, gradients, EINSUM), clip_norm)
            gradients[factors == 0.0] = 0.0
            sums[users] += weighted_sums(gradients, part.offsets, factors)
        return sums

    @abstractmethod
    def sample_losses(self, x: Vector, block: Block) -> NDArray[np.float64]:
        """Compute the (N,) losses of samples at x."""

    def metrics(self, x: Vector, block: Block) -> dict[str, NDArray[np.float64]]:
        """Compute per-user metrics, name -> (U,); reports show their means. They always include "test_loss"."""
        return {"test_loss": user_averages(self.sample_losses(x, block), block)}

    def predict(self, x: Vector, block: Block) -> dict[str, NDArray[np.float64]]:
        """Predict each sample's target from its features; targets of the block are not used.

        Returns "prediction" (N,), the target's mean or its class; for classes also "probability" (N,) of class 1, or
        "probability.0", "probability.1", ... Raises `BadInput` if the loss predicts nothing: its model is a mean, say.
        """
        raise BadInput(f"problem.kind = {self.name!r} makes no predictions; its model is a vector, in model.npz")

    def observed(self, block: Block) -> NDArray[np.float64] | None:
        """Return the (N,) values to compare with `predict`; None if samples have no target."""
        return None if block.targets is None else block.targets.astype(np.float64)

    def observed_sizes(self, block: Block) -> NDArray[np.int64]:
        """Return the (U,) numbers of `observed` values of each user, in the order of the users."""
        return block.sizes

    def constant_model(self, mean: Vector) -> Vector:
        """Return the (p,) model of the domain whose prediction for every sample is nearest to that mean target.

        The mean is (1,), or (K,) shares of classes. Raises `BadInput` if there is no such model (no ``mean_range``).
        """
        raise BadInput(f"problem.kind = {self.name!r} has no model that predicts the same of every sample")

    def target_means(self, block: Block) -> NDArray[np.float64] | None:
        """Compute each user's mean target (U, 1), or the share of each class (U, K); None without targets."""
        return None if block.targets is None else user_averages(block.targets.astype(np.float64), block)[:, None]

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, NDArray[np.float64]]:
        """Compute per-user metrics, name -> (U,), of one constant prediction; empty if no loss measures it.

        The (k,) prediction has the form of `target_means`; no model need predict it, and no ridge term counts.
        """
        return {}

    def sizes(self) -> dict[str, int | float]:
        """Return the parts of a computation that take much memory, by name, for plans; empty if none does."""
        return {}

    def computed(self) -> dict[str, bool | int | float]:
        """Return the chosen ways to compute gradients, by name; empty if there is no choice."""
        return {}

    def excess_risk(self, x: Vector, federation: Federation) -> float | None:
        """Compute F(x) - min F over the domain in closed form; None if the population is unknown."""
        return None

    def optimum(self, federation: Federation) -> Vector | None:
        """Return the (p,) minimiser of the population's risk F over the domain; None if it is unknown."""
        return None
