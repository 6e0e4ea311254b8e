"""What strategies share that release a noisy sum of clipped user vectors every round."""

import math
from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.plan import Plan, sampler_numbers
from strategies.replies import Gathered, Request
from strategies.server_optimiser import ServerOptimiser, ServerOptions
from userdp.computations import Computation
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.problems.base import Vector
from userdp.sampling import CyclicBatches, DisjointBatches, FixedSizeBatches, PoissonBatches, Sampler, check_batch

Sampling = Literal["disjoint", "cyclic", "poisson", "fixed_size"]


class ClippedOptions(ServerOptions):
    """Settings of every strategy here."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that what each user sends is clipped to.")
    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None, ge=1, description="Users a round (the expected number for poisson); all of them if not given."
    )
    sampling: Sampling = Field(
        "disjoint",
        description="disjoint: a new partition each epoch; cyclic: the same one; poisson: a coin for each user, for "
        "adding or removing a user; fixed_size: a random cohort each round. The last two need secret cohorts.",
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size of the server.")


def make_sampler(
    sampling: Sampling, users: int, cohort: int, rounds: int, seed: int, *, secret: bool = False
) -> Sampler:
    """The sampler of a name, with at least ``rounds`` rounds.

    Cohorts that must stay secret come from the operating system instead of the seed if ``secret``.

    Raises:
        PopulationTooSmall: fewer users than one cohort.
    """
    check_batch(cohort, users)
    if sampling == "poisson":
        return PoissonBatches(users, cohort / users, rounds, None if secret else seed)
    if sampling == "fixed_size":
        return FixedSizeBatches(users, cohort, rounds, None if secret else seed)
    kind = CyclicBatches if sampling == "cyclic" else DisjointBatches
    return kind(users, cohort, -(-rounds // (users // cohort)), seed)


class ClippedRounds(UserLevelStrategy):
    """A noisy sum of clipped user vectors every round, divided by the public size of a cohort."""

    with_secure_noise: ClassVar[str] = (
        "Poisson and fixed-size cohorts, which must stay secret, come from the operating system too, once a round; "
        "ledgers refuse seeded ones"
    )
    options: ClippedOptions
    adversary = "against other nodes and whoever sees every iterate; the server is trusted"
    trust = "nodes clip each user as told, and the server is trusted"

    # What a strategy defines ---------------------------------------------------------------------------------------

    @abstractmethod
    def _computation(self) -> Computation:
        """What users send in the next round, but for its clip."""

    @abstractmethod
    def _default_rate(self) -> float:
        """Step size of plain gradient descent, if none is set."""

    def _gradient(self, released: Vector) -> Vector:
        """What the server's optimiser follows, from the released mean."""
        return released

    def _sum_multiplier(self) -> float:
        """Noise over sensitivity of the sum alone, when the whole round is worth ``self._multiplier``."""
        return self._multiplier

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        options, n, p = self.options, self.public.users, self.problem.dimension
        cohort = options.cohort or n
        self._sampler = self._make_sampler(cohort)
        self._multiplier = self._sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        self._clip = options.clip_norm
        self._mechanism = self._mechanism_for(self._clip)
        rate = options.learning_rate or (0.1 if options.server_optimiser == "adam" else self._default_rate())
        self._optimiser = ServerOptimiser(options, rate, p)
        guarantee = self._sampler.guarantee(self._multiplier, self.privacy.delta, self.adversary, (self.trust,))
        noise = self._expected_noise()
        warnings = []
        if noise >= self._clip:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the clip ({self._clip:g}), which bounds what is "
                "released: use fewer strategy.rounds, a larger strategy.cohort, more users or a larger epsilon"
            )
        numbers: dict[str, float | int | str] = {
            "clip_norm": self._clip,
            "cohort": cohort,
            "sampling": options.sampling,
            "learning_rate": rate,
            "noise_multiplier": self._multiplier,
            "noise_deviation": self._mechanism.standard_deviation,
        }
        return Plan(
            strategy=self.name,
            rounds=options.rounds,
            cohort=cohort,
            users=n,
            users_needed=cohort,
            guarantee=guarantee,
            noise=noise,
            signal=self._clip,
            numbers=numbers | self._sensitivity() | sampler_numbers(self._sampler, guarantee) | self._more_numbers(),
            warnings=tuple(warnings),
        )

    def _make_sampler(self, cohort: int) -> Sampler:
        """Who takes part, and what it costs."""
        options = self.options
        secret = self.privacy.noise == "secure"
        return make_sampler(options.sampling, self.public.users, cohort, options.rounds, self.seed, secret=secret)

    def _expected_noise(self) -> float:
        """l2 norm that the noise of one round's gradient is expected to have."""
        return self._mechanism.standard_deviation * math.sqrt(self.problem.dimension)

    def _sensitivity(self) -> dict[str, float | int | str]:
        """The sensitivity of one round's mean, by the name of its norm."""
        if isinstance(self._mechanism, LaplaceMechanism):
            return {"l1_sensitivity": self._mechanism.sensitivity}
        return {"l2_sensitivity": self._mechanism.l2_sensitivity}

    def _more_numbers(self) -> dict[str, float | int | str]:
        """Numbers of the plan beyond those that all have."""
        return {}

    def _mechanism_for(self, clip: float) -> GaussianMechanism | LaplaceMechanism:
        """Of the mean of one cohort's vectors of norm at most ``clip``."""
        sensitivity = self._sampler.sensitivity_factor * clip / self._sampler.expected_batch
        return GaussianMechanism(sensitivity, self._sum_multiplier())

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), self._computation())

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        released = self._mechanism.release(gathered.values / self._sampler.expected_batch, self._noise(index))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        x = self.problem.domain.project(self._optimiser.step(x, self._gradient(released)))
        return x, x
