"""The truncated geometric law, which draws how many records one step looks at.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Definition 5.1).

>>> from strategies.baselines.sparse_gradients.truncated_geometric import TruncatedGeometric
>>> TruncatedGeometric(2).chances.round(4).tolist()
[0.5714, 0.2857, 0.1429]
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.errors import BadInput


@dataclass(frozen=True)
class TruncatedGeometric:
    """Level k in 0..largest with probability proportional to ``2^-k``; a level stands for a batch of ``2^(k+1)``.

    Raises `BadInput`: the largest level is out of range.
    """

    largest: int  # M, the largest level, from 0 to 60

    def __post_init__(self) -> None:
        if not 0 <= self.largest <= 60:
            raise BadInput(f"largest level = {self.largest}: must lie between 0 and 60")

    @classmethod
    def for_records(cls, records: int) -> Self:
        """The law whose largest batch is the largest power of two up to n, M = floor(log2 n) - 1; n >= 2."""
        if records < 2:
            raise BadInput(f"records = {records}: a batch of two halves needs at least 2")
        return cls(records.bit_length() - 2)

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """(M + 1,): the probability of each level, ``2^-k / (2 (1 - 2^-(M+1)))``."""
        weights = np.exp2(-np.arange(self.largest + 1))
        return np.asarray(weights / (2 - 2.0**-self.largest))

    @property
    def batches(self) -> NDArray[np.int64]:
        """(M + 1,): the batch of each level, ``2^(k+1)``."""
        return np.asarray(2 << np.arange(self.largest + 1, dtype=np.int64))

    @property
    def mean_batch(self) -> float:
        """``E 2^(N+1) = (M + 1) / (1 - 2^-(M+1))``, exactly."""
        return (self.largest + 1) / (1 - 2.0 ** -(self.largest + 1))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Independent levels of that shape, by inversion of the distribution function."""
        steps = np.cumsum(self.chances)
        return np.asarray(np.minimum(np.searchsorted(steps, rng.random(size), side="right"), self.largest))
