"""Output perturbation: minimise a regularised convex loss, add noise once, go to the nearest model in the sup norm.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 6), with sensitivities that are at most theirs.

The risk is ``F(x) = (1/n) sum_i f_i(x)`` over n records, regularised by ``(lambda / 2) ||x - start||_2^2``. A record is
a sample, or a whole user whose f_i is the mean loss of its samples. All that the proofs need of a record is the same in
both cases: for x, y in the domain

(a) ``||grad f_i(x)||_2 <= L`` and ``||grad f_i(x)||_1 <= L sqrt(s)``;
(b) ``||grad f_i(x) - grad f_i(y)||_1 <= sqrt(min(2s, d)) H ||x - y||_2`` if f_i is H-smooth.

For a sample with an s-sparse gradient both are norm comparisons: supports may depend on x, so a difference has up to 2s
non-zero entries. The mean over a user's samples is not sparse, but keeps both, by the triangle inequality.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strategies.baselines.sparse_gradients.accelerated import (
    AcceleratedDescent,
    gap_after,
    momentum_share,
    rounds_until,
)
from userdp.accounting import check_least, check_positive
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.noise import NoiseSource

Projection = Callable[[Vector], Vector]


@dataclass(frozen=True)
class ConvexRisk:
    """The bounds on the mean of n convex losses, proven for every record that anybody could hold.

    *Formal guarantees.* Unit: one record; relation: replace-one; n public. Let x and x' be the exact minimisers of the
    regularised risks of two neighbouring data sets, and b the change of the mean gradient at x' by the record that
    differs: ``||b||_2 <= 2L/n``, ``||b||_1 <= 2 L sqrt(s) / n``.

    l2: ``lambda ||x - x'||_2 <= 2L/n``, over any closed convex domain, smooth or not: add the optimality conditions of
    both and use strong convexity.

    l1, the least of three. (i) ``sqrt(d)`` times the l2 bound. (ii) Over the whole space ``x = start - grad F(x) /
    lambda``, so by (b) ``lambda ||x - x'||_1 <= sqrt(min(2s, d)) H (2L / (lambda n)) + 2 L sqrt(s) / n``. (iii) If
    Hessians are diagonally dominant, over the whole space or a box: with ``e = x - x'`` and A the Hessian of F averaged
    from x' to x, optimality in a box says ``sign(e_j) ((A + lambda I) e + b)_j <= 0`` for each j (the sign of zero is
    zero; where Hessians exist only almost everywhere, mollify). Added up, ``lambda ||e||_1 <= ||b||_1 - sum_k |e_k|
    (A_kk - sum_j!=k |A_jk|) <= 2 L sqrt(s) / n``. Raises `BadInput` for a number out of range.
    """

    records: int  # n
    dimension: int  # d
    sparsity: int  # s, most non-zero entries of a SAMPLE's gradient; d where nothing is known
    gradient_norm: float  # L, bound on the l2 norm of a gradient, > 0
    smoothness: float | None = None  # H, bound on the spectral norm of Hessians; None where there is no bound
    diagonally_dominant: bool = False  # whether ``A_kk >= sum_j!=k |A_jk|`` for Hessians A; needs a smoothness
    domain: Literal["space", "box", "convex"] = "space"  # "space", "box", or another "convex" set

    def __post_init__(self) -> None:
        if self.records < 1 or self.dimension < 1:
            raise BadInput(f"records = {self.records}, dimension = {self.dimension}: both must be at least 1")
        if not 1 <= self.sparsity <= self.dimension:
            raise BadInput(f"sparsity = {self.sparsity}: must lie between 1 and the dimension {self.dimension}")
        if not 0 < self.gradient_norm < math.inf:
            raise BadInput(f"gradient norm = {self.gradient_norm}: must be a positive number")
        if self.smoothness is not None and not 0 <= self.smoothness < math.inf:
            raise BadInput(f"smoothness = {self.smoothness}: must be zero or a positive number, or None")
        if self.domain not in ("space", "box", "convex"):
            raise BadInput(f"domain = {self.domain!r}: must be 'space', 'box' or 'convex'")

    @property
    def gradient_sum(self) -> float:
        """``L sqrt(s)``, bound on the l1 norm of a gradient."""
        return self.gradient_norm * math.sqrt(self.sparsity)

    @property
    def sup_factor(self) -> int:
        """Return how much farther than the noise the nearest model can be from the minimiser, in the sup norm.

        1 where the projection clips coordinates (or does nothing), 2 by the triangle inequality elsewhere.
        """
        return 2 if self.domain == "convex" else 1

    def l2_sensitivity(self, regularisation: float) -> float:
        """Return the l2 sensitivity of the exact minimiser."""
        return 2 * self.gradient_norm / (_positive(regularisation) * self.records)

    def l1_sensitivity(self, regularisation: float) -> float:
        """Return the l1 sensitivity of the exact minimiser."""
        weight = _positive(regularisation)
        return min(linear / weight + quadratic / weight**2 for linear, quadratic in self._l1_forms())

    def _l1_forms(self) -> list[tuple[float, float]]:
        """(p, q) of every l1 bound ``p / lambda + q / lambda^2`` that is proven."""
        dense = 2 * self.gradient_norm / self.records
        sparse = dense * math.sqrt(self.sparsity)
        forms = [(dense * math.sqrt(self.dimension), 0.0)]
        if self.smoothness is None:
            return forms
        if self.domain == "space":
            forms.append((sparse, dense * math.sqrt(min(2 * self.sparsity, self.dimension)) * self.smoothness))
        if self.diagonally_dominant and self.domain != "convex":
            forms.append((sparse, 0.0))
        return forms

    def mechanism(
        self, regularisation: float, epsilon: float, delta: float, distance: float = 0.0
    ) -> GaussianMechanism | LaplaceMechanism:
        """The noise for a model within ``distance`` (l2) of the exact minimiser, whatever the data.

        Two such models are ``2 distance`` farther apart in l2 than the minimisers, ``2 sqrt(d) distance`` in l1. Raises
        `BadInput`: a number out of range.
        """
        if not 0 <= distance < math.inf:
            raise BadInput(f"distance = {distance}: must be zero or a positive number")
        if delta == 0:
            off = 2 * math.sqrt(self.dimension) * distance
            return LaplaceMechanism(self.l1_sensitivity(regularisation) + off, epsilon)
        return GaussianMechanism.calibrated(self.l2_sensitivity(regularisation) + 2 * distance, epsilon, delta)

    def sup_noise(self, mechanism: GaussianMechanism | LaplaceMechanism, failure: float) -> float:
        """Return a bound on every coordinate of the noise, except with probability ``failure`` (union bound)."""
        if isinstance(mechanism, LaplaceMechanism):
            return mechanism.scale * math.log(self.dimension / failure)
        return mechanism.standard_deviation * math.sqrt(2 * math.log(2 * self.dimension / failure))

    def excess_bound(self, regularisation: float, sup_noise: float, radius: float, gap: float = 0.0) -> float:
        """Bound on ``F(model) - F(u)`` for every u of the domain within ``radius`` of the start.

        ``c L sqrt(s) sup_noise + (lambda / 2) radius^2 + gap``, with c the `sup_factor`, whenever no coordinate of the
        noise exceeds ``sup_noise`` and the regularised risk was minimised up to ``gap``: by convexity F moves by at
        most its gradient's l1 norm times the way in the sup norm (Theorem 7.1, with its constant corrected).
        """
        return self.sup_factor * self.gradient_sum * sup_noise + regularisation / 2 * radius**2 + gap

    def best_regularisation(self, epsilon: float, delta: float, radius: float, failure: float) -> float:
        """The lambda that (nearly) minimises `excess_bound` for an exact minimiser.

        Noise enters as ``p / lambda + q / lambda^2``; each summand alone balances ``lambda radius^2 / 2`` at ``sqrt(2p)
        / radius`` and at ``cbrt(4q / radius^2)``, and the larger of both is taken. Raises `BadInput`: a number out of
        range.
        """
        check_positive(radius=radius)
        if not 0 < failure < 1:
            raise BadInput(f"failure = {failure}: must lie strictly between 0 and 1")
        choices = []
        for linear, quadratic in self._l1_forms() if delta == 0 else [(2 * self.gradient_norm / self.records, 0.0)]:
            one = LaplaceMechanism(1.0, epsilon) if delta == 0 else GaussianMechanism.calibrated(1.0, epsilon, delta)
            unit = self.sup_factor * self.gradient_sum * self.sup_noise(one, failure)
            weight = max(math.sqrt(2 * unit * linear) / radius, math.cbrt(4 * unit * quadratic / radius**2))
            bound = unit * (linear / weight + quadratic / weight**2) + weight * radius**2 / 2
            choices.append((bound, weight))
        return min(choices)[1]

    def population_regularisation(self, epsilon: float, delta: float, radius: float, failure: float) -> float:
        """The lambda of Theorem 7.6, for the risk of the law that records are drawn from.

        ``(L / D) (ln(n) ln(1/beta) / n + sqrt(s ln(1/delta) ln(d/beta)) / (epsilon n))^(1/2)`` for ``delta > 0``, and
        ``(L^2 H s ln(d/beta) / (D^2 epsilon n))^(1/3)`` for ``delta = 0``, with D the radius and beta the failure.
        Privacy does not rest on it. Raises `BadInput`: pure privacy without a smoothness.
        """
        check_positive(epsilon=epsilon, radius=radius)
        slope, n, spread = self.gradient_norm, self.records, math.log(self.dimension / failure)
        if delta > 0:
            private = math.sqrt(self.sparsity * math.log(1 / delta) * spread) / (epsilon * n)
            return slope / radius * math.sqrt(math.log(n) * math.log(1 / failure) / n + private)
        if not self.smoothness:
            raise BadInput("the paper's weight for pure privacy needs a smooth loss: set regularisation")
        return math.cbrt(slope**2 * self.smoothness / radius**2 * self.sparsity * spread / (epsilon * n))

    # The paper's own constants ---------------------------------------------------------------------------------------

    def paper_scale(self, regularisation: float, epsilon: float, delta: float) -> float:
        """Algorithm 6's noise: a Laplace scale for ``delta = 0`` (whole space), else a normal standard deviation.

        Raises `BadInput`: an epsilon above 1 with normal noise, for which the paper's calibration is not proven, or no
        smoothness or another domain than the whole space with Laplace noise.
        """
        length = self.l2_sensitivity(regularisation) / epsilon
        if delta > 0:
            if epsilon > 1:
                raise BadInput(f"epsilon = {epsilon}: the classical normal noise is proven up to 1 only")
            return length * math.sqrt(2 * math.log(1.25 / delta))
        if self.smoothness is None or self.domain != "space":
            raise BadInput("the paper's pure guarantee needs a smooth loss over the whole space")
        return length * math.sqrt(2 * self.sparsity) * (2 * self.smoothness / regularisation + 1)

    def paper_guarantee(self, epsilon: float, delta: float, radius: float, failure: float) -> tuple[float, float]:
        """(lambda, bound on the excess risk with probability ``1 - failure``) of Theorem 7.1 with explicit constants.

        For ``delta > 0``: ``(4 L / radius) q`` and ``4 L radius q``, over any convex domain, where ``q = (s
        ln(1.25/delta) ln(2d/failure))^(1/4) / sqrt(epsilon n)``. For ``delta = 0`` with ``l = s ln(d/failure) /
        (epsilon n)``: the larger of ``(16 sqrt(2) L^2 H l / radius^2)^(1/3)`` and ``(4 sqrt(2) L^2 l /
        radius^2)^(1/2)``. Raises `BadInput`: as `paper_scale`.
        """
        slope, n = self.gradient_norm, self.records
        if delta > 0:
            logs = self.sparsity * math.log(1.25 / delta) * math.log(2 * self.dimension / failure)
            rate = logs**0.25 / math.sqrt(epsilon * n)
            weight = 4 * slope * rate / radius
            self.paper_scale(weight, epsilon, delta)
            return weight, 4 * slope * radius * rate
        share = self.sparsity * math.log(self.dimension / failure) / (epsilon * n)
        cubic = 16 * math.sqrt(2) * slope**2 * (self.smoothness or 0.0) * share / radius**2
        weight = max(math.cbrt(cubic), math.sqrt(4 * math.sqrt(2) * share) * slope / radius)
        noise = self.paper_scale(weight, epsilon, delta) * math.log(self.dimension / failure)
        return weight, self.excess_bound(weight, noise, radius)


@dataclass(frozen=True)
class PerturbedMinimiser:
    """The whole algorithm: a fixed number of accelerated steps, one noise, one projection.

    *Formal guarantees.* Unit, relation and proof: those of `ConvexRisk`. The steps are so many, whatever the data, and
    their end is within `distance` of the exact minimiser: the gap E of `AcceleratedDescent` is at first at most
    ``L ||start - x*|| <= L^2 / lambda`` (strong convexity and monotonicity), and ``(lambda / 2)`` times the
    squared distance is at most the gap at the end. The sensitivity covers twice that distance. (epsilon, delta)-DP
    by the Gaussian mechanism, or (epsilon, 0) by the Laplace mechanism, for whoever sees the model; whoever computes
    the gradients sees exact iterates and is trusted. Assumption: every gradient is that of a fixed convex loss within
    the bounds; rounding in float64 is not accounted for.
    """

    risk: ConvexRisk  # what is proven of the loss; needs a smoothness
    regularisation: float  # lambda > 0
    epsilon: float  # of the release
    delta: float  # in [0, 1); 0 for Laplace noise
    rounds: int  # T, gradients of the whole data set, at least 1

    def __post_init__(self) -> None:
        check_least("rounds", self.rounds)
        _curvature(self.risk, self.regularisation)

    @classmethod
    def planned(
        cls, risk: ConvexRisk, regularisation: float, epsilon: float, delta: float, slack: float = 0.01
    ) -> "PerturbedMinimiser":
        """Return the algorithm with the fewest rounds for which the sensitivity grows by at most the share ``slack``.

        Raises `BadInput` for a number out of range, or no smoothness.
        """
        check_positive(slack=slack)
        if delta == 0:
            distance = slack * risk.l1_sensitivity(regularisation) / (2 * math.sqrt(risk.dimension))
        else:
            distance = slack * risk.l2_sensitivity(regularisation) / 2
        theta = momentum_share(regularisation, _curvature(risk, regularisation))
        target = regularisation / 2 * distance**2
        rounds = rounds_until(target, risk.gradient_norm**2 / regularisation, theta)
        return cls(risk, regularisation, epsilon, delta, rounds)

    @property
    def gap(self) -> float:
        """Bound on how far the regularised risk at the last step is above its minimum."""
        theta = momentum_share(self.regularisation, _curvature(self.risk, self.regularisation))
        return gap_after(self.rounds, self.risk.gradient_norm**2 / self.regularisation, theta)

    @property
    def distance(self) -> float:
        """Bound on the l2 distance from the last step to the exact minimiser."""
        return math.sqrt(2 * self.gap / self.regularisation)

    @property
    def mechanism(self) -> GaussianMechanism | LaplaceMechanism:
        """The noise, with the distance in its sensitivity."""
        return self.risk.mechanism(self.regularisation, self.epsilon, self.delta, self.distance)

    def excess_bound(self, radius: float, failure: float) -> float:
        """Bound on ``F(model) - F(u)``, ``||u - start||_2 <= radius``, with probability at least ``1 - failure``."""
        noise = self.risk.sup_noise(self.mechanism, failure)
        return self.risk.excess_bound(self.regularisation, noise, radius, self.gap)

    def descent(self, start: Vector, project: Projection) -> AcceleratedDescent:
        """The steps, before the first one; ``project`` is the Euclidean projection onto the domain."""
        return AcceleratedDescent(start, self.regularisation, _curvature(self.risk, self.regularisation), project)

    def step(self, descent: AcceleratedDescent, gradient: Vector, start: Vector) -> None:
        """One step along ``gradient``, that of F at ``descent.query``, without the regularisation."""
        descent.step(gradient + self.regularisation * (descent.query - start))

    def __call__(
        self,
        gradient: Projection,  # from x (d,) to the gradient of F at x
        start: Vector,  # (d,), public, in the domain
        noise: NoiseSource,
        project: Projection = np.asarray,  # Euclidean projection onto the domain
        sup_project: Projection = np.asarray,  # projection onto the domain in the sup norm
    ) -> Vector:
        """A private model (d,)."""
        descent = self.descent(start, project)
        for _ in range(self.rounds):
            self.step(descent, gradient(descent.query), start)
        return sup_project(self.mechanism.release(descent.point, noise))


def _curvature(risk: ConvexRisk, regularisation: float) -> float:
    """Smoothness of the regularised risk."""
    if risk.smoothness is None:
        raise BadInput("the loss has no certified smoothness, without which steps towards its minimiser have no bound")
    return risk.smoothness + _positive(regularisation)


def _positive(regularisation: float) -> float:
    check_positive(regularisation=regularisation)
    return regularisation
