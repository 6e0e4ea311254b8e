"""Localised clipping: coordinate-wise clips that narrow from phase to phase; noise once a phase, and no test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Scheme, Step
from strategies.core.ways import NoisyPhase, Phases
from strategies.localized.phases import (
    ADVERSARY,
    ASSUMPTIONS,
    SECURE_PHASE,
    PhaseAverage,
    check_contractive,
    phase_rounding,
    uncertified,
)
from strategies.robust.passing import DeviationOptions
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, Ledger, calibrate_noise, epsilon_of
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.arrays.types import Vector
from userdp.errors import PopulationTooSmall
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.sampling import DisjointBatches

_TAILS = 2.0
"""Half-width of the narrowest clip in deviations of a user's gradient: the middle 95% of users are left as they are."""

_CROSSING = 1e6
"""On a linear loss, how many times across the domain the largest gradient steps."""


class LocalizedClippingOptions(DeviationOptions):
    """Settings of `LocalizedClipping`."""

    clip: float | None = Field(
        None, gt=0, description="Half-width of the first phase's clip of each gradient coordinate; G if not given."
    )
    phases: int = Field(3, ge=1, le=64, description="Releases.")
    steps: int = Field(2, ge=1, description="Steps a phase, each with users of its own.")
    learning_rate: float | None = Field(
        None, gt=0, description="Step size, at most 2 / smoothness; default half of that."
    )
    shrink: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Factor by which a phase is taken to bring the model nearer to the optimum (utility only); "
        "default from strong convexity.",
    )
    without_certificate: bool = Field(
        False, description="Run a loss without certificate; the report then says: no privacy guarantee."
    )


@dataclass(frozen=True)
class ClippedPhase:
    """One phase.

    Attributes:
        width: s, that each coordinate of each user's gradient is clipped to, on either side of zero.
        mechanism: of the average iterate.
    """

    width: float
    mechanism: GaussianMechanism


@dataclass(frozen=True, kw_only=True)
class LocalizedClippingScheme(Scheme):
    """A `Scheme` of phases that clip.

    Attributes:
        sampler: who takes part in each round.
        noise_multiplier: of every phase.
        rate: step size.
        phases: in order.
        projects: whether iterates inside a phase stay in the domain; a linear loss needs it only at the release.
    """

    sampler: DisjointBatches
    noise_multiplier: float
    rate: float
    phases: tuple[ClippedPhase, ...]
    projects: bool


