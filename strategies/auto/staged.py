"""The scheme of `Auto`, one stage a round; adaptive steps for losses without a certificate; its plan in numbers."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaincc

from strategies.auto.choice import Choice
from strategies.auto.coefficients import Curvatures, OfCoefficients
from strategies.auto.level import ClassShares, Level, rare_classes
from strategies.auto.preparation import doubts, linear_model
from strategies.auto.progress import Progress, following_optimiser
from strategies.auto.releases import Movement, Release, Shares
from strategies.auto.stages import LEAST_WIDTH, MEASURED, Gradient, Recentred, Stage
from strategies.clipping.clip_facts import clip_facts
from strategies.clipping.recentred_clipping import epoch_shares
from strategies.core.public_facts import Given, PublicFacts
from strategies.core.results import Noise, Step
from strategies.core.scheme import Number, Outline, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Box, OneHotPoisson, Poisson, Problem
from userdp.problems.noise_paths import ExcessShare, NoisySteps

_SIZE = STATISTICS["log_size"]

RATE = 0.02
"""Length of the first step for each parameter; later ones are shorter, down to none. Initial parameters of modules are
about 0.1 to 1, whatever inputs, targets and losses are measured in."""

_UNCLIPPED, _SPEED = 0.7, 0.3  # Target share of unclipped users, and the clip's speed (Andrew et al. 2021)
_LEAST_STEPS, _MOST_STEPS, _PATIENCE = 20, 100, 20.0  # The third over the root of all noise, in gradients
_GRADIENTS = 100_000  # Users' gradients in all rounds together, about, if users suffice
_FAINT = 2.5  # Noise multiplier of a round from which on larger cohorts would save at most a twentieth of the noise
LOUD = 0.5  # Noise of all steps, in users' gradients, from which on a plan warns: shared ones are shorter


def uncertified(problem: Problem) -> bool:
    """Return whether the loss has no certificate by which steps could be chosen."""
    certificate = problem.certificate
    return not certificate.convex and certificate.smoothness is None


@dataclass(frozen=True)
class Pace:
    """The number of steps, and each user's probability to take part in one; from public facts."""

    steps: int
    chance: float

    @classmethod
    def of(cls, users: int, dimension: int, noise_multiplier: float, *, drawn: bool) -> "Pace":
        """Choose the pace of ``users`` whose budget is worth one Gaussian of ``noise_multiplier``, noise over a clip.

        Under loud noise more steps gain nothing and move further at random. Cohorts are so large that their noise is
        near that of all users, but not so large that they would all compute for hours.
        """
        noise = noise_multiplier * math.sqrt(dimension) / users
        steps = min(max(round(_PATIENCE / math.sqrt(noise)), _LEAST_STEPS), _MOST_STEPS)
        if not drawn:
            return cls(min(steps, max(_LEAST_STEPS, _GRADIENTS // users)), 1.0)
        # Many rounds of probability q cost about T q^2 (e^(1 / z^2) - 1), in units of 1 / noise_multiplier^2.
        faint = 1 / (noise_multiplier * math.sqrt(steps * math.expm1(_FAINT**-2)))
        return cls(steps, min(1.0, faint, _GRADIENTS / (users * steps)))


@dataclass(frozen=True)
class ClipScale(Stage, share=0.02):
    """The length of users' gradients at the start, between e^-10 and e^10."""

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; only the length of each user's gradient will be released."""
        return Computation("user_gradient", "sum", 1.0, statistic="log_size")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; sets the first clip, and the length that the optimiser sees as one."""
        logarithm, deviation = release.logarithm(sums[-1:], _SIZE)
        typical = math.exp(logarithm)
        progress.radius = LEAST_WIDTH * typical
        progress.optimiser, progress.length = following_optimiser(len(progress.start)), typical
        return {"length": typical, "noise_deviation": deviation}


@dataclass(frozen=True)
class AdaptiveStep(Stage):
    """A step of Adam whose second moments are corrected for the noise; see `ServerOptimiser`."""

    rate: float  # how far it moves a parameter whose gradient keeps its sign
    domain: Box

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its clipped gradient, and whether the clip left it unchanged."""
        return Computation("user_gradient", "sum", progress.radius, statistic="unclipped")

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; the clip follows."""
        radius = progress.radius
        gradient, deviation = release.mean(sums[:-1], Movement.of_ball(radius), 1 - MEASURED)
        unclipped, _ = release.fraction(sums[-1:], Movement.of_interval(-0.5, 0.5), MEASURED, silent=0.5)
        direction = progress.directed(gradient, deviation)
        progress.start = self.domain.project(progress.start + self.rate * direction)
        progress.radius = radius * math.exp(_SPEED * (_UNCLIPPED - unclipped))
        return {"radius": radius, "unclipped_share": unclipped, "noise_deviation": deviation}


_HIDDEN_ERRORS = (
    "noise is expected to hide how certain coefficients are: bring more users, raise privacy.epsilon or "
    "strategy.coefficients, or name fewer features"
)

MOVING = (Gradient, Recentred, AdaptiveStep)  # Stages that move the model


def shares_of(stages: Sequence[Stage], coefficients: float) -> tuple[float, ...]:
    """Return each stage's share of the budget, of which ``coefficients`` is for the stages of coefficients."""
    training = tuple(stage for stage in stages if not isinstance(stage, OfCoefficients))
    parts = iter(_training_shares(training))
    return tuple(
        coefficients * (stage.share or 0.0) if isinstance(stage, OfCoefficients) else (1 - coefficients) * next(parts)
        for stage in stages
    )


def _training_shares(stages: Sequence[Stage]) -> tuple[float, ...]:
    moving = [stage for stage in stages if isinstance(stage, MOVING)]
    rest = 1 - sum(stage.share or 0.0 for stage in stages)
    # Where gradients are filtered from the first round on, equal rounds lose nothing.
    plain = isinstance(moving[0], Recentred) and not moving[0].measured
    parts = iter(epoch_shares(len(moving)) if plain else [1 / len(moving)] * len(moving))
    return tuple(rest * next(parts) if stage.share is None else stage.share for stage in stages)


@dataclass(frozen=True, kw_only=True)
class AutoScheme(Shares, Scheme):
    """A `Scheme` of stages, one a round."""

    stages: tuple[Stage, ...]
    domain: Box

    def ask(self, index: int, memory: Progress) -> Request:
        stage = self.stages[index]
        asked = stage.computation(memory)
        # Other stages clip no gradients.
        return Request(self.sampler.cohort(index), replace(asked, lengths=isinstance(stage, MOVING)))

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Progress, noise: Noise) -> Step:
        if index == 0:
            memory.begin(x)
        release = Release(self, index, noise, self.stages[index].computation(memory), memory.heard, gathered.skipped)
        facts = dict(self.stages[index].take(memory, gathered.values, release))
        if gathered.lengths is not None:
            mean = gathered.values[:-1] / release.users
            facts |= clip_facts(gathered, facts["radius"], mean, facts["noise_deviation"] * math.sqrt(len(x)))
        following = self.domain.project(memory.model)
        return Step(following, following, facts, constant=memory.released_constant)


def reported(stages: Sequence[Stage], released: Vector, memory: Progress) -> dict[str, Any]:
    """Return the coefficients of a run that released them, and the places of the columns that noise hides.

    A run that ended early, at its best model, may have asked some of the coefficients' rounds and not all.
    """
    told: dict[str, Any] = {"hidden_columns": np.flatnonzero(memory.hidden)}
    reading = next((stage.reading for stage in stages if isinstance(stage, Curvatures)), None)
    found = memory.inference
    if reading is None or found is None or not len(found.estimate):
        return told
    return told | {"coefficients": found.rows(reading)}


def outline(given: Given, shares: Shares, stages: tuple[Stage, ...], guarantee: Guarantee) -> Outline:
    """Return the scheme of these stages in numbers."""
    sampler, p = shares.sampler, given.dimension
    gradient = [number for number, stage in enumerate(stages) if isinstance(stage, MOVING)]
    ends = (shares.mechanism(index, Movement.of_box(1.0)) for index in (0, len(stages) - 1))
    filled, chosen = (mechanism.standard_deviation for mechanism in ends)
    last = sampler.multiplier(gradient[-1], shares.noise_multiplier)
    numbers: dict[str, Number] = {
        "filled_noise": filled,
        "gradient_rounds": len(gradient),
        "measuring_share": sum(sampler.shares[: gradient[0]]),
        "choice_share": sampler.shares[-1],
        "choice_noise": chosen,
        "noise_multiplier": shares.noise_multiplier,
    }
    rare: tuple[str, ...] = ()
    for number, stage in enumerate(stages):
        if isinstance(stage, Level | ClassShares):
            constant = shares.mechanism(number, stage.movement).standard_deviation
            numbers["constant_noise"], rare = constant, rare_classes(given.problem, constant)
    if uncertified(given.problem):
        numbers["gradient_users"] = round(sampler.expected(gradient[-1]))
    # In units of the clip, to which a typical user is as long.
    noise = sampler.sensitivity_factor * last * math.sqrt(p) / sampler.expected(gradient[-1])
    share = _excess_share(noise**2 / len(gradient), given)
    # The probability that a chi-square with p degrees of freedom exceeds p / share.
    numbers["no_better_chance"] = float(gammaincc(p / 2, p / share / 2))
    # Steps of plain coordinates that are not measured may be too short.
    short = any(isinstance(stage, Recentred) and not stage.measured for stage in stages)
    steps = NoisySteps(steps=len(gradient), rate=given.default_step, deviation=0.0) if short else None
    return Outline(
        path=ExcessShare(share=share, steps=steps),
        rounds=len(stages),
        cohort=given.users,
        users_needed=1,
        noise=noise,
        signal=1.0,
        numbers=numbers | sampler.numbers(shares.noise_multiplier, guarantee),
        warnings=(
            *doubts(filled),
            *_warnings(given.problem, noise / math.sqrt(len(gradient)), chosen),
            *_out_of_reach(given.problem),
            *rare,
            *(_HIDDEN_ERRORS for stage in stages if isinstance(stage, Curvatures) and stage.hides),
        ),
    )


def _excess_share(share: float, given: Given) -> float:
    """Return the share of the initial model's excess risk that noise leaves, from the share of one direction."""
    model = linear_model(given.problem)
    if model is not None:
        # All d coordinates of a score are equally curved, and users' first gradients are as long as d of its slopes.
        return share * model.width
    # A shared gradient is shorter than users' own where theirs lie in other columns. The choice keeps that cost below
    # the initial model's excess.
    return max(share, min(1.0, share * _apart(given.problem, given.public)))


def _apart(problem: Problem, public: PublicFacts) -> float:
    """Return users' squared lengths over that of their shared gradient: 1 if all users have all columns.

    Of p columns a user's samples touch k. Were all columns equally frequent, it would be p / k; were all users to
    touch the same ones, 1. This is the geometric mean of the two.
    """
    p, sparsity = problem.dimension, problem.certificate.sparsity
    if sparsity is None:
        return 1.0
    if public.samples is not None:
        samples = max(1, public.samples // public.users)
    else:
        samples = public.max_samples or public.min_samples
    return math.sqrt(p / min(p, sparsity * samples))


def _out_of_reach(problem: Problem) -> tuple[str, ...]:
    """Warn of counts in the declared range that no constant of the domain predicts."""
    if not isinstance(problem, Poisson | OneHotPoisson):
        return ()
    bound, radius = problem.family.high, problem.domain.radius
    if bound <= math.exp(min(radius, math.log(sys.float_info.max))):
        return ()
    return (
        f"problem.radius = {radius:g} predicts no mean count above {math.exp(radius):.3g}, and counts are declared up "
        f"to {bound:g}: set problem.radius to {math.ceil(math.log(bound))}, the logarithm of the largest count",
    )


def _warnings(problem: Problem, noise: float, doubt: float) -> tuple[str, ...]:
    found, more = [], "bring more users or raise privacy.epsilon; the initial model may well be the better one"
    # The forecast warns for losses with a landscape.
    if noise >= (LOUD if uncertified(problem) else 1) and problem.landscape is None:
        found.append(
            f"the noise of all gradients together is {noise:.3g} times as long as a typical user's gradient: {more}"
        )
    if Choice.doubts * doubt >= 0.5:
        found.append(
            f"the noise on users' mean gain ({doubt:.3g} of a user's interval) hides whether there is any, so that no "
            f"model would be taken back: {more}"
        )
    return tuple(found)
