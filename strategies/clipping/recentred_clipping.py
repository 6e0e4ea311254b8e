"""Recentred clipping: users are clipped about a public centre, the gradient as released so far."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS, clip_facts
from strategies.clipping.local_options import UpdateOptions, local_numbers
from strategies.core.about import About
from strategies.core.options import CLIP_WIDTH, Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.results import Noise, Step
from strategies.core.scheme import Outline, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Relation
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.nodes.local_training import LocalTraining
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Box, Problem
from userdp.problems.noise_paths import NoisySteps
from userdp.sampling import DisjointBatches, WeightedBatches, WeightedSlots
from userdp.state import Stateful

LOG_DISTANCE = STATISTICS["log_distance"]  # The statistic of users' distances from the centre
_LEAST_SPREAD = 0.15  # Least assumed spread of users, over their measured distance
_CORNER = 1e9  # The step on a linear loss: across any domain


@dataclass(frozen=True)
class Geometry:
    """The constants of a `Centre`: public numbers, on which no privacy rests."""

    rate: float  # step size
    low: float  # least curvature
    high: float  # largest curvature
    factor: float  # radius over the typical distance of users from the centre
    least_radius: float  # lower bound on radii
    resampling: int | None  # users of a cohort, where each round has fresh ones; None where all take part

    @classmethod
    def of(cls, problem: Problem, rate: float, factor: float | None, wide: float, *, trains: bool, **more: Any) -> Self:
        """Choose the constants for steps of size ``rate``.

        On a loss that is linear in a bounded domain every step goes to a corner. Where users train and send updates, no
        certificate bounds the curvature. ``factor`` is by default 1 on quadratic and linear losses, and ``wide`` on
        others; ``more`` holds the other attributes.
        """
        low, most = (0.0, None) if trains else (problem.certificate.strong_convexity, problem.curvature)
        if most == 0 and math.isfinite(problem.domain.radius):
            rate = _CORNER
        # A larger step than 1 / smoothness says that the curvature along the path is lower than certified.
        high = max(low, min(math.inf if most is None else most, 1 / rate))
        return cls(rate=rate, low=low, high=high, factor=factor or (1.0 if low == high else wide), **more)


class Centre(Stateful):
    """The server's memory, computed from releases: centre, radius of the next round, and the centre's error."""

    remembered: ClassVar[tuple[str, ...]] = ("point", "radius", "_error", "_spread")
    given: ClassVar[tuple[str, ...]] = ("geometry",)

    def __init__(self, geometry: Geometry, dimension: int, radius: float) -> None:
        self.geometry = geometry
        self.point: Vector = np.zeros(dimension)
        self.radius = radius
        self._error: float | None = None
        self._spread = 0.0

    def distance(self, measured: float) -> float:
        """Return the users' typical distance from the centre, from their released mean log distance."""
        return self.radius * math.exp(min(max(measured, LOG_DISTANCE.low), LOG_DISTANCE.high))

    def gradient(self, released: Vector, deviation: float, distance: float) -> tuple[Vector, float]:
        """Return (the estimate of the gradient after a release with noise of that deviation, the filter's gain)."""
        shrunk = max(1.0, distance / self.radius)
        innovation, noise = shrunk * released, shrunk * deviation * math.sqrt(len(released))
        if self.geometry.resampling is not None:  # fresh users bring their own sampling error
            noise = math.hypot(noise, distance / math.sqrt(self.geometry.resampling))
        error = self._error_before(float(np.linalg.norm(innovation)), noise)
        gain = error**2 / (error**2 + noise**2)
        self._spread = max(_LEAST_SPREAD * distance, math.sqrt(max(0.0, distance**2 - error**2)))
        self._error = math.sqrt(gain) * noise
        return self.point + gain * innovation, gain

    def _error_before(self, length: float, noise: float) -> float:
        """Return the centre's error: as predicted, unless the innovation's length contradicts it."""
        doubt = math.sqrt(2 / len(self.point))  # relative standard deviation of the noise's squared norm
        if self._error is None:
            return math.sqrt(max(length**2 - noise**2, doubt * noise**2))
        return math.sqrt(max(self._error**2, length**2 - (1 + 2 * doubt) * noise**2))

    def predict(self, gradient: Vector, move: Vector) -> None:
        """Set centre and radius of the next round, after a move of the model."""
        geometry = self.geometry
        self.point = gradient + geometry.low * move
        self._error = math.hypot(self._error or 0.0, (geometry.high - geometry.low) / 2 * float(np.linalg.norm(move)))
        # The floor only keeps a population without any spread from underflow.
        self.radius = max(geometry.factor * math.hypot(self._error, self._spread), geometry.least_radius)

    def computation(self) -> Computation:
        """Return the query of gradients clipped about the centre, and of their distance from it."""
        return Computation("user_gradient", "sum", clip_norm=self.radius, centre=self.point, statistic="log_distance")

    def follow(
        self, released: Vector, deviation: float, measured: float, x: Vector, domain: Box
    ) -> tuple[Vector, dict[str, float]]:
        """Step along the released gradient, update centre and radius, and return (the model, the facts)."""
        radius, distance = self.radius, self.distance(measured)
        gradient, gain = self.gradient(released, deviation, distance)
        following = domain.project(x - self.geometry.rate * gradient)
        self.predict(gradient, following - x)
        return following, {"radius": radius, "noise_deviation": deviation, "distance": distance, "gain": gain}


