"""Noise from seeded streams for simulations, or from the operating system for releases of real people's data.

A mechanism computes the value and the amount of noise that hides a user; a source adds that noise.

>>> import numpy as np
>>> from userdp.noise import SecureNoise, SeededNoise
>>> bool(SeededNoise(np.random.default_rng(1)).gaussian(np.zeros(1), 1.0)[0] == 0.345584192064786)
True
>>> SecureNoise(slack=0.0).gaussian(np.zeros((2, 3)), 1.0).shape
(2, 3)
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.accounting.costs import Cost, together
from userdp.errors import BadInput, RunFailed
from userdp.extras import check_extra
from userdp.state import State, Stateful
from userdp.threads import side_by_side, threads

Values = NDArray[np.float64]

_GRID = 100  # Secure noise lies on multiples of 2^k, at most 2^-100 of its scale.

_NUMBERS_A_THREAD = 1 << 10
"""Exact numbers that occupy one thread: about 15 milliseconds."""

_LEAST_SLACK = 2.0**-20
_ROUNDED = 1e-9  # Relative rounding of bounds that are computed in two ways.
_MOST_SLACK = 0.1


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores that a choice or a test goes by, and how far one user moves them: nothing is chosen by numbers alone.

    Whoever makes scores states the bound, by a proof of its own and from public facts alone. What chooses by them is
    priced for a bound, too, and `within` compares the two.

    Attributes:
        values: (K,) the score of each candidate, or (R, K) for R choices at once; higher is better.
        moved: > 0, the most that one user moves any score, up to one constant on all scores of a choice, under the
            neighbouring relation of the promise.
    """

    values: Values
    moved: float

    def __post_init__(self) -> None:
        if not 0 < self.moved < math.inf:
            raise BadInput(f"scores that one user moves by {self.moved}: state a positive number, from public facts")

    def plus(self, constants: Values) -> "Scores":
        """Return the scores with a public constant (K,) added to each, which moves nobody's."""
        return Scores(self.values + constants, self.moved)


class NoiseSource(Stateful, ABC):
    """Adds noise to values, or chooses with noise; `BadInput` refuses values or scores with a NaN or an infinity.

    Attributes:
        slack: the relative excess of noise drawn over noise asked for; see `SecureNoise`.
        spent: the cost of all releases that mechanisms made with this noise, for the ledger.
    """

    slack: float = 0.0
    spent: Cost = Cost()

    def charge(self, cost: Cost) -> None:
        """Add the cost of a release; a mechanism calls it on drawing the noise."""
        object.__setattr__(self, "spent", together(self.spent, cost))  # a source is frozen except for its account

    @abstractmethod
    def gaussian(self, value: ArrayLike, deviation: float) -> Values:
        """Add independent normal noise of that standard deviation to each entry; same shape."""

    @abstractmethod
    def laplace(self, value: ArrayLike, scale: float) -> Values:
        """Add independent Laplace noise of that scale to each entry; same shape."""

    @abstractmethod
    def choose(self, scores: Scores, epsilon: float, *, flips: bool = False) -> NDArray[np.int64]:
        """Choose (R,) a column for each row of scores, (R, K) or one row, by the exponential mechanism.

        With s the score of a column over ``scores.moved``, its probability is proportional to ``exp(epsilon s / 2)``.
        With ``flips`` columns are looked at in a random order, and the first is chosen that a coin of chance
        ``exp(epsilon (s - best) / 2)`` accepts. `BadInput` refuses scores that state no bound.
        """


@dataclass(frozen=True)
class SeededNoise(NoiseSource):
    """SIMULATED noise: floating-point numbers of a seeded stream of `userdp.randomness`; the seed reveals them."""

    generator: np.random.Generator

    def gaussian(self, value: ArrayLike, deviation: float) -> Values:
        values = releasable(value)
        return np.asarray(values + self.generator.normal(scale=deviation, size=values.shape), dtype=np.float64)

    def laplace(self, value: ArrayLike, scale: float) -> Values:
        values = releasable(value)
        return np.asarray(values + self.generator.laplace(scale=scale, size=values.shape), dtype=np.float64)

    def choose(self, scores: Scores, epsilon: float, *, flips: bool = False) -> NDArray[np.int64]:
        """See `NoiseSource`; by Gumbel noise, or with ``flips`` by exponential noise."""
        values = in_units(scores)
        draw = self.generator.exponential if flips else self.generator.gumbel
        return np.asarray(np.argmax(epsilon * values / 2 + draw(size=values.shape), axis=1), dtype=np.int64)

    def state(self) -> State:
        """Return the position of the stream."""
        return {"generator": self.generator.bit_generator.state}

    def restore(self, state: State) -> None:
        self.generator.bit_generator.state = state["generator"]


