"""Recentred clipping: users are clipped about the gradient as released so far, so that little is left to hide."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from strategies.clipping.local_options import LocalOptions, local_numbers, of_round
from strategies.clipping.moving_centre import LOG_DISTANCE, Centre, Curvatures, Geometry
from strategies.core.base import UserLevelStrategy
from strategies.core.clip_facts import CLIP_FACTS, clip_facts, with_lengths
from strategies.core.mean_rounds import sampler_numbers
from strategies.core.options import CLIP_WIDTH, Found, PreparedOptions, RelationOptions, StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Number, Scheme, Step
from strategies.core.ways import Course
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.local_training import LocalTraining
from userdp.sampling import DisjointBatches, WeightedBatches, WeightedSlots

_MEASURED = 0.05
"""Share of each round's budget that goes to how far users are from the centre."""

_FIRST, _SECOND = 0.1, 0.2
"""Shares of the budget for the first two epochs, whose only work is to find the centre."""

_BEARABLE = 0.1
"""Noise over the users' distance from the centre, below which a wider radius is worth its noise."""


class RecentredOptions(RelationOptions, LocalOptions, PreparedOptions, restates={"local_steps"}):
    """Settings of `RecentredClipping`."""

    clip_norm: float = Field(
        1.0,
        gt=0,
        description="l2 norm that what users send is clipped to in the first round, about zero; rather too large than "
        "too small, later radii follow the users.",
    )
    rounds: int = Field(5, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None, ge=1, description="Users a round, disjoint within an epoch; all of them if not given."
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Step size; default 1 / smoothness, or 0.5; 1 for updates. On a loss certified linear each step "
        "along gradients goes to a corner of the domain whatever is set: no step overshoots there.",
    )
    local_steps: int | None = Field(
        None, ge=1, description="Users send the update of so many steps of their own; their gradient if not given."
    )
    radius_factor: float | None = Field(
        None,
        ge=1,
        le=5,
        description="Radius over the typical distance of users from the centre. A small one saves noise, a large one "
        "spares those whose gradients are longer than most; default 1 on quadratic and linear losses, where distances "
        "are alike, and on others up to 2 where there are users enough for little noise.",
    )

    found_by_preparation: ClassVar[tuple[str, ...]] = ("clip_norm", "learning_rate", "local_steps", "local_epochs")

    @property
    def trains(self) -> bool:
        """Whether users send updates, rather than gradients."""
        return self.local_steps is not None or self.local_epochs is not None

    def found(self, found: Found) -> dict[str, float]:
        """The clip."""
        return {"clip_norm": CLIP_WIDTH * found.length}


@dataclass(frozen=True, kw_only=True)
class RecentredScheme(Scheme):
    """A `Scheme` of rows clipped about a centre that moves: mechanisms for any radius.

    Attributes:
        sampler: who takes part in each round, and which share of the budget the round gets.
        noise_multiplier: of all rounds together.
        cohort: users a round.
    """

    sampler: WeightedBatches | WeightedSlots
    noise_multiplier: float
    cohort: int

    def gradient_mechanism(self, radius: float, multiplier: float) -> GaussianMechanism:
        """Of the mean of rows clipped to ``radius``, for a round worth ``multiplier``."""
        sensitivity = self.sampler.sensitivity_factor * radius / self.cohort
        return GaussianMechanism(sensitivity, multiplier / math.sqrt(1 - _MEASURED))

    def distance_mechanism(self, multiplier: float) -> GaussianMechanism:
        """Of the mean log distance."""
        replaced = LOG_DISTANCE.high - LOG_DISTANCE.low
        added = max(LOG_DISTANCE.high, -LOG_DISTANCE.low)
        sensitivity = replaced if self.sampler.relation == "replace_one" else added
        return GaussianMechanism(sensitivity / self.cohort, multiplier / math.sqrt(_MEASURED))