class LocalizedClipping(UserLevelStrategy):
    """Steps along means of coordinate-wise clipped user gradients; one noisy release a phase.

    Phase k clips every coordinate of every user's gradient to [-s_k, s_k]. s_0 is G; later ``s_k = beta R_k + 2
    sqrt(heterogeneity^2 + deviation^2 / m)`` (never more than before), with R_k how far the released model is
    predicted to be from the optimum, where gradients vanish. Where they do not vanish (a linear loss, an optimum on
    the boundary), clipping a coordinate keeps its sign, and with it the direction.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, phase release. *Why.* Unit: one whole user;
    relation: replace-one; n public. A user is in one batch of B users of one step t of one phase. Replacing it
    moves each coordinate of that batch's mean by at most 2s/B, so x_t by at most 2 eta s/B in the sup norm. Later
    steps do not enlarge the difference: with D the diagonal matrix of slopes in [0, 1] of the clips between x and
    y, a user's step maps x - y to ``(I - eta D H)(x - y)``, whose rows are convex combinations of rows of I and of
    I - eta H; both have absolute row sums of at most 1 under A1, A3, A4 for ``eta <= 2 / beta``; means over users
    and the projection on the box keep that. So the average iterate of the phase moves by at most ``sqrt(d) 2 eta s
    / B`` in l2, which its Gaussian noise is calibrated to. The widths s are constants of the plan. Phases have
    different users: parallel composition. Iterates inside a phase are NOT private: the guarantee is against whoever
    sees the released models, not against the participating nodes nor the server, and every node must answer
    honestly. With secure noise, steps are what is computed in float64: iterates are further apart by
    `phase_rounding` (with its proof), and the noise is larger by that.

    *Assumptions.* As for `localized_robust_sgd`.
    """

    adversary: ClassVar[str] = ADVERSARY
    name: ClassVar[str] = "localized_clipping"
    summary_line: ClassVar[str] = "coordinate-wise clips that narrow from phase to phase, noise once a phase"
    family: ClassVar[str] = "clipping"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "ours, in the localisation of Ghazi, Kumar, Liu, Manurangsi 2025"
    needs: ClassVar[str] = "convex loss, certified gradient bound and diagonally dominant bounded Hessian; honest nodes"
    with_secure_noise: ClassVar[str] = SECURE_PHASE
    promise: ClassVar[str] = "user level, against whoever sees the released models"
    release: ClassVar[Literal["round", "phase"]] = "phase"
    meanings: ClassVar[Mapping[str, str]] = {
        "batch": "users a step, fresh ones each time",
        "phases": "releases; each phase starts at the model released before",
        "steps": "steps of each phase",
        "widths": "half-width of the clip of a gradient coordinate, by phase",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "phase": Fact("public", "number of the phase"),
        "width": Fact("public", "half-width of the clip of the phase"),
    }
    Options: ClassVar[type[StrategyOptions]] = LocalizedClippingOptions
    options: LocalizedClippingOptions
    scheme: LocalizedClippingScheme
    memory: PhaseAverage

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_scheme(self) -> LocalizedClippingScheme:
        options, certificate, n = self.options, self.problem.certificate, self.public.users
        check_contractive(
            self.name,
            certificate,
            options.learning_rate,
            opted_out=options.without_certificate,
            needed_then={"clip": options.clip},
        )
        rounds = options.phases * options.steps
        if n < rounds:
            raise PopulationTooSmall(
                f"data.users = {n}: {options.phases} phases of {options.steps} steps take {rounds}, one each; "
                "use fewer strategy.phases or strategy.steps, or bring more users"
            )
        multiplier = calibrate_noise(self.privacy.epsilon, self.privacy.delta, 1)
        cost, sampler = Cost(noise_multiplier=multiplier), DisjointBatches(n, n // rounds, 1, self.seed)
        epsilon = epsilon_of(cost, 1, self.privacy.delta)
        accountant = f"{ONE_GAUSSIAN}, parallel over disjoint users"
        first = options.clip or certificate.lipschitz or 1.0
        rate = options.learning_rate or self._default_rate(first)
        phases = tuple(self._schedule(multiplier, sampler.batch, first, rate))
        return LocalizedClippingScheme(
            guarantee=uncertified(certificate) or self._promise(epsilon, accountant, ASSUMPTIONS),
            ledger=partial(Ledger, n, cost, 1),
            new_memory=partial(PhaseAverage, self.problem.dimension),
            sampler=sampler,
            noise_multiplier=multiplier,
            rate=rate,
            phases=phases,
            summands=sampler.batch,
            rounding=self._rounding(phases, sampler.batch, rate) if self.privacy.noise == "secure" else 0.0,
            projects=certificate.smoothness != 0,
        )

    def _rounding(self, phases: tuple[ClippedPhase, ...], batch: int, rate: float) -> float:
        """How much the sensitivities of releases can grow, relatively, by float64 steps.

        A mean of B numbers within s, added in any order, errs by at most ``B 2^-53 s``, up to a factor of 1 + 2^-20.
        """
        return max(
            phase_rounding(
                self.problem,
                steps=self.options.steps,
                rate=rate,
                sensitivity=2 * phase.width / batch,
                error=(1 + 2.0**-20) * batch * 2.0**-53 * phase.width,
                longest=(1 + 2.0**-20) * phase.width,
            )
            for phase in phases
        )

    def _default_rate(self, first: float) -> float:
        """1 / smoothness; for a linear loss so long that only signs are left after the projection."""
        smoothness = self.problem.certificate.smoothness
        return 1 / smoothness if smoothness else _CROSSING * self.problem.domain.radius / first

    def _schedule(self, multiplier: float, batch: int, first: float, rate: float) -> list[ClippedPhase]:
        """Every phase, from declared numbers alone; ``first`` is the width of the first."""
        options, certificate, p = self.options, self.problem.certificate, self.problem.dimension
        per_sample = options.deviation or certificate.lipschitz or first
        spread = options.user_deviation(per_sample, self.public.min_samples)
        smoothness = certificate.smoothness if certificate.smoothness is not None else 1 / rate
        shrink = self._kept(rate) if options.shrink is None else options.shrink
        width, radius = first, 2 * self.problem.domain.radius
        phases: list[ClippedPhase] = []
        while True:
            mechanism = GaussianMechanism(math.sqrt(p) * rate * 2 * width / batch, multiplier)
            phases.append(ClippedPhase(width, mechanism))
            if len(phases) == options.phases:
                return phases
            error = math.hypot(mechanism.standard_deviation, rate * spread / math.sqrt(batch))
            radius = min(radius, shrink * radius + math.sqrt(2 * math.log(2 * p)) * error)
            distance = smoothness * radius if smoothness else 0.0
            width = min(width, distance + _TAILS * spread)

    def _kept(self, rate: float) -> float:
        """Of the distance from the optimum, what the average iterate of a phase keeps by strong convexity."""
        factor = max(0.0, 1 - rate * self.problem.certificate.strong_convexity)
        return float(np.mean([factor**step for step in range(1, self.options.steps + 1)]))

    def _make_plan(self) -> Plan:
        options, scheme, signal = self.options, self.scheme, self._signal()
        noise = scheme.phases[-1].mechanism.standard_deviation * math.sqrt(self.problem.dimension)
        rounds = options.phases * options.steps
        deviations = [each.mechanism.standard_deviation for each in scheme.phases]
        return self._planned(
            Phases(
                tuple(
                    NoisyPhase(
                        steps=options.steps,
                        rate=scheme.rate,
                        deviation=each.mechanism.standard_deviation,
                        longest=each.width,
                    )
                    for each in scheme.phases
                ),
                self._reach(),
            ),
            rounds=rounds,
            cohort=scheme.sampler.batch,
            users_needed=rounds,
            noise=noise,
            signal=signal,
            numbers={
                "batch": scheme.sampler.batch,
                "phases": options.phases,
                "steps": options.steps,
                "learning_rate": scheme.rate,
                "noise_multiplier": scheme.noise_multiplier,
                "widths": ", ".join(f"{each.width:.3g}" for each in scheme.phases),
                "noise_deviation": ", ".join(f"{deviation:.3g}" for deviation in deviations),
            },
        )

    def _reach(self) -> float:
        """l2 norm of the longest way that all phases together can go."""
        steps = self.scheme.rate * self.options.steps
        return math.sqrt(self.problem.dimension) * sum(steps * each.width for each in self.scheme.phases)

    def _signal(self) -> float:
        """l2 norm of the longest way there is to go in the last phase."""
        root, scheme = math.sqrt(self.problem.dimension), self.scheme
        way = scheme.rate * scheme.phases[-1].width * self.options.steps
        return root * (min(way, 2 * self.problem.domain.radius) if scheme.projects else way)

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        return Request(self.scheme.sampler.cohort(index), Computation("user_gradient"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, average = self.scheme, self.memory
        number, step = divmod(index, self.options.steps)
        phase = scheme.phases[number]
        facts = {"phase": number + 1, "width": phase.width}
        if step == 0:
            average.restart()
        x = x - scheme.rate * np.clip(gathered.values, -phase.width, phase.width).mean(axis=0)
        if scheme.projects:
            x = self.problem.domain.project(x)
        average.add(x)
        if step + 1 < self.options.steps:
            return Step(x, None, facts)
        released = self.problem.domain.project(phase.mechanism.release(average.value, self._noise(number)))
        return Step(released, released, facts)
