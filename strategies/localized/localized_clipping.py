"""Localised clipping: coordinate-wise clips that narrow from phase to phase; noise once per phase, and no test."""

import math
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.core.about import About, Fact
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.localized.phases import (
    PHASE_ABOUT,
    PHASE_FACT,
    PHASE_MEANINGS,
    Phase,
    PhaseRounds,
    check_contractive,
    phase_rounding,
    phase_rounds,
)
from strategies.robust.passing import DeviationOptions
from userdp.accounting import Cost, calibrate_noise
from userdp.arrays.types import Rows, Vector
from userdp.errors import PopulationTooSmall
from userdp.mechanisms import GaussianMechanism

_TAILS = 2.0  # Half-width of the narrowest clip in deviations of a user's gradient: it leaves the middle 95% unchanged.
_CROSSING = 1e6  # On a linear loss, how many times across the domain the largest gradient steps.


def clipped_mean(rows: Rows, width: float) -> Vector:
    """Return the (p,) mean of (B, p) rows, each coordinate clipped to [-width, width]."""
    return np.asarray(np.clip(rows, -width, width).mean(axis=0))


class LocalizedClipping(Recipe, DeviationOptions):
    """Steps along means of coordinate-wise clipped user gradients; one noisy release per phase.

    Phase k clips every coordinate of every user's gradient to [-s_k, s_k]. s_0 is G; later
    ``s_k = beta R_k + 2 sqrt(heterogeneity^2 + deviation^2 / m)`` (never more than before), with R_k the predicted
    distance of the released model from the optimum, where gradients vanish. Where they do not vanish (a linear loss, an
    optimum on the boundary), clipping a coordinate keeps its sign, and with it the direction.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, phase release. *Why.* Unit: one whole user; relation:
    replace-one; n public. A user is in one batch of B users of one step t of one phase. Replacing it moves each
    coordinate of that batch's mean by at most 2s/B, so x_t by at most 2 eta s/B in the sup norm. Later steps do not
    enlarge the difference: with D the diagonal matrix of slopes in [0, 1] of the clips between x and y, a user's step
    maps x - y to ``(I - eta D H)(x - y)``, whose rows are convex combinations of rows of I and of I - eta H; both have
    absolute row sums of at most 1 under A1, A3, A4 for ``eta <= 2 / beta``; means over users and the projection on the
    box keep that. So the average iterate of the phase moves by at most ``sqrt(d) 2 eta s / B`` in l2, which its
    Gaussian noise is calibrated to. The widths s are constants of the plan. Phases have different users: parallel
    composition. Iterates inside a phase are NOT private: the guarantee is against observers of the released models, not
    against the participating nodes nor the server, and every node must answer honestly. With secure noise, steps are
    computed in float64: iterates are further apart by `phase_rounding` (with its proof), and the noise is larger by
    that.

    *Assumptions.* As for `localized_robust_sgd`.
    """

    about: ClassVar[About] = About(
        name="localized_clipping",
        summary_line="coordinate-wise clips that narrow from phase to phase, noise once per phase",
        family="clipping",
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="ours, in the localisation of Ghazi, Kumar, Liu, Manurangsi 2025",
        meanings={**PHASE_MEANINGS, "widths": "half-width of the clip of a gradient coordinate, by phase"},
        notes={"phase": PHASE_FACT, "width": Fact("public", "half-width of the clip of the phase")},
        **PHASE_ABOUT,
    )

    clip: float | None = Field(None, gt=0)
    """Half-width of the first phase's clip of each gradient coordinate; G if not given."""
    phases: int = Field(3, ge=1, le=64, description="Releases.")
    steps: int = Field(2, ge=1, description="Steps a phase, each with users of its own.")
    learning_rate: float | None = Field(None, gt=0, description="Step size, at most 2 / smoothness; default half that.")
    shrink: float | None = Field(None, ge=0, le=1)
    """Factor by which a phase is taken to bring the model nearer to the optimum (utility only); default from strong
    convexity."""
    without_certificate: bool = Field(False, description="Run a loss without certificate, reported as no guarantee.")

    def scheme(self, given: Given) -> PhaseRounds:
        certificate, n, rounds = given.problem.certificate, given.users, self.phases * self.steps
        check_contractive(given, self.learning_rate, opted_out=self.without_certificate, needs={"clip": self.clip})
        if n < rounds:
            raise PopulationTooSmall(
                f"data.users = {n}: {self.phases} phases of {self.steps} steps take {rounds}, one each; "
                "use fewer strategy.phases or strategy.steps, or bring more users"
            )
        cost, batch = Cost(noise_multiplier=calibrate_noise(given.privacy.epsilon, given.privacy.delta, 1)), n // rounds
        first = self.clip or certificate.lipschitz or 1.0
        # On a linear loss so long that only signs are left after the projection.
        farthest = _CROSSING * given.problem.domain.radius / first
        rate = self.learning_rate or (1 / certificate.smoothness if certificate.smoothness else farthest)
        phases = self._schedule(given, cost.noise_multiplier, batch, first, rate)
        widths, projects = [phase.width for phase in phases], certificate.smoothness != 0
        root, step = math.sqrt(given.dimension), rate * self.steps
        way = rate * widths[-1] * self.steps
        return phase_rounds(
            given,
            batch,
            phases,
            cost,
            {
                "batch": batch,
                "phases": self.phases,
                "steps": self.steps,
                "learning_rate": rate,
                "noise_multiplier": cost.noise_multiplier,
                "widths": ", ".join(f"{width:.3g}" for width in widths),
                "noise_deviation": ", ".join(f"{phase.mechanism.standard_deviation:.3g}" for phase in phases),
            },
            projects=projects,
            rounding=max(self._rounding(given, batch, rate, width) for width in widths) if given.secure else 0.0,
            signal=root * (min(way, 2 * given.problem.domain.radius) if projects else way),
            reach=root * sum(step * width for width in widths),
            users_needed=rounds,
        )

    def _rounding(self, given: Given, batch: int, rate: float, width: float) -> float:
        """Return how much the sensitivity of a phase's release can grow, relatively, by float64 steps.

        A mean of B numbers within s, added in any order, errs by at most ``B 2^-53 s``, up to a factor of 1 + 2^-20.
        """
        return phase_rounding(
            given.problem,
            steps=self.steps,
            rate=rate,
            sensitivity=2 * width / batch,
            error=(1 + 2.0**-20) * batch * 2.0**-53 * width,
            longest=(1 + 2.0**-20) * width,
        )

    def _schedule(self, given: Given, multiplier: float, batch: int, first: float, rate: float) -> tuple[Phase, ...]:
        """Return every phase, from declared numbers alone; ``first`` is the width of the first."""
        certificate, p = given.problem.certificate, given.dimension
        per_sample = self.deviation or certificate.lipschitz or first
        spread = self.user_deviation(per_sample, given.public.min_samples)
        smoothness = certificate.smoothness if certificate.smoothness is not None else 1 / rate
        shrink = self._kept(certificate.strong_convexity, rate) if self.shrink is None else self.shrink
        width, radius = first, 2 * given.problem.domain.radius
        phases: list[Phase] = []
        while True:
            mechanism = GaussianMechanism(math.sqrt(p) * rate * 2 * width / batch, multiplier)
            moved = partial(clipped_mean, width=width)
            phases.append(Phase(steps=self.steps, learning_rate=rate, gradient=moved, mechanism=mechanism, width=width))
            if len(phases) == self.phases:
                return tuple(phases)
            error = math.hypot(mechanism.standard_deviation, rate * spread / math.sqrt(batch))
            radius = min(radius, shrink * radius + math.sqrt(2 * math.log(2 * p)) * error)
            distance = smoothness * radius if smoothness else 0.0
            width = min(width, distance + _TAILS * spread)

    def _kept(self, strong_convexity: float, rate: float) -> float:
        """Return the share of the distance from the optimum that a phase's average iterate keeps."""
        factor = max(0.0, 1 - rate * strong_convexity)
        return float(np.mean([factor**step for step in range(1, self.steps + 1)]))
