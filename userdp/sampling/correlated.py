"""Cyclic batches with noise that is correlated over rounds, so that all rounds are accounted together."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from userdp.accounting import Cost, Relation, calibrate_noise, epsilon_of
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.errors import BadInput
from userdp.mechanisms.prefix_sums import Factorisation
from userdp.mechanisms.toeplitz import FACTORISATIONS, FactorisationName, best_factorisation
from userdp.sampling.base import SizedSampler
from userdp.sampling.disjoint import CyclicBatches


@dataclass(frozen=True)
class CorrelatedBatches(SizedSampler):
    """`CyclicBatches` under one correlated Gaussian mechanism over all rounds.

    *Formal guarantees.* Unit: a user; relation: replace-one, n public. The same partition every epoch, drawn without
    looking at data: a user takes part every ``users // batch`` rounds and at no other time, and each time moves the sum
    by at most twice the clip. So the first t rounds are one Gaussian mechanism of sensitivity
    ``2 clip factorisation.sensitivity(t)`` (see `userdp.mechanisms.prefix_sums`). Noise multipliers are the standard
    deviation of Z over the sensitivity of ALL rounds. No amplification is claimed.
    """

    users: int
    batch: int  # users per round
    rounds: int  # number of rounds, over all epochs
    seed: int = 0  # seed of the partition; public
    kind: FactorisationName | Literal["best"] = "square_root"  # "best" takes that of least predicted error

    relation: ClassVar[Relation] = "replace_one"
    accountant: ClassVar[str] = f"{ONE_GAUSSIAN}, one for all rounds (correlated noise)"
    assumption: ClassVar[str] = "n and who takes part are public"

    def __post_init__(self) -> None:
        self._check_sizes(rounds=self.rounds)
        if self.kind not in (*FACTORISATIONS, "best"):
            raise BadInput(f"kind = {self.kind!r}: must be one of {', '.join(FACTORISATIONS)} or best")

    @property
    def batches(self) -> CyclicBatches:
        """The partition."""
        return CyclicBatches(self.users, self.batch, -(-self.rounds // (self.users // self.batch)), self.seed)

    @property
    def chosen(self) -> FactorisationName:
        """The name of the factorisation, resolved if ``kind`` is "best"."""
        return best_factorisation(self.rounds, self.batches.separation) if self.kind == "best" else self.kind

    @property
    def factorisation(self) -> Factorisation:
        """The factorisation that correlates the noise."""
        return FACTORISATIONS[self.chosen](self.rounds, self.batches.separation)

    @property
    def sensitivity(self) -> float:
        """The most that a user moves the whole run, in units of ``sensitivity_factor`` times the clip."""
        return self.factorisation.sensitivity(self.rounds)

    def cohort(self, index: int) -> NDArray[np.int64]:
        return self.batches.cohort(self.checked_round(index))

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return the epsilon of the first ``rounds`` rounds, as one Gaussian mechanism."""
        counted = self.counted_rounds(rounds)
        if counted == 0:
            return 0.0
        share = self.factorisation.sensitivity(counted) / self.sensitivity
        return epsilon_of(Cost(noise_multiplier=noise_multiplier / share), 1, delta)

    def calibrate(self, epsilon: float, delta: float) -> float:
        return calibrate_noise(epsilon, delta, 1)
