"""Local privacy: each user adds its own noise, and nobody has to be trusted; the pessimistic end of comparisons."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Scheme, Step
from strategies.core.ways import Course
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation, LocalNoise
from userdp.sampling import DisjointBatches


class LocalDPOptions(StrategyOptions):
    """Settings of `LocalDP`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    rounds: int = Field(1, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None, ge=1, description="Users a round, disjoint within an epoch; all of them if not given."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")


@dataclass(frozen=True, kw_only=True)
class LocalScheme(Scheme):
    """A `Scheme` of noise that users add themselves.

    Attributes:
        sampler: who takes part in each round.
        mechanism: of each user's clipped gradient.
        rate: step size.
    """

    sampler: DisjointBatches
    mechanism: GaussianMechanism
    rate: float


class LocalDP(UserLevelStrategy):
    """The mean of user gradients that were clipped and made noisy by the users themselves.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, against everybody but the user's own node, the server
    included. *Why.* Unit: one whole user; relation: replace-one, in the local model: each user's own messages are
    (epsilon, delta)-DP in its data, with whoever reads them, the server included. A user clips to l2 norm C, so its
    data move what it sends by at most 2C, and adds N(0, (2 C z)^2 I) for that; its rounds compose as one Gaussian
    mechanism. Nothing else that depends on its data leaves it: no count of clipped samples or of rows that were not
    finite, and of an error no more than that there was one. What the server does with the messages is post-processing.
    Seeded noise comes from the run's seed, by user and round; secure noise from the operating system of the user's own
    machine.

    *Assumptions.* Each user's own client is honest. The server may be curious, but asks what the plan says: a node
    answers other questions too. In a simulation its noise is seeded; secure noise is its own machine's.
    """

    name: ClassVar[str] = "local_dp"
    summary_line: ClassVar[str] = "each user adds its own noise; no trust in the server"
    family: ClassVar[str] = "local"
    cost: ClassVar[str] = "node O(N d) and a noise vector a user, one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Duchi, Jordan, Wainwright 2013; Gaussian noise as in Balle, Wang 2018"
    promise: ClassVar[str] = "user level, against the server too"
    with_secure_noise: ClassVar[str] = "no seed is sent, each user's machine draws its own noise"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "noise_per_user": "standard deviation of the noise that each user adds to each coordinate",
    }
    Options: ClassVar[type[StrategyOptions]] = LocalDPOptions
    server_trusted: ClassVar[bool] = False
    without_comparison: ClassVar[str | None] = "users would have to trust the server with what they prefer"
    options: LocalDPOptions
    adversary: ClassVar[str] = "against everybody but the user's own node, the server included"
    scheme: LocalScheme

    def _make_scheme(self) -> LocalScheme:
        options, n = self.options, self.public.users
        cohort = options.cohort or n
        epochs = math.ceil(options.rounds / DisjointBatches(n, cohort).rounds_per_epoch)
        sampler = DisjointBatches(n, cohort, epochs, self.seed)
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        assumptions = (
            "each user clips and adds its noise itself",
            "the server asks what the plan says: a node answers other questions too",
            *(("noise is simulated from the run's seed",) if self.privacy.noise == "seeded" else ()),
        )
        return LocalScheme(
            guarantee=sampler.guarantee(multiplier, self.privacy.delta, self.adversary, assumptions),
            ledger=partial(sampler.ledger, multiplier),
            sampler=sampler,
            mechanism=GaussianMechanism(sampler.sensitivity_factor * options.clip_norm, multiplier),
            rate=options.learning_rate or self._default_step,
        )

    def _make_plan(self) -> Plan:
        options, scheme = self.options, self.scheme
        cohort, deviation = scheme.sampler.batch, scheme.mechanism.standard_deviation
        noise = deviation * math.sqrt(self.problem.dimension / cohort)
        course = Course(
            steps=options.rounds,
            rate=scheme.rate,
            deviation=deviation / math.sqrt(cohort),
            longest=options.clip_norm,
        )
        return self._planned(
            course,
            rounds=options.rounds,
            cohort=cohort,
            users_needed=cohort,
            noise=noise,
            signal=options.clip_norm,
            numbers={
                "clip_norm": options.clip_norm,
                "cohort": cohort,
                "participations": scheme.sampler.epochs,
                "learning_rate": scheme.rate,
                "noise_multiplier": scheme.mechanism.noise_multiplier,
                "noise_per_user": deviation,
            },
        )

    def _ask(self, index: int) -> Request:
        seed = self.seed if self.privacy.noise == "seeded" else None
        noise = LocalNoise(self.scheme.mechanism.standard_deviation, seed, index)
        computation = Computation("user_gradient", reduce="sum", clip_norm=self.options.clip_norm, noise=noise)
        return Request(self.scheme.sampler.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        x = self.problem.domain.project(x - self.scheme.rate * gathered.values / self.scheme.sampler.batch)
        return Step(x, x)
