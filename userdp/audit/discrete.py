"""Exact epsilons of mechanisms with finitely many outputs: no runs, for every output's probability is known."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from userdp.errors import BadInput
from userdp.mechanisms.concentration_tests import ConcentrationTest, MinimumScore
from userdp.mechanisms.exponential import ExponentialMechanism

Floats = NDArray[np.float64]

_ROUNDING = 1e-9


def exact_epsilon(first: ArrayLike, second: ArrayLike, delta: float = 0.0) -> float:
    """The least epsilon for which two laws on the same K outputs are (epsilon, delta)-indistinguishable, both ways.

    *Formal guarantees.* It is the least epsilon >= 0 for which every event E has ``P(E) <= e^epsilon Q(E) + delta``,
    and the same with P and Q exchanged. *Proof.* Of all events with a given ``e^epsilon`` the one that violates this
    most holds the outputs with ``p_k > e^epsilon q_k``: the first j in falling order of ``p_k / q_k``, for some j. So
    these K events are enough, and each asks for ``e^epsilon >= (P(E) - delta) / Q(E)``.

    Args:
        first: (K,) probabilities of the outputs under one data set.
        second: (K,) likewise under its neighbour.
        delta: in [0, 1).

    Returns:
        Infinity where outputs that only one data set has are likelier than delta together.

    Raises:
        BadInput: what is no pair of laws on as many outputs, or a delta out of range.
    """
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    laws = all((one >= 0).all() and abs(one.sum() - 1) < _ROUNDING for one in (p, q))
    if p.ndim != 1 or p.shape != q.shape or not laws:
        raise BadInput("first and second must be probabilities of the same outputs, each adding up to 1")
    if not 0 <= delta < 1:
        raise BadInput(f"delta = {delta}: must lie in [0, 1)")
    return max(_one_way(p, q, delta), _one_way(q, p, delta))


def _one_way(p: Floats, q: Floats, delta: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, 0.0), kind="stable")
        excess, other = np.cumsum(p[order]) - delta, np.cumsum(q[order])
        asked = np.where(excess > 0, np.log(np.maximum(excess, 0.0)) - np.log(other), 0.0)
    return max(0.0, float(asked.max()))


def choice_probabilities(mechanism: ExponentialMechanism, scores: ArrayLike) -> Floats:
    """(K,) the probability of each choice of the exponential mechanism from (K,) scores."""
    values = np.asarray(scores, dtype=np.float64)
    return np.asarray(softmax(mechanism.epsilon * values / (2 * mechanism.sensitivity)))


def halting_probabilities(test: ConcentrationTest, scores: ArrayLike) -> Floats:
    """The law of what a concentration test says about (T,) scores that are fixed in advance.

    Of `AboveThreshold` (T + 1,): that it halts at the first step, the second, ..., and that it passes. Of
    `MinimumScore`, which cannot halt early, (2,): that it fails and that it passes.
    """
    values = np.asarray(scores, dtype=np.float64)
    if isinstance(test, MinimumScore):
        passed = test.pass_probability(values.min())
        return np.array([1 - passed, passed])
    survived = np.array([1.0, *(test.pass_probability(values[:steps]) for steps in range(1, len(values) + 1))])
    return np.append(np.maximum(0.0, survived[:-1] - survived[1:]), survived[-1])
