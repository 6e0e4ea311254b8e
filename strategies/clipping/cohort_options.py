"""The cohorts of rounds with noise each: how they are drawn, and so how they are accounted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from strategies.core.mean_rounds import sampler_numbers
from strategies.core.noise_forecast import NoisePath
from strategies.core.options import StrategyOptions
from strategies.core.public_facts import Given, Price
from strategies.core.scheme import Number, Outline
from userdp.accounting import Relation
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.sampling import (
    AllocatedBatches,
    CyclicBatches,
    DisjointBatches,
    FixedSizeBatches,
    PoissonBatches,
    Sampler,
    check_batch,
)

Sampling = Literal["disjoint", "cyclic", "poisson", "fixed_size", "allocation"]

SECRET_COHORTS = (
    "Poisson, fixed-size and allocated cohorts, which must stay secret, come from the operating system too, once a "
    "round; ledgers refuse seeded ones, and an interrupted run cannot resume with an allocation that is gone"
)
"""The effect of secure noise on samplers."""


@dataclass(frozen=True)
class NoisyMean:
    """The noisy mean of a cohort that each round releases, and the price of all rounds."""

    sampler: Sampler  # draws the cohorts, and accounts them
    mechanism: GaussianMechanism | LaplaceMechanism  # of the mean; with the noise of nodes, the loudest that it can be
    multiplier: float  # noise over sensitivity of all that a round releases
    price: Price
    numbers: Mapping[str, Number] = field(default_factory=dict)  # of the plan, beyond those that all such rounds have

    def noise(self, dimension: int) -> float:
        """Return the expected l2 norm of the noise of a mean of so many entries."""
        return self.mechanism.standard_deviation * math.sqrt(dimension)


class CohortOptions(StrategyOptions):
    """Settings of strategies that ask a cohort each round."""

    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(None, ge=1)
    """Users a round (the expected number for poisson); all of them if not given. For allocation it follows from
    participations."""
    sampling: Sampling = "disjoint"
    """disjoint: a new partition each epoch; cyclic: the same one; poisson: a coin for each user; fixed_size: a random
    cohort each round; allocation: every user in as many random rounds, mostly with less noise than poisson. The last
    three need secret cohorts."""
    relation: Relation | None = None
    """Neighbouring relation; default add_or_remove for poisson and allocation, and else replace_one, the only one for
    the other samplings. Add-or-remove promises less, and takes less noise."""
    participations: int | None = Field(None, ge=1)
    """Rounds that each user takes part in, for allocation: 1 if not given."""

    def sampler(self, given: Given) -> Sampler:
        """Make the sampler of these settings.

        Raises `BadInput`: a cohort for allocation, participations for anything else, or a relation that the sampling
        has no price for. Raises `PopulationTooSmall`: fewer users than one cohort.
        """
        relation = self.relation or "add_or_remove"
        if self.sampling == "allocation":
            if self.cohort is not None:
                raise BadInput(
                    f"strategy.cohort = {self.cohort} with sampling = 'allocation': cohorts follow from "
                    "strategy.participations and rounds; set that instead"
                )
            asked = given.users, self.participations or 1, self.rounds, given.secret_seed
            return AllocatedBatches(*asked, relation=relation)
        if self.participations is not None:
            raise BadInput(
                f"strategy.participations = {self.participations} with sampling = {self.sampling!r}: it is for "
                "sampling = 'allocation'; set strategy.cohort instead"
            )
        users, cohort, rounds = given.users, self.cohort or given.users, self.rounds
        check_batch(cohort, users)
        if self.sampling == "poisson":
            return PoissonBatches(users, cohort / users, rounds, given.secret_seed, relation=relation)
        if self.relation == "add_or_remove":
            raise BadInput(
                f"strategy.relation = 'add_or_remove' with sampling = {self.sampling!r}: such cohorts are priced for "
                "replacing a user; leave it out, or set sampling = 'poisson' or 'allocation'"
            )
        if self.sampling == "fixed_size":
            return FixedSizeBatches(users, cohort, rounds, given.secret_seed)
        kind = CyclicBatches if self.sampling == "cyclic" else DisjointBatches
        return kind(users, cohort, -(-rounds // (users // cohort)), given.seed)

    def outline(
        self, mean: NoisyMean, rate: float, *, noise: float, signal: float, path: NoisePath | None = None
    ) -> Outline:
        """Return what a plan says of rounds that release such a mean each, and follow it with steps of size ``rate``.

        ``noise`` is the expected l2 norm of the noise that is followed, and ``signal`` the longest mean without noise.
        """
        if isinstance(mean.mechanism, LaplaceMechanism):
            sensitivity: dict[str, Number] = {"l1_sensitivity": mean.mechanism.sensitivity}
        else:
            sensitivity = {"l2_sensitivity": mean.mechanism.l2_sensitivity}
        cohort = max(1, round(mean.sampler.expected_batch))
        return Outline(
            rounds=self.rounds,
            cohort=cohort,
            users_needed=1 if self.sampling == "allocation" else cohort,
            path=path,
            noise=noise,
            signal=signal,
            numbers={
                **mean.numbers,
                "cohort": cohort,
                "sampling": self.sampling,
                "learning_rate": rate,
                "noise_multiplier": mean.multiplier,
                "noise_deviation": mean.mechanism.standard_deviation,
                **sensitivity,
                **sampler_numbers(mean.sampler, mean.price.guarantee, mean.multiplier),
            },
        )