@dataclass(frozen=True)
class SecureNoise(NoiseSource):
    """Noise from the operating system's randomness, exact on a grid, by OpenDP. It has no seed and cannot be repeated.

    *Formal guarantees.* Let ``f`` be the function that a mechanism's proof bounds by a sensitivity Delta, in real
    arithmetic, and ``g`` the function that the machine computes. Let g of two neighbours lie within ``Delta (1 + slack
    - 2^-21)`` of each other, as `rounding_slack` proves for sums. Then the release is as private as the mechanism with
    ideal real-valued noise of the same deviation (or scale, or epsilon), but for an addition to delta of less than ``(1
    + e^epsilon) 1e-61`` for each Gaussian coordinate released. *Proof.*

    1. *Grid.* OpenDP rounds each entry of g to a multiple of ``2^k``, at most ``2^-100`` of the noise's scale; two
       neighbours come at most ``sqrt(d) 2^-100`` scales closer to or further from each other (d for the l1 norm). That
       is below ``2^-21 Delta`` for every d and noise multiplier (or 1 / epsilon) whose product is below 2^79. The noise
       is drawn for Delta (1 + slack), so it covers this, and the difference of g and f.
    2. *Laplace.* Discrete Laplace noise on the grid has likelihood ratio exactly ``exp(distance / scale)``, like the
       continuous one.
    3. *Gaussian.* Continuous noise, rounded to the grid, is post-processing of the ideal mechanism. The discrete
       Gaussian on the grid differs from it by at most ``(2^k / sigma)^2 / 40 < 2^-205`` in total variation: cell by
       cell, the midpoint rule errs by ``2^3k / 24`` times the largest second derivative of the density, whose absolute
       value integrates to ``0.97 / sigma^2``; the normaliser differs from 1 by ``4 exp(-2 pi^2 4^100)``. Neither
       epsilon nor any other Gaussian accounting changes: an output law within total variation t of an (epsilon,
       delta)-DP one is (epsilon, delta + (1 + e^epsilon) t)-DP.
    4. *Output.* Sums of grid points are exact (integers of any length); rounding them to float64 is post-processing.
    5. *Choice.* OpenDP samples as many digits of Gumbel or exponential noise as it takes to know the largest: the
       exponential mechanism, or permute-and-flip, without rounding, at epsilon / (1 + slack).

    The noise of each coordinate is independent of all others, so parts of a vector may draw theirs side by side.
    Sampling is integer arithmetic on OpenSSL's generator, which the operating system seeds (Canonne, Kamath, Steinke
    2020; OpenDP 0.16). Its running time depends on the noise drawn; an observer with a precise clock is not covered.

    Attributes:
        slack: >= 0, the relative excess of noise drawn over noise asked for, see `rounding_slack`.
    """

    given: ClassVar[tuple[str, ...]] = ("slack",)
    slack: float = _LEAST_SLACK

    def __post_init__(self) -> None:
        if not 0 <= self.slack < math.inf:
            raise BadInput(f"slack = {self.slack}: must be zero or a positive number")

    def gaussian(self, value: ArrayLike, deviation: float) -> Values:
        dp = _opendp()
        return self._added(value, deviation, dp.m.make_gaussian, dp.l2_distance)

    def laplace(self, value: ArrayLike, scale: float) -> Values:
        dp = _opendp()
        return self._added(value, scale, dp.m.make_laplace, dp.l1_distance)

    def _added(self, value: ArrayLike, scale: float, make: Any, metric: Any) -> Values:
        dp, values, scale = _opendp(), releasable(value), self._enlarged(scale)

        def released(part: Values) -> Values:
            domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=part.size)
            measurement = make(domain, metric(T=float), scale=scale, k=granularity(scale))
            return np.array(measurement(part.tolist()), dtype=np.float64)

        count = max(1, min(threads(), values.size // _NUMBERS_A_THREAD))
        return np.concatenate(side_by_side(released, np.array_split(values.ravel(), count))).reshape(values.shape)

    def choose(self, scores: Scores, epsilon: float, *, flips: bool = False) -> NDArray[np.int64]:
        dp, values = _opendp(), in_units(scores)
        domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
        # OpenDP takes exponential noise for the first, and Gumbel noise for the second.
        measure = dp.max_divergence() if flips else dp.zero_concentrated_divergence()
        measurement = dp.m.make_noisy_max(domain, dp.linf_distance(T=float), measure, scale=self._enlarged(2 / epsilon))
        return np.array([measurement(row) for row in values.tolist()], dtype=np.int64)

    def _enlarged(self, scale: float) -> float:
        # The next number up covers rounding here.
        return math.nextafter(scale * (1 + self.slack), math.inf)


@cache
def _opendp() -> Any:
    """Import OpenDP on first use: the import is slow, and simulations do not need it."""
    check_extra("secure", 'privacy.noise = "secure"')
    # Its prelude imports scikit-learn, too, which takes longer than a query.
    from opendp import domains, measurements, measures, metrics, mod  # noqa: PLC0415

    mod.enable_features("contrib")
    return SimpleNamespace(**(vars(domains) | vars(measures) | vars(metrics)), m=measurements)


def discrete_gaussian(length: int, deviation: float) -> NDArray[np.int64]:
    """Draw (length,) whole numbers, each with probability proportional to ``exp(-x^2 / (2 deviation^2))``.

    The law is exact, from the operating system's randomness, by OpenDP (Canonne, Kamath, Steinke 2020); numbers beyond
    64 bits are clipped to the largest one. Raises `BadInput` for a deviation that is not positive and finite.
    """
    if not 0 < deviation < math.inf:
        raise BadInput(f"discrete noise of deviation {deviation} cannot be drawn: it must be a positive number")
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T="i64"), size=length)
    measurement = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=deviation)
    return np.array(measurement([0] * length), dtype=np.int64)


