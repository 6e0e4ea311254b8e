"""The cohorts of rounds with noise each: how they are drawn, and so how they are accounted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.public_facts import Given, Price
from strategies.core.scheme import Number, Outline
from userdp.accounting import Relation
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.problems.noise_paths import NoisePath
from userdp.sampling import NamedSampler, Sampler
from userdp.sampling.base import Wanted
from userdp.sampling.registry import SAMPLERS, sampler_of
from userdp.settings import NameOf

SECRET_COHORTS = (
    "Poisson, fixed-size and allocated cohorts, which must stay secret, come from the operating system too, once per "
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
    sampling: Annotated[str, NameOf(SAMPLERS)] = "disjoint"
    """disjoint: a new partition each epoch; cyclic: the same one; poisson: a coin for each user; fixed_size: a random
    cohort each round; allocation: every user in as many random rounds, mostly with less noise than poisson. The last
    three need secret cohorts."""
    relation: Relation | None = None
    """Neighbouring relation; default add_or_remove for poisson and allocation, and else replace_one, the only one for
    the other samplings. Add-or-remove promises less, and takes less noise."""
    participations: int | None = Field(None, ge=1)
    """Rounds that each user takes part in, for allocation: 1 if not given."""

    def sampler(self, given: Given) -> NamedSampler:
        """Make the sampler of these settings; raises `BadInput` as `sampler_of` does."""
        wanted = Wanted(
            given.users,
            self.rounds,
            cohort=self.cohort,
            relation=self.relation,
            participations=self.participations,
            seed=given.seed,
            secret_seed=given.secret_seed,
        )
        return sampler_of(self.sampling, wanted)

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
            users_needed=cohort if SAMPLERS[self.sampling].sized_by == "cohort" else 1,
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
                **mean.sampler.numbers(mean.multiplier, mean.price.guarantee),
            },
        )