_MEASURED = 0.05  # Share of each round's budget for users' distances from the centre
_FIRST, _SECOND = 0.1, 0.2  # Shares of the budget for the first two epochs, which only find the centre
_BEARABLE = 0.1  # Noise over the users' distance from the centre, below which a wider radius is worth its noise


@dataclass(frozen=True, kw_only=True)
class RecentredScheme(Scheme):
    """A `Scheme` of rows clipped about a centre that moves: mechanisms for any radius."""

    domain: Box
    sampler: WeightedBatches | WeightedSlots  # draws the cohorts, and has the rounds' shares of the budget
    noise_multiplier: float  # of all rounds together
    training: LocalTraining | None  # of the users; None where they send gradients

    def gradient_mechanism(self, radius: float, multiplier: float) -> GaussianMechanism:
        """Return the mechanism of the mean of rows clipped to ``radius``, for a round worth ``multiplier``."""
        return self.sampler.mean_mechanism(radius, multiplier / math.sqrt(1 - _MEASURED))

    def distance_mechanism(self, multiplier: float) -> GaussianMechanism:
        """Return the mechanism of the mean log distance."""
        moved = LOG_DISTANCE.sensitivity(self.sampler.relation)
        return GaussianMechanism(moved / self.sampler.batch, multiplier / math.sqrt(_MEASURED))

    def ask(self, index: int, memory: Centre) -> Request:
        """See `Scheme`; an update is a negative gradient."""
        asked = replace(memory.computation(), lengths=True)
        if self.training is not None:
            asked = replace(asked, name="local_update", centre=-memory.point, parameters=self.training.parameters())
        mechanism = self.gradient_mechanism(memory.radius, self.sampler.multiplier(index, self.noise_multiplier))
        check_covered(asked, mechanism, self.sampler.batch, self.sampler.relation)
        return Request(self.sampler.cohort(index), asked)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Centre, noise: Noise) -> Step:
        means, p = gathered.values / self.sampler.batch, len(x)
        mean = means[:p] if self.training is None else -means[:p]
        multiplier = self.sampler.multiplier(index, self.noise_multiplier)
        mechanism = self.gradient_mechanism(memory.radius, multiplier)
        deviation = mechanism.standard_deviation
        released = mechanism.release(mean, noise(0))
        measured = self.distance_mechanism(multiplier).release(means[p:], noise(1))
        exact = clip_facts(gathered, memory.radius, mean, deviation * math.sqrt(p))  # before the radius moves
        following, facts = memory.follow(released, deviation, float(measured[0]), x, self.domain)
        return Step(following, following, facts | exact)


