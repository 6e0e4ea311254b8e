"""A lower bound on epsilon from ONE run, which includes each of many canaries or not by a fair coin.

Source: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run" (2023), Theorem 5.2 and Appendix D.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from userdp.audit.scores import checked_confidence
from userdp.errors import BadInput

_SHARES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)  # Shares of coins to guess, to choose from.
_MOST = 30.0  # The largest epsilon tried; no number of canaries that fits in memory supports more.


def guessed(scores: ArrayLike, guesses: int) -> NDArray[np.int64]:
    """Guess coins: (m,) 1 for the ``guesses / 2`` largest scores, -1 for as many smallest, 0 (none) between.

    Scores are one number for each canary, larger if it is likelier to be included. ``guesses`` is fixed before they are
    seen; an odd number is rounded down. Raises `BadInput` for more guesses than scores, none, or a NaN.
    """
    values = np.asarray(scores, dtype=np.float64)
    half = guesses // 2
    if values.ndim != 1 or np.isnan(values).any() or not 1 <= half <= len(values) // 2:
        raise BadInput(f"guesses = {guesses}: must lie between 2 and the number of canaries, whose scores are numbers")
    order, found = np.argsort(values, kind="stable"), np.zeros(len(values), dtype=np.int64)
    found[order[:half]], found[order[len(values) - half :]] = -1, 1
    return found


def best_guesses(scores: ArrayLike, coins: ArrayLike, delta: float) -> float:
    """Choose the share of coins to guess that bounds epsilon best, on runs whose ``coins`` (-1 or 1) are known."""
    values, thrown = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(coins).ravel()
    found = []
    for share in _SHARES:
        guesses = max(2, int(share * len(values)))
        correct = int(np.count_nonzero(guessed(values, guesses) == thrown))
        found.append(one_run_lower_bound(len(values), guesses, correct, delta))
    return _SHARES[int(np.argmax(found))]


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the probability that an (epsilon, delta)-DP run has ``correct`` or more right guesses out of ``guesses``.

    Several independent runs are one run with all their coins: changing a coin changes the output of its own run alone.
    ``canaries`` counts all of them, guessed or not. Raises `BadInput` for a number out of range.

    *Formal guarantees.* Let m coins be fair and independent, let the output be (epsilon, delta)-DP in each of them
    (changing one coin is one step of the neighbouring relation), and let at most r coins be guessed from the output
    alone. Then the number W of right guesses satisfies, with B binomial(r, q) and ``q = e^epsilon / (1 + e^epsilon)``,

        ``P[W >= v] <= P[B >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= B < v] / i``.

    *Proof.* For delta = 0 reveal coins one after another. Given the output and the coins before, the two values of a
    coin have a likelihood ratio within ``e^-epsilon`` and ``e^epsilon``, so a guess is right with probability at most
    q, for any earlier coins and any output: W is dominated by a B that is independent of the output. For delta > 0 the
    ratio can be larger for some outputs; let F(output) >= 0 add up the excesses. Each coin's pair of laws is within
    delta, on each side, of a pair with such ratios, so the mean of F is at most ``2 m delta``, and W is dominated by B
    + F, still with B independent of the output and so of F (the paper's Theorem 5.2). With ``f(v) = P[B >= v]``, ``P[B
    + F >= v] = E f(v - F) <= f(v) + E[F] max_i (f(v - i) - f(v)) / i``.
    """
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise BadInput(
            f"correct = {correct}, guesses = {guesses}, canaries = {canaries}: each must be at most the next, and "
            "there must be a guess"
        )
    if not epsilon >= 0 or not 0 <= delta < 1:
        raise BadInput(f"epsilon = {epsilon}, delta = {delta}: must be at least 0, and in [0, 1)")
    q = float(expit(epsilon))
    chance = float(scipy.stats.binom.sf(correct - 1, guesses, q))
    if correct == 0 or delta == 0:
        return min(1.0, chance)
    missing = np.arange(1, correct + 1)
    gained = np.cumsum(scipy.stats.binom.pmf(correct - missing, guesses, q))
    return min(1.0, chance + 2 * canaries * delta * float((gained / missing).max()))


def one_run_lower_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """Compute a lower confidence bound, at least 0, on the epsilon of a run with ``correct`` right guesses.

    *Formal guarantees.* If the run is (epsilon, delta)-DP in each coin, the result exceeds epsilon with probability at
    most ``1 - confidence``. *Proof.* The p-value of `one_run_p_value` rises with epsilon (B grows, stochastically); the
    result is the point at which it reaches ``1 - confidence``, and a test of that level rejects every smaller epsilon.
    """
    checked_confidence(confidence)
    level = 1 - confidence

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) - level

    if excess(0.0) >= 0:
        return 0.0
    if excess(_MOST) < 0:
        return _MOST
    # With delta > 0 the p-value need not rise at every step: the lowest root is the valid bound.
    grid = np.linspace(0.0, _MOST, 301)
    first = next(index for index, epsilon in enumerate(grid) if excess(float(epsilon)) >= 0)
    return float(scipy.optimize.brentq(excess, grid[first - 1], grid[first], xtol=1e-9)) - 1e-9
