"""Public groups in turn, secret coins within: correlated noise with amplification by sampling."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Relation
from userdp.accounting.amplified import poisson_epsilon
from userdp.errors import BadInput
from userdp.mechanisms.prefix_sums import Factorisation
from userdp.mechanisms.toeplitz import FACTORISATIONS
from userdp.randomness import stream
from userdp.sampling.base import EitherRelation, SizedSampler, check_batch
from userdp.sampling.random_cohorts import SECRET, Cohort, RandomCohorts

Bands = Literal["square_root", "banded"]
"""The factorisations whose C has few diagonals."""
BANDED: tuple[Bands, ...] = ("square_root", "banded")
_MOST_BANDS = 64
_PAST = 1.05  # Noise over the least so far from which more bands only add to it


@dataclass(frozen=True)
class AmplifiedBands(EitherRelation, RandomCohorts, SizedSampler):
    """Round t asks group ``t mod bands``, each member by a coin of its own, under noise correlated over rounds.

    *Formal guarantees.* Unit: a user; relation: add-or-remove, or replace-one if so set, with n public. Users are
    divided into ``bands`` groups without looking at data. *Claim.* With noise of z times the clip (for replace-one,
    twice the clip) times `sensitivity` on each row of C G (see `userdp.mechanisms.prefix_sums`), T rounds together cost
    as much as ``ceil(T / bands)`` rounds of the Poisson-sampled Gaussian mechanism of multiplier z. *Why.* A user can
    take part in rounds that are ``bands`` apart and in no others. C has no more diagonals than that, so what the user
    adds to C G in one of these rounds is one vector in rows that none of the others touches, at most the clip times the
    norm of a column of C long, and it is there with probability ``rate``, independently of the others. Given all rows
    before, and the rows of others as functions of the rows released so far, these rows are a Gaussian vector with or
    without that shift, or with that of either user: one row of a Poisson-sampled round, of whatever dimension, and
    dominated as `userdp.accounting.amplified.poisson_epsilon` proves for the relation. Dominated pairs compose
    adaptively (Choquette-Choo et al. 2023, arXiv 2306.08153, Theorems 4 and 5). One band is the Poisson-sampled
    Gaussian mechanism with fresh noise; as many bands as a user's cohorts are apart leave nothing to chance.
    *Assumptions.* The coins are secret, groups are public.
    """

    users: int
    batch: int  # users per round, on average
    rounds: int  # T
    bands: int  # groups, and the most diagonals of C
    kind: Bands = "banded"
    seed: int | None = 0  # of SIMULATED coins; None: the operating system draws, once per round, rounds in order
    groups_seed: int = 0  # of the groups; public

    accountant: ClassVar[str] = (
        "privacy loss distribution of the Poisson-sampled Gaussian mechanism, composed over a user's turns (correlated "
        "noise)"
    )
    assumption: ClassVar[str] = f"the number that divides is a public constant, and {SECRET}"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes(rounds=self.rounds, bands=self.bands)
        if self.bands * self.batch > self.users:
            raise BadInput(
                f"bands = {self.bands} of {self.batch} users per round: there are only {self.users} users; lower one"
            )

    def last_error(self, epsilon: float, delta: float) -> float:
        """Return the deviation of the last prefix sum's noise, over the clip."""
        noise = self.calibrate(epsilon, delta) * self.sensitivity_factor
        return noise * self.sensitivity * float(self.factorisation.deviations()[-1])

    @property
    def rate(self) -> float:
        """The probability to take part in a turn of the own group."""
        return self.batch * self.bands / self.users

    @property
    def factorisation(self) -> Factorisation:
        """The factorisation that correlates the noise."""
        return FACTORISATIONS[self.kind](self.rounds, self.bands)

    @property
    def sensitivity(self) -> float:
        """The norm of a column of C, the most that a user moves C G in one of its rounds, in units of the clip."""
        return self.factorisation.sensitivity(min(self.rounds, self.bands))

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """(n,) the group of each user."""
        groups = np.arange(self.users) % self.bands
        return stream(self.groups_seed, "sampling", 0, 1).permutation(groups)

    def cohort(self, index: int) -> Cohort:
        tossed = self._tossed(self.checked_round(index), self.rate)
        return np.asarray(tossed[self._groups[tossed] == index % self.bands])

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of the rounds so far."""
        turns = -(-self.counted_rounds(rounds) // self.bands)
        return poisson_epsilon(noise_multiplier, self.rate, turns, delta, self.relation)


@lru_cache(maxsize=64)
def best_bands(
    users: int,
    batch: int,
    rounds: int,
    epsilon: float,
    delta: float,
    kinds: tuple[Bands, ...],
    relation: Relation = "add_or_remove",
) -> tuple[int, Bands]:
    """Return bands and kind for which the last prefix sum has the least noise within a budget.

    Bands are powers of two up to 64, and as many as make every user take part in its turn. Past the least noise more
    bands are not tried. Raises `PopulationTooSmall` for fewer users than a batch.
    """
    check_batch(batch, users)
    most = min(rounds, users // batch, _MOST_BANDS)

    def error(bands: int, kind: Bands) -> float:
        return AmplifiedBands(users, batch, rounds, bands, kind, relation=relation).last_error(epsilon, delta)

    # The square root takes no search for its coefficients, so it finds about how many bands; others profit from more.
    least, chosen = math.inf, most
    for bands in (2**k for k in range(7) if 2**k < most):
        if (own := error(bands, "square_root")) > _PAST * least:
            break
        least, chosen = min((least, chosen), (own, bands))
    numbers = sorted({min(chosen * more, most) for more in (1, 2, 4)} | {most})
    return min(itertools.product(numbers, kinds), key=lambda one: error(*one))