class RecentredClipping(Recipe, UpdateOptions, PreparedOptions):
    """Clipped mean of user gradients about a public centre that follows the gradient, with a radius that shrinks.

    Round t asks users for ``clip(q_i - c, r)`` and for ``l_i = ln(||q_i - c|| / r)`` held to [-2.5, 1], and releases
    ``y = (1/B) (sum_i clip(q_i - c, r) + noise)`` and ``l = (1/B) (sum_i l_i + noise)``. The centre c is the gradient
    as predicted from earlier rounds, zero at first: as long as the gradient is unknown this is clipping about zero.
    Once c is within e of it, users lie within ``sqrt(e^2 + rho^2)`` of c, with rho their own spread, ``sqrt(d / m)``
    times the deviation of a sample; noise falls with that radius, where clipping about zero pays for the length of
    the gradient in every round.

    With local steps or epochs, what a user's own training takes off the model, ``x - T(x)``, stands for the gradient
    q_i, and a step of length 1 goes to the private mean of the users' models. Where T is gradient descent on a smooth
    convex loss, at a step size that suits it, that changes by between none and all of a move of x, which is what the
    centre is predicted by; elsewhere a bad prediction costs accuracy and no privacy.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss; replace-one, or
    add-or-remove if so set. *Why.* Unit: one whole user; relation: replace-one, n public (or add-or-remove, if so
    set). Given what was released before, c and r are constants. Whatever a user computes from its own data, gradient
    or update, it adds a vector of norm at most r and a number in [-2.5, 1]; a missing or non-finite user adds a
    constant. Replacing a user moves the vectors' sum by at most 2r and the numbers' by 3.5; adding or removing one
    moves them by r and 2.5. Each gets Gaussian noise in proportion to its sensitivity IN FORCE, of multipliers
    ``z_t / sqrt(0.95)`` and ``z_t / sqrt(0.05)``: together one Gaussian of multiplier z_t. The z_t are fixed
    by the plan, so the rounds a user takes part in compose adaptively as one Gaussian of multiplier
    ``(sum of 1/z_t^2)^(-1/2)``, exactly. Every iterate is released. Any loss, whatever other nodes answer; the server
    is trusted. No privacy rests on the certificate: it helps to predict, and were it wrong, accuracy would suffer.

    *Assumptions.* n and participation are public. The server is trusted. Nodes clip as asked; sums that are too
    large are refused.

    *Why centre and radius are public.* They are computed from y, l and the model, all released (post-processing):

    - Distance ``D = r e^l``. Users at distance D > r are shrunk by about r/D, so y and its noise N are multiplied by
      ``max(1, D/r)``: a radius that was too small costs a round's accuracy, and the next one is right.
    - Filter. ``c <- c + K y``, ``K = e^2 / (e^2 + N^2)``, then ``e <- e N / sqrt(e^2 + N^2)``: precisions add up, as in
      the precision-weighted mean of all releases (Kalman 1960). At first e is unknown and ``||y||^2 - N^2`` stands for
      its square (James, Stein 1961); later that takes over when it exceeds the prediction by two deviations.
    - Move. A step from x to x' changes the gradient by ``H (x' - x)`` with H's eigenvalues in [a, b]: strong
      convexity, and smoothness or 1 / step if that is less. The least change is predicted,
      ``c <- c + a (x' - x)``: what is left to learn lies where curvature is low, and a centre that runs ahead there
      clips users on one side. e gains ``(b - a)/2 ||x' - x||``, which is nothing for a quadratic or linear loss.
    - Radius ``r = f sqrt(e^2 + rho^2)``, with ``rho^2 = D^2 - e^2`` for the e that D was measured with, and a public
      factor f. f = 1 is best where users lie evenly about their mean; where they do not, as with gradients of a
      classifier, clipping half of them draws the mean to one side, and with many users f = 2 costs little.

    Of the budget 10% and 20% go to the first two epochs, which only have to find the centre, and equal shares of the
    rest to the others: ``z_t = z / sqrt(share)``.
    """

    about: ClassVar[About] = About(
        name="recentred_clipping",
        summary_line="clipping about the gradient released so far, with a radius that follows the users",
        family="clipping",
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="ours",
        example={"rounds": 3},
        meanings={
            "radius_factor": "clip over the typical distance of users from the centre",
            "first_share": "share of the budget for the first epoch",
            "last_share": "share of the budget for the last epoch",
        },
        notes=CLIP_FACTS,
    )

    relation: Relation = "replace_one"
    """Neighbouring relation. Add-or-remove promises less and takes half the noise at the same epsilon."""
    clip_norm: float = Field(1.0, gt=0)
    """l2 norm that what users send is clipped to in the first round, about zero; rather too large than too small, later
    radii follow the users."""
    rounds: int = Field(5, ge=1, description="Rounds in all.")
    cohort: int | None = Field(None, ge=1, description="Users a round, disjoint within an epoch; default all of them.")
    learning_rate: float | None = Field(None, gt=0)
    """Step size; default 1 / smoothness, or 0.5; 1 for updates. On a loss certified linear each step along gradients
    goes to a corner of the domain whatever is set: no step overshoots there."""
    radius_factor: float | None = Field(None, ge=1, le=5)
    """Radius over the typical distance of users from the centre. A small one saves noise, a large one spares those
    whose gradients are longer than most; default 1 on quadratic and linear losses, where distances are alike, and on
    others up to 2 where there are users enough for little noise."""

    found_by_preparation = ("clip_norm", "learning_rate", "local_steps", "local_epochs")

    def found(self, found: Found) -> dict[str, float]:
        return {"clip_norm": CLIP_WIDTH * found.length}

    def scheme(self, given: Given) -> RecentredScheme:
        n, p = given.users, given.dimension
        cohort = self.cohort or n
        epochs = math.ceil(self.rounds / DisjointBatches(n, cohort).rounds_per_epoch)
        kind = WeightedBatches if self.relation == "replace_one" else WeightedSlots
        sampler = kind(n, cohort, epochs, given.seed, shares=epoch_shares(epochs))
        multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
        training = self.local_training(1, given.default_step) if self.trains else None
        price = given.price(sampler, multiplier)
        # All rounds together, if the radius never fell.
        whole = sampler.mean_mechanism(self.clip_norm, multiplier / math.sqrt(1 - _MEASURED))
        noise = whole.standard_deviation * math.sqrt(p)
        geometry = self._geometry(given, noise, cohort)
        steps = NoisySteps(
            steps=self.rounds,
            rate=geometry.rate,
            deviation=whole.standard_deviation,
            longest=self.clip_norm,
            shared_noise=True,
            local_steps=1 if training is None else int(training.steps or training.epochs),
            local_rate=None if training is None else training.step_size,
        )
        return RecentredScheme(
            price=price,
            outline=Outline(
                rounds=self.rounds,
                cohort=cohort,
                users_needed=cohort,
                path=steps,
                noise=noise,
                signal=self.clip_norm,
                numbers={
                    "clip_norm": self.clip_norm,
                    "cohort": cohort,
                    "learning_rate": geometry.rate,
                    "radius_factor": geometry.factor,
                    "noise_multiplier": multiplier,
                    "first_share": sampler.shares[0],
                    "last_share": sampler.shares[-1],
                    "l2_sensitivity": whole.l2_sensitivity,
                    **({} if training is None else local_numbers(training)),
                    **sampler.numbers(multiplier, price.guarantee),
                },
            ),
            new_memory=partial(Centre, geometry, p, self.clip_norm),
            domain=given.problem.domain,
            sampler=sampler,
            noise_multiplier=multiplier,
            training=training,
        )

    def _geometry(self, given: Given, noise: float, cohort: int) -> Geometry:
        return Geometry.of(
            given.problem,
            self.learning_rate or (1.0 if self.trains else given.default_step),
            self.radius_factor,
            # The widest that keeps the noise of all rounds together, over the radius, below a tenth of the distance.
            wide=min(2.0, max(1.0, _BEARABLE / (noise / self.clip_norm))),
            trains=self.trains,
            least_radius=1e-9 * self.clip_norm,
            resampling=cohort if cohort < given.users else None,
        )


def epoch_shares(epochs: int) -> tuple[float, ...]:
    """Return the epochs' shares of the budget."""
    if epochs <= 2:
        return (1.0,) if epochs == 1 else (0.25, 0.75)
    return (_FIRST, _SECOND, *([(1 - _FIRST - _SECOND) / (epochs - 2)] * (epochs - 2)))
