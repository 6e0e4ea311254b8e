"""The check that ordinary clients reply with models at all: a noisy count, which a round's own noise pays for."""

import numpy as np

from strategies.core.base import UserLevelStrategy
from strategies.core.results import RoundRecord
from strategies.wire.replies import check_count
from userdp.mechanisms import GaussianMechanism

_PURPOSE = 2  # Of its noise, beside those of a round's own releases


def check_usable(strategy: UserLevelStrategy, record: RoundRecord, clip: float) -> None:
    """Refuse (`RunFailed`) to go on where most users' replies count as zero, as a count with noise tells.

    *Formal guarantees.* Those of `check_count`, with noise of the sum's deviation on C times the count.

    Args:
        strategy: the one whose server clips users, and adds the noise.
        record: of the round, with the number of users whose vector is zero because of their reply.
        clip: C, the norm that the round's vectors are clipped to.
    """
    sampler, (part, index) = strategy.scheme.sampler, strategy.program.place(record.round)
    assert sampler is not None
    cohort = sampler.expected_batch
    deviation = record.facts["noise_deviation"] * cohort
    counted, noise = GaussianMechanism(1.0, deviation / clip), strategy.noise_of(part.name, index)(_PURPOSE)
    told = counted.release(np.array([record.non_finite_users], dtype=float), noise)[0]
    strategy.streams.drawn()  # charged with the round's sum
    check_count(told, counted.standard_deviation, cohort)