def granularity(scale: float) -> int:
    """Return k: secure noise of that scale lies on multiples of ``2^k <= 2^-100 scale``.

    Raises `BadInput` for a scale that is not positive and finite, or for which float64 has no such multiples.
    """
    if not 2.0**-974 <= scale < math.inf:
        raise BadInput(f"noise of scale {scale} cannot be drawn: measure values in other units")
    return math.frexp(scale)[1] - 1 - _GRID


def rounding_slack(terms: int, spread: float = 1.0, further: float = 0.0) -> float:
    """Bound the relative growth of a sensitivity by computing in float64, which `SecureNoise` covers.

    *Formal guarantees.* Each user contributes float64 vectors that depend on its own data alone, to the last bit
    (ensured by `Computation.separate`). They are clipped to norm C in float64, so their norm is at most ``C (1 + (d +
    8) u)``, with u = 2^-53 and d at most 2^30 entries: within ``2^-22 C``. Adding ``terms`` of them in ANY order, each
    first multiplied by a public number in [0, 1] or not, and dividing by a public number gives each entry an error of
    at most ``(terms + 5) u (1 + 2^-28)`` times the sum of absolute values (Higham 2002, Section 4.2). Between
    neighbours the result moves by at most ``2 (terms + 5) terms u C (1 + 2^-21)`` more than the exact sum (the last
    factor has the clip's excess in it). Relative to a sensitivity of ``C / spread`` or more that is below ``spread
    (terms + 8)^2 2^-52`` as long as it is below a tenth; another 2^-20 covers the clip and `SecureNoise` itself.
    Estimators that are no such sum add a bound of their own; for robust means:
    `userdp.estimators.robust.Estimator.rounding`.

    Args:
        terms: the most vectors added up.
        spread: largest norm of a term over the sensitivity of the sum (before the division), at most.
        further: the further relative growth of the sensitivity of a result computed from the terms.

    Raises `BadInput` if rounding would cost more than a tenth of the noise.
    """
    slack = _LEAST_SLACK + spread * (terms + 8.0) ** 2 * 2.0**-52 + further
    if slack > _MOST_SLACK:
        raise BadInput(
            f"privacy.noise = 'secure': rounding of a float64 sum of {terms} vectors would cost {slack:.0%} more "
            "noise; use fewer users per round"
        )
    return slack


def releasable(value: ArrayLike) -> Values:
    """Return the value as float64; `BadInput` refuses a NaN or an infinity."""
    values = np.asarray(value, dtype=np.float64)
    if not np.isfinite(values).all():
        raise BadInput("a value to release is not finite: sanitise it before the mechanism")
    return values


def within(scores: Scores, charged: float) -> Scores:
    """Return the scores as such of sensitivity ``charged``.

    Raises `RunFailed` if one user may move them further, and `BadInput` for scores that state no bound.
    """
    if not _stated(scores).moved <= charged * (1 + _ROUNDED):
        raise RunFailed(
            f"one user moves scores by up to {scores.moved:.6g} where {charged:.6g} is charged: stopped before they "
            "are used; price the choice for the bound and the relation of its scores"
        )
    return Scores(scores.values, charged)


def in_units(scores: Scores) -> Values:
    """Return (R, K) scores in units of their bound; `BadInput` refuses a NaN, an infinity, or no stated bound."""
    with np.errstate(over="ignore"):  # an overflow is refused
        return releasable(np.atleast_2d(_stated(scores).values) / scores.moved)


def _stated(scores: Scores) -> Scores:
    if not isinstance(scores, Scores):
        raise BadInput("scores that do not say how far one user moves them cannot be chosen by: give Scores")
    return scores
