"""What a learning problem is: a loss with its domain, and a certificate of what is proven about the loss.

A certificate follows from DECLARED bounds on the data (clipped into them at load), never from the data: privacy
proofs rest on it for every sample anybody could hold.
"""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import AnyRows, dense, stacked
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.errors import BadInput, MissingAssumption
from userdp.problems.bounds import positive
from userdp.problems.landscape import Landscape, MeasuredCurvature
from userdp.problems.segments import clip_factors, parts, user_averages, weighted_sums

NEXT_TO_NOTHING = 1e-9
"""What is said of everybody, a class's share or a place in the targets' range, is measured as at least this part of the
range away from its ends, which no score predicts."""


@dataclass(frozen=True, eq=False)
class Box:
    """The domain ``{x : |x_j - centre_j| <= radius}``; ``radius = inf`` is the whole space."""

    centre: Vector
    radius: float

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise BadInput(f"domain radius must be positive, got {self.radius}")

    def project(self, x: Vector) -> Vector:
        """Nearest point of the box (1-Lipschitz in every coordinate)."""
        if np.isinf(self.radius):
            return x
        return np.clip(x, self.centre - self.radius, self.centre + self.radius)


@dataclass(frozen=True)
class Certificate:
    """What is proven about EVERY loss f(.; z), z within the declared bounds, over the whole domain.

    Attributes:
        convex: A1.
        lipschitz: A2, bound on ``||grad f||_inf``; None when there is no bound.
        gradient_norm: bound on ``||grad f||_2``; None when there is no bound.
        smoothness: A3, bound on the largest absolute row sum of the Hessian; None when there is no bound. Zero means
            that the loss is linear in x everywhere, not only on the domain.
        diagonally_dominant: A4, ``|H_jj| >= sum_k!=j |H_jk|``; with A1 and A3 it makes a gradient step of size
            at most ``2 / smoothness`` 1-Lipschitz in the sup norm.
        strong_convexity: lower bound on the smallest eigenvalue of the Hessian (utility only, no proof needs it).
        first_gradient: bound on ``||grad f||_inf`` at the centre of the domain, where training starts; None where it
            is not known to be less than elsewhere (utility only).
        hoelder: (nu, H) with ``||grad f(x) - grad f(y)||_2 <= H ||x - y||_2^nu`` over the domain, of losses that are
            not smooth; None where A3 bounds the Hessian, or nothing is proven (utility only).
        sparsity: most non-zero entries of a SAMPLE's gradient; None where all may be non-zero.
        reason: why something is missing, in one sentence, for error messages.
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
        for field in fields(self):
            if isinstance(getattr(self, field.name), MeasuredCurvature):
                raise TypeError(
                    f"Certificate.{field.name} is a proven bound: a measured curvature cannot take its place"
                )

    def missing(self) -> list[str]:
        """Which of A1 to A4 are not proven."""
        gaps = []
        if not self.convex:
            gaps.append("A1 (convex)")
        if self.lipschitz is None:
            gaps.append("A2 (bounded gradient, sup norm)")
        if self.smoothness is None:
            gaps.append("A3 (bounded Hessian row sums)")
        if not self.diagonally_dominant:
            gaps.append("A4 (diagonally dominant Hessian)")
        return gaps

    def require_contractive(self, who: str) -> None:
        """Raise unless A1 to A4 all hold.

        Raises:
            MissingAssumption: names each missing assumption, why, and what to do.
        """
        if gaps := self.missing():
            why = f" ({self.reason})" if self.reason else ""
            raise MissingAssumption(
                f"{who} needs a loss certified for A1 to A4; missing: {', '.join(gaps)}{why}. Choose a strategy that "
                "needs no certificate (robust_rounds, dp_fed_sgd), change the problem's bounds or its "
                "regularisation, or set strategy.without_certificate = true to run with NO privacy guarantee."
            )

    def as_dict(self) -> dict[str, float | bool | str | list[float] | None]:
        """Plain values, for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class Problem(ABC):
    """A loss f(x; z) over a box, with its certificate. Minimises the mean over users of each user's average loss.

    Attributes:
        name: what configurations call the problem.
        summary: the loss in one line.
        dimension: p, the number of model parameters.
        columns: k, the feature columns that a sample must have.
        has_targets: whether samples carry a target.
        domain: where x may lie.
        certificate: what is proven of f on the declared bounds.
        start: (p,) where training starts; None for the centre of the domain.
        mean_range: where users' mean targets lie of which `constant_model` makes a model; None where none predicts the
            same of every sample, or targets have no bounds.
        landscape: what a plan predicts accuracy by; None where nothing is known of the loss.
        measured: a curvature that was measured; None where steps follow the certificate.
        sparse: whether samples are sparse rows, and gradients too: then gradients and sums of them are
            `scipy.sparse.csr_array`, with as many entries as samples have, where other problems give arrays.
        gradient_rounding: how far, at most, each entry of a user's average gradient as computed lies from that of a
            loss with the certificate, one and the same for every model of the domain, whatever the user's samples (of
            which there are at most 2^26, say); None where there is no such bound. Zero for a gradient that depends on
            no model, to the last bit.
        node_bytes: of samples, for which a pass takes so much longer than a node's messages that they are worth a node.
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
    gradient_rounding: float | None = None
    node_bytes: int = 1 << 25

    def initial(self) -> Vector:
        """(p,) where training starts, which must not depend on private data."""
        return (self.domain.centre if self.start is None else self.start).copy()

    def starting_at(self, model: Vector) -> Self:
        """The same problem, whose training starts at a public ``model`` (p,) of its domain.

        How far that lies from the best one is not known, so nothing is predicted from there.
        """
        other = copy.copy(self)
        other.start = model
        other.certificate = replace(self.certificate, first_gradient=None)
        if self.landscape is not None:
            other.landscape = replace(self.landscape, start=math.inf)
        return other

    @property
    def curvature(self) -> float | None:
        """The bound on curvature that steps follow: the certified one, else the measured one (utility only)."""
        certified = self.certificate.smoothness
        return self.measured.most if certified is None and self.measured is not None else certified

    @abstractmethod
    def bound(self, block: Block) -> tuple[Block, int]:
        """Samples clipped into the declared bounds, and how many samples had to be.

        A function of each sample by itself, defined for all of them: no value of anybody's data raises. Samples
        without a place in the bounds are set aside (`Block.usable`).

        Raises:
            BadInput: columns or types other than declared.
        """

    @abstractmethod
    def user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """(U, p): each user's average gradient at x."""

    def rough_user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """The same, for rows that are clipped before anything else is done with them: a problem may round more.

        What a clip then promises of a row holds whatever the row is. A row stays a function of x and of that user's
        samples alone, and is finite where that of `user_gradients` is.
        """
        return self.user_gradients(x, block)

    def user_gradients_at(self, models: NDArray[np.float64], block: Block) -> AnyRows:
        """(U, p): each user's average gradient at its OWN model, row u of ``models`` (U, p).

        One user at a time here; the problems of this package do it for all users at once.
        """
        rows = [self.user_gradients(x, block.part(user, user + 1)) for user, x in enumerate(models)]
        return stacked(rows)

    @abstractmethod
    def sample_gradients(self, x: Vector, block: Block) -> AnyRows:
        """(N, p): each sample's gradient at x."""

    def sample_clipped_sums(self, x: Vector, block: Block, clip_norm: float) -> AnyRows:
        """(U, p): for each user the SUM of its samples' gradients, each first clipped to l2 norm ``clip_norm``.

        A gradient whose squared l2 norm is not a finite number counts as zero. Works in pieces: never holds (N, p).

        Raises:
            BadInput: ``clip_norm`` is not a positive finite number.
        """
        positive("clip_norm", clip_norm)
        sums = np.zeros((block.users, self.dimension))
        for users, part in parts(block, row_bytes=8 * self.dimension):
            gradients = dense(self.sample_gradients(x, part))
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and becomes zero
                factors = clip_factors(np.einsum("ij,ij->i", gradients, gradients), clip_norm)
            gradients[factors == 0.0] = 0.0
            sums[users] += weighted_sums(gradients, part.offsets, factors)
        return sums

    @abstractmethod
    def sample_losses(self, x: Vector, block: Block) -> NDArray[np.float64]:
        """(N,): each sample's loss at x."""

    def metrics(self, x: Vector, block: Block) -> dict[str, NDArray[np.float64]]:
        """Per-user metrics, name -> (U,); the mean over users is what reports show. Always holds "test_loss"."""
        return {"test_loss": user_averages(self.sample_losses(x, block), block)}

    def predict(self, x: Vector, block: Block) -> dict[str, NDArray[np.float64]]:
        """What model x predicts of each sample from its features; targets of the block are not used.

        Returns:
            "prediction" (N,), the target's mean or its class; and, where targets are classes, "probability" (N,) of
            class 1, or "probability.0", "probability.1", ... of several.

        Raises:
            BadInput: the loss predicts nothing: its model is a mean, say.
        """
        raise BadInput(
            f"problem.kind = {self.name!r} predicts nothing of a sample; its model is a vector, in model.npz"
        )

    def observed(self, block: Block) -> NDArray[np.float64] | None:
        """(N,): what `predict` is to be compared with; None where samples have no target."""
        return None if block.targets is None else block.targets.astype(np.float64)

    def observed_sizes(self, block: Block) -> NDArray[np.int64]:
        """(U,): how many of `observed` are each user's, in the order of the users."""
        return block.sizes

    def constant_model(self, mean: Vector) -> Vector:
        """(p,): the model of the domain that predicts, as nearly as it can, that mean target of every sample.

        Args:
            mean: (1,), or of several classes their shares.

        Raises:
            BadInput: no model does: there is no ``mean_range``.
        """
        raise BadInput(f"problem.kind = {self.name!r} has no model that predicts the same of every sample")

    def target_means(self, block: Block) -> NDArray[np.float64] | None:
        """(U, k): each user's mean target, k = 1, or of several classes the share of each; None without targets."""
        return None if block.targets is None else user_averages(block.targets.astype(np.float64), block)[:, None]

    def constant_metrics(self, mean: Vector, block: Block) -> dict[str, NDArray[np.float64]]:
        """Per-user metrics, name -> (U,), of what says the same of every sample; none where no loss measures that.

        Args:
            mean: (k,) what is said, as `target_means` has it, whether or not a model of the domain can.
            block: the samples. No ridge term counts, as there are no parameters.
        """
        return {}

    def computed(self) -> dict[str, bool | int | float]:
        """How gradients are computed, by name, where that was chosen among several ways; empty elsewhere."""
        return {}

    def excess_risk(self, x: Vector, federation: Federation) -> float | None:
        """F(x) - min F over the domain in closed form, where the population is known; None elsewhere."""
        return None

    def optimum(self, federation: Federation) -> Vector | None:
        """(p,) where the population's risk F is least over the domain, where that is known; None elsewhere."""
        return None