class RecentredClipping(UserLevelStrategy):
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

    *Assumptions.* n and who takes part are public. The server is trusted. Nodes clip as told; sums that are too
    large are refused.

    *Why centre and radius are public.* They are computed from y, l and the model, all released (post-processing):

    - Distance ``D = r e^l``. Users at distance D > r are shrunk by about r/D, so y and its noise N are multiplied by
      ``max(1, D/r)``: a radius that was too small costs a round's accuracy, and the next one is right.
    - Filter. ``c <- c + K y``, ``K = e^2 / (e^2 + N^2)``, then ``e <- e N / sqrt(e^2 + N^2)``: precisions add up, as
      in the precision-weighted mean of all releases (Kalman 1960). At first e is unknown and ``||y||^2 - N^2`` stands
      for its square (James, Stein 1961); later that takes over when it is larger than predicted by two standard
      deviations.
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

    name: ClassVar[str] = "recentred_clipping"
    summary_line: ClassVar[str] = "clipping about the gradient released so far, with a radius that follows the users"
    family: ClassVar[str] = "clipping"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "ours"
    with_secure_noise: ClassVar[str] = (
        "Poisson and fixed-size cohorts, which must stay secret, come from the operating system too, once a round; "
        "ledgers refuse seeded ones"
    )
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "radius_factor": "clip over the typical distance of users from the centre",
        "first_share": "share of the budget for the first epoch",
        "last_share": "share of the budget for the last epoch",
        "local_steps": "steps of each user on its own data",
        "local_epochs": "times that each user goes through its data",
        "local_rate": "step size of each user",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "radius": Fact("noised", "radius of the clip, from released values"),
        "distance": Fact("noised", "released estimate of how far users are from the centre"),
        "gain": Fact("noised", "share of the released innovation that is believed"),
        **CLIP_FACTS,
    }
    Options: ClassVar[type[StrategyOptions]] = RecentredOptions
    options: RecentredOptions
    scheme: RecentredScheme
    memory: Centre

    def _make_scheme(self) -> RecentredScheme:
        options, n = self.options, self.public.users
        cohort = options.cohort or n
        epochs = math.ceil(options.rounds / DisjointBatches(n, cohort).rounds_per_epoch)
        kind = WeightedBatches if options.relation == "replace_one" else WeightedSlots
        sampler = kind(n, cohort, epochs, self.seed, shares=epoch_shares(epochs))
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        scheme = RecentredScheme(
            guarantee=sampler.guarantee(multiplier, self.privacy.delta, self.adversary, self.wire.clipping),
            ledger=partial(sampler.ledger, multiplier),
            sampler=sampler,
            noise_multiplier=multiplier,
            cohort=cohort,
        )
        geometry, p = self._geometry(self._whole_noise(scheme), cohort), self.problem.dimension
        return replace(scheme, new_memory=partial(Centre, geometry, p, options.clip_norm))

    def _whole_noise(self, scheme: RecentredScheme) -> float:
        """l2 norm of the noise of all rounds together, if the radius never fell."""
        whole = scheme.gradient_mechanism(self.options.clip_norm, scheme.noise_multiplier)
        return whole.standard_deviation * math.sqrt(self.problem.dimension)

    def _geometry(self, noise: float, cohort: int) -> Geometry:
        """Step size, between what curvatures the gradient is predicted, and how wide the clip is."""
        options = self.options
        return Geometry.of(
            # The curvature of the loss says nothing of updates.
            Curvatures() if options.trains else Curvatures.of(self.problem),
            self.problem.domain,
            options.learning_rate or (1.0 if options.trains else self._default_step),
            options.radius_factor,
            # As wide as keeps the noise of all rounds together, over the radius, below a tenth of the distance.
            wide=min(2.0, max(1.0, _BEARABLE / (noise / options.clip_norm))),
            least_radius=1e-9 * options.clip_norm,
            resampling=cohort if cohort < self.public.users else None,
        )

    @property
    def _training(self) -> LocalTraining | None:
        """What users do with their data; None where they send gradients."""
        options = self.options
        return options.local_training(1, self._default_step) if options.trains else None

    def _make_plan(self) -> Plan:
        training = self._training
        options, scheme, geometry = self.options, self.scheme, self.memory.geometry
        noise = self._whole_noise(scheme)
        whole = scheme.gradient_mechanism(options.clip_norm, scheme.noise_multiplier)
        numbers: dict[str, Number] = {
            "clip_norm": options.clip_norm,
            "cohort": scheme.cohort,
            "learning_rate": geometry.rate,
            "radius_factor": geometry.factor,
            "noise_multiplier": scheme.noise_multiplier,
            "first_share": scheme.sampler.shares[0],
            "last_share": scheme.sampler.shares[-1],
            "l2_sensitivity": whole.l2_sensitivity,
            **({} if training is None else local_numbers(training)),
        }
        return self._planned(
            Course(
                steps=options.rounds,
                rate=geometry.rate,
                deviation=whole.standard_deviation,
                longest=options.clip_norm,
                lasting=True,
                local_steps=1 if training is None else int(training.steps or training.epochs),
                local_rate=None if training is None else training.step_size,
            ),
            rounds=options.rounds,
            cohort=scheme.cohort,
            users_needed=scheme.cohort,
            noise=noise,
            signal=options.clip_norm,
            numbers=numbers | sampler_numbers(scheme.sampler, scheme.guarantee),
        )

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        computation = of_round(self._computation(), self.seed, index)
        return Request(self.scheme.sampler.cohort(index), with_lengths(self, computation))

    def _computation(self) -> Computation:
        """What users are asked about the centre; an update is what training takes off the model, turned round."""
        computation, training = self.memory.computation(), self._training
        if training is None:
            return computation
        return replace(computation, name="local_update", centre=-self.memory.point, parameters=training.parameters())

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, centre = self.scheme, self.memory
        means, p = gathered.values / scheme.cohort, self.problem.dimension
        mean = -means[:p] if self.options.trains else means[:p]
        multiplier = scheme.sampler.multiplier(index, scheme.noise_multiplier)
        mechanism = scheme.gradient_mechanism(centre.radius, multiplier)
        released = mechanism.release(mean, self._noise(index, 0))
        measured = scheme.distance_mechanism(multiplier).release(means[p:], self._noise(index, 1))
        noise = mechanism.standard_deviation * math.sqrt(p)
        exact = clip_facts(gathered, centre.radius, mean, noise)  # before the radius moves
        following, facts = centre.follow(
            released, mechanism.standard_deviation, float(measured[0]), x, self.problem.domain
        )
        return Step(following, following, facts | exact)


def epoch_shares(epochs: int) -> tuple[float, ...]:
    """Shares of the budget, by epoch."""
    if epochs <= 2:
        return (1.0,) if epochs == 1 else (0.25, 0.75)
    return (_FIRST, _SECOND, *([(1 - _FIRST - _SECOND) / (epochs - 2)] * (epochs - 2)))
