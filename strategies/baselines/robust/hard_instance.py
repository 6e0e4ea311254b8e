"""The hard instance of Ghazi, Kumar, Liu, Manurangsi 2025, appendix C, as a population."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays import Vector
from userdp.data import Location, Source

Noise = NDArray[np.float32]


class HardInstance(Location):
    """The lower bound of Ghazi et al. (2025), appendix C: z[k] ~ N(mean[k], m) for a user with m samples.

    That is the law P_1. In Lemma C.1's P_2 (epsilon up to 0.1) about ``sqrt(d) / epsilon`` users have it, others hold
    zeros: set ``share``. A clip at ``sqrt(m)`` times a logarithm is the problem's (``bound``).
    """

    name = "hard_instance"
    summary = "N(mean, m) samples for a user with m of them, or zeros: the lower bound of Ghazi et al. 2025"
    share: float = Field(1.0, gt=0, le=1)
    """The probability with which a user has the law, in (0, 1]; the population's mean is ``share mean``."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The noise of a `Location`, and a coin for each user that may hold zeros."""
        return super().sources if self.share == 1 else (*super().sources, Source("user", "uniform", 1))

    def truth(self, rng: np.random.Generator) -> Vector:
        return self.share * super().truth(rng)

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> tuple[Noise, None]:
        """Return normal rows around each user's own mean, and zeros for the other users."""
        rows = cast(Noise, super().samples(truth / self.share, sizes, noise)[0])
        for coins in noise[2:]:
            rows[np.repeat(coins[:, 0] >= self.share, sizes)] = 0.0
        return rows, None

    def centred(self, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Noise:
        """Return normal noise times sqrt(m)."""
        rows = noise[1]
        rows *= np.repeat(np.sqrt(sizes).astype(np.float32), sizes)[:, None]
        return rows
