"""Private iterative hard thresholding: sparse least squares, and sparse minimisers of any loss, under heavy tails.

Hu, Ni, Xiao, Wang 2022 (Algorithms 3 and 5). Records fall into disjoint folds, by their order. Each round takes one
gradient step on a fresh fold and peels the result, so the whole costs what one peeling costs.
"""

import math

import numpy as np

from strategies.baselines.peeling import Peeling
from strategies.baselines.smoothed_truncation import LARGEST
from userdp.arrays import Vector


def log_rounds(records: int) -> int:
    """floor(ln n), at least 1: the rounds that the paper takes."""
    return max(1, math.floor(math.log(records)))


def truncation_level(records: float, epsilon: float, sparsity: int, rounds: int, fourth_moment: float = 1.0) -> float:
    """K = ``(M n epsilon / (s T))^(1/4)``, at which features and targets are cut.

    M bounds ``E (a_j a_k)^2`` and ``E y^4``, in their units; the paper takes 1.
    """
    return float((fourth_moment * records * epsilon / (sparsity * rounds)) ** 0.25)


def truncated_gradient_bound(level: float, sparsity: int) -> float:
    """``K^2 (sqrt(s) + 1)``, bound on ``||a (<a, w> - y)||_inf`` for a and y cut at K, w s-sparse, ``||w||_2 <= 1``.

    As ``|<a, w>| <= K ||w||_1 <= K sqrt(s) ||w||_2``; attained at ``w = 1_S / sqrt(s)``, ``a = K``, ``y = -K``.
    """
    return level**2 * (math.sqrt(sparsity) + 1)


def truncation_scale(
    records: float,  # m, of one fold
    dimension: int,  # d
    rounds: int,  # T
    unit: Peeling,  # the peeling at sensitivity 1
    second_moment: float,  # tau, bound on the second moment of every gradient coordinate
    inverse_variance: float,  # beta, of the smoothing noise
    failure: float,  # zeta, chance that the bound behind it fails
) -> float:
    """Return the scale at which bias balances deviation and noise: ``k = sqrt(A / (B + C))``.

    ``A = tau (1 + 1/beta) / 2``; ``B = ln(2 d T / zeta) / m``; ``C = (4 sqrt(2) / (3 m)) b ln(s d T / zeta)``, b being
    the noise of peeling at sensitivity 1. Of the order ``sqrt(tau n epsilon / (T sqrt(s ln(1/delta))))``.
    """
    bias = second_moment * (1 + 1 / inverse_variance) / 2
    deviation = math.log(2 * dimension * rounds / failure) / records
    noise = 2 * LARGEST / records * unit.scale * math.log(unit.sparsity * dimension * rounds / failure)
    return math.sqrt(bias / (deviation + noise))


def unit_ball(model: Vector) -> Vector:
    """The model, scaled into the unit l2 ball."""
    return np.asarray(model / max(1.0, float(np.linalg.norm(model))))
