"""The check that ordinary clients reply with models at all: a noisy count, which a round's own noise pays for."""

import numpy as np

from strategies.core.base import UserLevelStrategy
from strategies.core.results import RoundRecord
from userdp.errors import RunFailed
from userdp.mechanisms import GaussianMechanism

_PURPOSE = 2  # Of its noise, beside those of a round's own releases
_CERTAIN = 4.0  # Deviations of its noise that a count exceeds before anything is said of it


def check_usable(strategy: UserLevelStrategy, record: RoundRecord, clip: float) -> None:
    """Refuse (`RunFailed`) to go on where most users' replies count as zero, as a count with noise tells.

    *Formal guarantees.* *Claim.* The noisy sum of a round and this verdict together are one release of the mechanism of
    the sum, at its cost, under either relation. *Why.* A user whose reply is unusable adds zero to the sum (about a
    centre, if there is one) and one to the count; any other adds a vector of norm at most C, and zero. With C counted
    for each, a user adds a row ``(v, C u)`` of norm at most C, which is all that a sampler's proof asks of rows: the
    sum of rows moves by at most 2C if a user is replaced, and by C if one is added or removed. (Rows that
    name the octave of a length stay at most sqrt(2) apart with the count beside them: none points away from another.)
    Noise of the sum's deviation on C times the count completes it to the Gaussian mechanism of these rows. The verdict
    follows from the noisy count. *Assumptions.* Those of the sum.

    Of rounds in which all replies are models, one in 30,000 is refused at most. Noise that could pass for half a cohort
    hides some in which none is.

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
    if told > max(cohort / 2, _CERTAIN * counted.standard_deviation):
        raise RunFailed(
            "most clients' replies count as zero, by a count with noise: models that are not finite, or that are near "
            "zero against the model sent, as updates are; reply with the whole trained model, and lower the clients' "
            "learning rate if training diverges"
        )
