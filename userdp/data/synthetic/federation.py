"""Synthetic federations, made block by block from (seed, user index) and never stored."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block
from userdp.data.federation import Federation, checked_users
from userdp.data.shape import require_number
from userdp.data.synthetic.populations import Noise, Population, Source
from userdp.errors import BadInput
from userdp.randomness import seed_sequence, stream
from userdp.threads import side_by_side, threads

NUMBERS_A_THREAD = 1 << 20
"""Random numbers that occupy one thread: about 15 milliseconds."""


class SyntheticFederation(Federation):
    """Users drawn from a population; user i's samples depend on the seed and i alone.

    Any block, in any order, on any machine, gives a user the same samples bit for bit, and a larger federation of the
    same seed begins with the same users. Only unequal ``sizes`` take memory that grows with it. Raises `BadInput`
    for a setting out of range. Its ``truth`` (d,) is the population's mean, or parameter.

    Args:
        population: the law of users and samples.
        users: n.
        seed: of the truth (stream "truth") and the samples (stream "data").
        samples_per_user: samples of each user, or the fewest when ``samples_tail`` is given.
        samples_tail: Pareto index of the number of samples per user, P(m > t) ~ t^-index cut at ``samples_max``; None
            for equal sizes.
        samples_max: the most samples of a user; None for 100 ``samples_per_user``.
        first_user: index of user 0 in the endless sequence of users.

    >>> from userdp.data.synthetic.locations import Gaussian
    >>> federation = SyntheticFederation(Gaussian(dimension=3), users=1000, samples_per_user=10, seed=1)
    >>> federation.block(np.array([7, 3])).features.shape
    (20, 3)
    """

    def __init__(
        self,
        population: Population,
        users: int,
        seed: int = 0,
        *,
        samples_per_user: int = 10,
        samples_tail: float | None = None,
        samples_max: int | None = None,
        first_user: int = 0,
    ) -> None:
        require_number("users", users, 1, strict=False)
        require_number("seed", seed, 0, strict=False)
        require_number("samples_per_user", samples_per_user, 1, strict=False)
        self.population = population
        self._seed, self._first = seed, first_user
        self._size_settings: dict[str, Any] = {
            "samples_per_user": samples_per_user,
            "samples_tail": samples_tail,
            "samples_max": samples_max,
        }
        self.sizes = self._sizes(users, samples_per_user, samples_tail, samples_max)
        self.columns = population.columns
        self.sample_bytes = population.sample_bytes
        self.truth = population.truth(stream(seed, "truth"))
        if population.truth_is == "mean":
            self.population_mean = self.truth
        else:
            self.regression = population.regression(self.truth)

    def held_out(self, users: int) -> "SyntheticFederation":
        """Return ``users`` further users of the same population, with the indices after this federation's."""
        return SyntheticFederation(
            self.population, users, self._seed, first_user=self._first + self.users, **self._size_settings
        )

    def block(self, users: NDArray[np.int64]) -> Block:
        """See `Federation.block`; the samples are made anew."""
        users = checked_users(users, self.users)
        sizes = self.sizes[users]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        features, targets = self.population.samples(self.truth, sizes, self._noise(users, offsets))
        return Block(features, offsets, targets)

    def _sizes(self, users: int, fewest: int, tail: float | None, most: int | None) -> NDArray[np.int64]:
        if tail is None:
            return np.broadcast_to(np.int64(fewest), users)
        most = 100 * fewest if most is None else most
        require_number("samples_tail", tail, 0.0)
        if most < fewest:
            raise BadInput(f"samples_max must be at least samples_per_user = {fewest}, got {most}")
        # One draw per user from a stream that can jump, so that a size depends on the user's index alone.
        bits = np.random.PCG64(seed_sequence(self._seed, "data", 1))
        bits.advance(self._first)
        beyond = 1.0 - (fewest / (most + 1)) ** tail
        sizes: NDArray[np.float64] = fewest * (1 - beyond * np.random.Generator(bits).random(users)) ** (-1.0 / tail)
        return np.minimum(sizes, most).astype(np.int64)

    def _noise(self, users: NDArray[np.int64], offsets: NDArray[np.int64]) -> list[Noise]:
        """Draw the population's noise; user i's numbers start at counter (0, i, 0, 0) of one Philox generator."""
        sources = self.population.sources
        noise = [
            np.empty((len(users) if source.per == "user" else int(offsets[-1]), source.width), dtype=np.float32)
            for source in sources
        ]
        numbers = sum(array.size for array in noise)
        parts = np.array_split(np.arange(len(users)), max(1, min(threads(), numbers // NUMBERS_A_THREAD)))
        side_by_side(lambda part: self._fill(noise, users, offsets, part), parts)
        return noise

    def _fill(
        self, noise: list[Noise], users: NDArray[np.int64], offsets: NDArray[np.int64], part: NDArray[np.int64]
    ) -> None:
        sources = self.population.sources
        bits = np.random.Philox(seed_sequence(self._seed, "data", 0))
        draws = [_draw(np.random.Generator(bits), source) for source in sources]
        rows = np.arange(len(users) + 1)
        ends = [(rows if source.per == "user" else offsets).tolist() for source in sources]
        fills = list(zip(draws, noise, ends, strict=True))
        # Lists, and arguments by position: otherwise a user takes two microseconds more, as many as 150 numbers.
        counter, fresh = [0, 0, 0, 0], bits.state
        inner = {"counter": counter, "key": fresh["state"]["key"].tolist()}
        state: Any = {**fresh, "state": inner, "buffer": fresh["buffer"].tolist()}
        for position, user in zip(part.tolist(), (users[part] + self._first).tolist(), strict=True):
            counter[1] = user
            bits.state = state
            for draw, array, borders in fills:
                draw(array[borders[position] : borders[position + 1]])


def _draw(generator: np.random.Generator, source: Source) -> Any:
    """Return the generator's method that fills an array by the source's law, in float32."""
    method = generator.random if source.law == "uniform" else getattr(generator, f"standard_{source.law}")
    before, after = ([source.shape] if source.law == "gamma" else []), (["zig"] if source.law == "exponential" else [])
    return partial(method, *before, None, np.float32, *after)
