"""Items that many users hold, found in a universe that nobody lists: the weighted Gaussian set union."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from userdp.accounting.checks import check_positive
from userdp.accounting.costs import Cost
from userdp.accounting.guarantee import Relation
from userdp.errors import BadInput
from userdp.noise import NoiseSource
from userdp.randomness import text_words

_MARGIN = 1e-9  # Relative margin of the threshold, for its rounding and for that of noise in float64.


@dataclass(frozen=True)
class SetUnion:
    """Releases every item whose noisy weight exceeds a threshold; each user spreads a vector of norm 1 over its items.

    A user keeps at most D of its items, by keys of its own, and adds ``1 / sqrt(t)`` to the weight of each of the t it
    keeps (Gopi et al. 2020, ICML). Items with ``w + s Z > rho`` are released, each with its own standard
    normal Z; an item that nobody keeps has no weight and is never considered.

    *Formal guarantees.* Unit: a user. *Claim.* For either relation the release is a function of one Gaussian mechanism
    of noise multiplier z and of an event of probability d, independent of it, that may reveal everything. This is
    ``Cost(noise_multiplier=z, failure_delta=d)``: alone it is (epsilon, d + (1 - d) g)-DP, where g is the delta of the
    Gaussian at epsilon, and it composes with other mechanisms as the ledger composes that cost. *Why.*

    1. *Split.* What a user keeps is a function of its own items and of their keys, which are its own, too (`own_keys`).
       So for any keys, known or not, everybody else keeps the same in both neighbours. Let K be the items that somebody
       keeps in both neighbours, U the others of the first and U' those of the second. U holds items of the user in
       question alone, U' those of its replacement alone. Noise is independent by item. Hence the release of the first
       is that on K, independent of that on U, and so for the second.
    2. *Items of nobody else.* Each item of U has weight ``1 / sqrt(t)``, and there are at most t of them. With ``rho >=
       1 / sqrt(t) + s Phi^-1((1 - d)^(1 / t))`` for every t up to D none of U is released with probability at least
       1 - d. The same holds for U'; for an empty set the probability is 1.
    3. *Shared items.* On K the weights differ by ``x - x'``, the two users' vectors on K: non-negative, of norm at most
       1. Its norm is at most sqrt(2); if a user is added or removed, one of them is 0, and it is at most 1. So the
       releases on K are thresholds of a Gaussian mechanism of multiplier z if s is z times that sensitivity.
    4. *Together.* By 1 and 2 the law of the first release is ``(1 - d) M + d R``, where M is the release on K alone,
       and R some law; that of the second is ``(1 - d) M' + d R'``. With probability d the event reveals which of the
       two it is, from which R or R' follows; else the Gaussian on K gives M or M'. That is the claim. The hockey-stick
       divergence is jointly convex, so it is at most ``(1 - d) g + d``, in both directions.

    *Assumptions.* Real-valued noise, which `userdp.noise.SecureNoise` matches with the slack of `rounding_slack` for
    the number of users; rho is that of the enlarged noise. Rounding of the threshold and of released weights is below
    the margin that raises rho. A row's key, and which of two equal keys of a user comes first, follow from a seed, the
    user and the item alone. The seed need not be secret.

    Attributes:
        noise_multiplier: z > 0, deviation of the noise over sensitivity.
        failure_delta: d, in (0, 1).
        most_items: D >= 1, the most items that count of one user.
        relation: the neighbouring relation.
    """

    noise_multiplier: float
    failure_delta: float
    most_items: int
    relation: Relation

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier, most_items=self.most_items)
        if not 0 < self.failure_delta < 1:
            raise BadInput(f"failure_delta = {self.failure_delta}: must lie strictly between 0 and 1, such as 1e-7")

    @property
    def sensitivity(self) -> float:
        """The largest movement of the weights that others hold too, in l2."""
        return math.sqrt(2) if self.relation == "replace_one" else 1.0

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise on each weight."""
        return self.noise_multiplier * self.sensitivity

    def threshold(self, slack: float = 0.0) -> float:
        """Return the threshold rho, for noise that a source draws larger by ``slack``."""
        held, deviation = np.arange(1, self.most_items + 1), self.standard_deviation * (1 + slack)
        beyond = -np.expm1(np.log1p(-self.failure_delta) / held)  # 1 - (1 - d)^(1 / t), without cancellation
        least = np.max(1 / np.sqrt(held) - deviation * ndtri(beyond))
        return float(least + _MARGIN * (abs(least) + deviation))

    @property
    def cost(self) -> Cost:
        """The cost of one release."""
        return Cost(noise_multiplier=self.noise_multiplier, failure_delta=self.failure_delta)

    def users_needed(self, items: int) -> int:
        """Return how many users must hold an item, each as one of so many, to release it 97 times in 100."""
        return math.ceil((self.threshold() + 2 * self.standard_deviation) * math.sqrt(items))

    def weights(
        self, owner: NDArray[np.int64], items: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> NDArray[np.float64]:
        """Return the weight (K,) of each item 0..K-1, for K the largest number and one; see `release`."""
        held = np.flatnonzero(items >= 0)
        count = int(items.max(initial=-1)) + 1
        pairs, first = np.unique(owner[held] * count + items[held], return_index=True)
        users, kept = np.divmod(pairs, max(count, 1))
        order = np.lexsort((keys[held[first]], users))  # of a user's equal keys the smaller number comes first
        sizes = np.bincount(users)
        rank = np.arange(len(users)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = order[rank < self.most_items]
        shares = 1 / np.sqrt(np.clip(sizes, 1, self.most_items))
        return np.bincount(kept[chosen], weights=shares[users[chosen]], minlength=count).astype(np.float64)

    def release(
        self,
        owner: NDArray[np.int64],
        items: NDArray[np.int64],
        keys: NDArray[np.uint64],
        noise: NoiseSource,
    ) -> NDArray[np.int64]:
        """Return the rising numbers of the released items.

        Args:
            owner: (N,) user of each row, 0 or more.
            items: (N,) number of the row's item, -1 for none; equal numbers are equal items. The order of two numbers
                must follow from the two items alone, as that of sorted names does.
            keys: (N,) keys of rows by `own_keys`; a user with more than ``most_items`` items keeps those of the
                smallest.
            noise: the source of the noise.
        """
        noise.charge(self.cost)
        weights = self.weights(owner, items, keys)
        held = np.flatnonzero(weights)
        noisy = noise.gaussian(weights[held], self.standard_deviation)
        return held[noisy > self.threshold(noise.slack)]


def own_keys(
    seed: int, owner: NDArray[np.int64], labels: Iterable[str], items: NDArray[np.int64], names: Iterable[str]
) -> NDArray[np.uint64]:
    """Return the key (N,) of each row: pseudo-random numbers, each of its own user and item.

    *Formal guarantees.* A key is a function of the seed, the text of the row's user and that of its item: each text is
    hashed by itself, and the two hashes of a row are mixed. Neither other rows nor the numbers of users and items
    enter, which follow from everybody.

    Args:
        seed: which need not be secret.
        owner: (N,) number of each row's user in ``labels``.
        labels: (L,) texts of users.
        items: (N,) number of each row's item in ``names``, -1 for none.
        names: (K,) texts of items.
    """
    users, own = text_words(f"user {seed}", labels), text_words(f"item {seed}", names)
    return _mixed(users[owner] + np.append(own, np.uint64(0))[items])


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits, wrapping around."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
