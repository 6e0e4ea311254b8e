"""Localised clipping: coordinate-wise clips that narrow from phase to phase; noise once a phase, and no test."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.localized import PHASE_ASSUMPTIONS
from strategies.options import StrategyOptions
from strategies.passing import DeviationOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Ledger, calibrate_noise, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
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
    honestly.

    *Assumptions.* As for `localized_robust_sgd`.
    """

    name: ClassVar[str] = "localized_clipping"
    summary_line: ClassVar[str] = "coordinate-wise clips that narrow from phase to phase, noise once a phase"
    family: ClassVar[str] = "clipping"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "ours, in the localisation of Ghazi, Kumar, Liu, Manurangsi 2025"
    needs: ClassVar[str] = "certified loss (A1 to A4), honest nodes"
    without_secure_noise: ClassVar[str | None] = "inside a phase its proof takes steps without rounding"
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

    def _make_plan(self) -> Plan:
        options, certificate, n = self.options, self.problem.certificate, self.public.users
        self._check_certificate()
        rounds = options.phases * options.steps
        if n < rounds:
            raise PopulationTooSmall(
                f"data.users = {n}: {options.phases} phases of {options.steps} steps take {rounds}, one each; "
                "use fewer strategy.phases or strategy.steps, or bring more users"
            )
        self._batch = n // rounds
        self._first = options.clip or certificate.lipschitz or 1.0
        self._rate = options.learning_rate or self._default_rate()
        multiplier = calibrate_noise(self.privacy.epsilon, self.privacy.delta, 1)
        self._cost = Cost(noise_multiplier=multiplier)
        self._mechanisms = self._schedule(multiplier)
        self._sampler = DisjointBatches(n, self._batch, 1, self.seed)
        self._sum = np.zeros(self.problem.dimension)
        noise = self._mechanisms[-1].standard_deviation * math.sqrt(self.problem.dimension)
        warnings = []
        if noise >= self._signal:
            warnings.append(
                "the noise is expected to drown the signal: bring more users, raise privacy.epsilon, use fewer "
                "strategy.phases and strategy.steps, or recentred_clipping"
            )
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=self._batch,
            users=n,
            users_needed=rounds,
            guarantee=self._promise(),
            noise=noise,
            signal=self._signal,
            numbers={
                "batch": self._batch,
                "phases": options.phases,
                "steps": options.steps,
                "learning_rate": self._rate,
                "noise_multiplier": multiplier,
                "widths": ", ".join(f"{width:.3g}" for width in self._widths),
                "noise_deviation": ", ".join(f"{each.standard_deviation:.3g}" for each in self._mechanisms),
            },
            warnings=tuple(warnings),
        )

    def _check_certificate(self) -> None:
        options, certificate = self.options, self.problem.certificate
        if not options.without_certificate:
            certificate.require_contractive(self.name)
        elif certificate.missing() and (options.clip is None or options.learning_rate is None):
            raise BadInput("strategy.clip and strategy.learning_rate must be given for a loss without certificate")
        if options.learning_rate and certificate.smoothness and options.learning_rate > 2 / certificate.smoothness:
            raise BadInput(
                f"strategy.learning_rate = {options.learning_rate:g}: must be at most 2 / smoothness = "
                f"{2 / certificate.smoothness:.6g}, beyond which steps of this loss are not proven to be contractive"
            )

    def _default_rate(self) -> float:
        """1 / smoothness; for a linear loss so long that only signs are left after the projection."""
        smoothness = self.problem.certificate.smoothness
        return 1 / smoothness if smoothness else _CROSSING * self.problem.domain.radius / self._first

    @property
    def _projects(self) -> bool:
        """Whether iterates inside a phase stay in the domain; a linear loss needs it only at the release."""
        return self.problem.certificate.smoothness != 0

    @property
    def _signal(self) -> float:
        """l2 norm of the longest way there is to go in the last phase."""
        root = math.sqrt(self.problem.dimension)
        way = self._rate * self._widths[-1] * self.options.steps
        return root * (min(way, 2 * self.problem.domain.radius) if self._projects else way)

    def _schedule(self, multiplier: float) -> list[GaussianMechanism]:
        """Mechanism of every phase; `_widths` alongside. From declared numbers alone."""
        options, certificate, p = self.options, self.problem.certificate, self.problem.dimension
        per_sample = options.deviation or certificate.lipschitz or self._first
        spread = options.user_deviation(per_sample, self.public.min_samples)
        smoothness = certificate.smoothness if certificate.smoothness is not None else 1 / self._rate
        factor = max(0.0, 1 - self._rate * certificate.strong_convexity)
        kept = float(np.mean([factor**step for step in range(1, options.steps + 1)]))
        shrink = kept if options.shrink is None else options.shrink
        self._widths = [self._first]
        mechanisms: list[GaussianMechanism] = []
        radius = 2 * self.problem.domain.radius
        while True:
            sensitivity = math.sqrt(p) * self._rate * 2 * self._widths[-1] / self._batch
            mechanisms.append(GaussianMechanism(sensitivity, multiplier))
            if len(mechanisms) == options.phases:
                return mechanisms
            error = math.hypot(mechanisms[-1].standard_deviation, self._rate * spread / math.sqrt(self._batch))
            radius = min(radius, shrink * radius + math.sqrt(2 * math.log(2 * p)) * error)
            distance = smoothness * radius if smoothness else 0.0
            self._widths.append(min(self._widths[-1], distance + _TAILS * spread))

    def _promise(self) -> Guarantee:
        if self.problem.certificate.missing():
            return Guarantee.none(f"the loss lacks {', '.join(self.problem.certificate.missing())}")
        return Guarantee(
            unit="user",
            relation="replace_one",
            epsilon=epsilon_of(self._cost, 1, self.privacy.delta),
            delta=self.privacy.delta,
            accountant="analytic Gaussian mechanism, parallel over disjoint users",
            adversary="against whoever sees the released models; "
            "nodes of a phase and the server see its iterates and are trusted",
            assumptions=PHASE_ASSUMPTIONS,
            holds=True,
        )

    def _make_ledger(self) -> Ledger | None:
        if not self.plan.guarantee.holds:
            return None
        return Ledger(self.public.users, self._cost, 1, self.privacy)

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), Computation("user_gradient"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector | None]:
        phase, step = divmod(index, self.options.steps)
        width = self._widths[phase]
        self.facts = {"phase": phase + 1, "width": width}
        if step == 0:
            self._sum = np.zeros(self.problem.dimension)
        x = x - self._rate * np.clip(gathered.values, -width, width).mean(axis=0)
        if self._projects:
            x = self.problem.domain.project(x)
        self._sum += x
        if step + 1 < self.options.steps:
            return x, None
        released = self._mechanisms[phase].release(self._sum / self.options.steps, self._noise(phase))
        released = self.problem.domain.project(released)
        return released, released
