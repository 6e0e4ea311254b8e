"""Exact epsilons of mechanisms with finitely many outputs of known probabilities, without runs."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from userdp.accounting.checks import check_delta
from userdp.errors import BadInput
from userdp.mechanisms.concentration_tests import ConcentrationTest, MinimumScore
from userdp.mechanisms.exponential import ExponentialMechanism

Floats = NDArray[np.float64]

_ROUNDING = 1e-9


def exact_epsilon(first: ArrayLike, second: ArrayLike, delta: float = 0.0) -> float:
    """Compute the least epsilon for which two laws on K outputs are (epsilon, delta)-indistinguishable, both ways.

    *Formal guarantees.* It is the least epsilon >= 0 for which every event E has ``P(E) <= e^epsilon Q(E) + delta``,
    and the same with P and Q exchanged; infinity if outputs that only one data set has have probability above delta
    together. *Proof.* Of all events with a given ``e^epsilon`` the one that violates this most holds the outputs with
    ``p_k > e^epsilon q_k``: the first j in falling order of ``p_k / q_k``, for some j. So these K events are enough,
    and each asks for ``e^epsilon >= (P(E) - delta) / Q(E)``.

    ``first`` and ``second`` are (K,) probabilities under a data set and its neighbour, delta is in [0, 1). Raises
    `BadInput` for other arrays or deltas.
    """
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    laws = all((one >= 0).all() and abs(one.sum() - 1) < _ROUNDING for one in (p, q))
    if p.ndim != 1 or p.shape != q.shape or not laws:
        raise BadInput("first and second must be probabilities of the same outputs, each adding up to 1")
    check_delta(delta, or_zero=True)
    return max(_one_way(p, q, delta), _one_way(q, p, delta))


def _one_way(p: Floats, q: Floats, delta: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, 0.0), kind="stable")
        excess, other = np.cumsum(p[order]) - delta, np.cumsum(q[order])
        asked = np.where(excess > 0, np.log(np.maximum(excess, 0.0)) - np.log(other), 0.0)
    return max(0.0, float(asked.max()))


def choice_probabilities(mechanism: ExponentialMechanism, scores: ArrayLike) -> Floats:
    """Compute (K,) the probability of each choice of the exponential mechanism from (K,) scores."""
    values = np.asarray(scores, dtype=np.float64)
    return np.asarray(softmax(mechanism.epsilon * values / (2 * mechanism.sensitivity)))


def halting_probabilities(test: ConcentrationTest, scores: ArrayLike) -> Floats:
    """Compute the law of a concentration test's answer on (T,) scores that are fixed in advance.

    For `AboveThreshold` (T + 1,): it halts at the first step, the second, ..., or passes. For `MinimumScore`, which
    cannot halt early, (2,): it fails or passes.
    """
    values = np.asarray(scores, dtype=np.float64)
    if isinstance(test, MinimumScore):
        passed = test.pass_probability(values.min())
        return np.array([1 - passed, passed])
    survived = np.array([1.0, *(test.pass_probability(values[:steps]) for steps in range(1, len(values) + 1))])
    return np.append(np.maximum(0.0, survived[:-1] - survived[1:]), survived[-1])
