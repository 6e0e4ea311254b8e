"""The exponential mechanism over given scores."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from userdp.accounting.checks import check_positive
from userdp.accounting.costs import Cost
from userdp.errors import BadInput
from userdp.noise import NoiseSource, Scores, within

_ROUNDING = 1e-9  # Relative margin that keeps the cost of a calibrated choice below what it was calibrated for


@dataclass(frozen=True)
class ExponentialMechanism:
    """Chooses k with probability proportional to ``exp(epsilon score_k / (2 sensitivity))``.

    *Formal guarantees.* Let a vector of scores, and the scores of its neighbour plus any constant, differ by at most
    ``sensitivity`` in every entry; it may depend on the pair, for one constant on all scores changes no probability.
    Then the choice is (epsilon, 0)-DP for that unit and relation (McSherry, Talwar 2007). The log-likelihood ratio lies
    in an interval of length epsilon that the pair fixes, hence ``epsilon^2 / 8``-zCDP, a quarter of what pure privacy
    alone gives (Cesar, Rogers 2021). Assumption: real-valued Gumbel noise, which `userdp.noise.SecureNoise` is proven
    to match; `SeededNoise` simulates it.

    *Permute-and-flip* (``flips``) looks at the k in random order and accepts each with probability ``exp(epsilon
    (score_k - best) / (2 sensitivity))``. It is (epsilon, 0)-DP as well, and its expected shortfall is never larger,
    and up to half as large (McKenna, Sheldon 2020); the log-likelihood ratio lies in no interval of length epsilon.
    Adding exponential noise and taking the largest has the same law (Ding, Kifer, Steinke, Wang, Xiao, Zhang 2021).

    *As a Gaussian mechanism.* *Claim.* With ``mu = 2 Phi^{-1}(1 / (1 + e^(-epsilon / 2)))`` the choice is no worse than
    a Gaussian mechanism of multiplier 1 / mu, also within adaptive compositions. *Why.* For a pair of neighbours let L
    be the log-likelihood ratio, between t - epsilon and t. Under the second law e^L has mean 1, and every hockey-stick
    divergence is the mean of a convex function of e^L, so it is largest if L has these two values alone: two coins, of
    heads p and q with ``logit p - logit q = epsilon``. A test between two unit normals at distance m attains every
    level q with power p if ``Phi^{-1}(p) - Phi^{-1}(q) <= m``, and a fair mixture of tests attains less, so the coins
    are post-processing of the normals. As a function of q the left side is largest at ``p = 1 - q``: the slope of
    ``Phi^{-1}(1 / (1 + e^-s))`` falls as s leaves zero to either side. That largest value is mu. Dominating pairs
    compose adaptively (Zhu, Dong, Wang 2022).

    Utility: with probability ``1 - e^-t`` the score chosen is within ``(2 sensitivity / epsilon) (ln K + t)`` of the
    best of K.
    """

    sensitivity: float  # > 0, in units of the scores
    epsilon: float  # > 0
    as_gaussian: bool = False  # whether choices are charged as a Gaussian mechanism, to compose with others
    flips: bool = False  # whether to choose by permute-and-flip

    def __post_init__(self) -> None:
        check_positive(sensitivity=self.sensitivity, epsilon=self.epsilon)
        if self.as_gaussian and self.flips:
            raise BadInput(
                "a choice by permute-and-flip has no price as a Gaussian mechanism: leave out one of the two"
            )

    @classmethod
    def like_gaussian(cls, sensitivity: float, noise_multiplier: float) -> Self:
        """Return the mechanism that costs as much as a Gaussian mechanism of that noise over sensitivity."""
        check_positive(noise_multiplier=noise_multiplier)
        half = 0.5 / noise_multiplier
        epsilon = 2.0 * float(log_ndtr(half) - log_ndtr(-half))
        return cls(sensitivity, epsilon * (1 - _ROUNDING), as_gaussian=True)

    @property
    def cost(self) -> Cost:
        """The cost of one choice."""
        if not self.as_gaussian:
            return Cost(pure_epsilon=self.epsilon)
        return Cost(noise_multiplier=-0.5 / float(ndtri_exp(-np.logaddexp(0.0, self.epsilon / 2))))

    @property
    def rho(self) -> float:
        """The cost of one choice in zero-concentrated differential privacy."""
        return self.epsilon**2 / 8

    def shortfall(self, choices: int, failure: float) -> float:
        """Return how far below the best of ``choices`` scores the choice is, but with probability ``failure``."""
        return float(2 * self.sensitivity / self.epsilon * np.log(choices / failure))

    def choose(self, scores: Scores, noise: NoiseSource) -> int:
        """Return the index chosen of K scores.

        Raises `RunFailed` for scores that one user may move by more than ``sensitivity``, and `BadInput` for scores
        that are not finite, or overflow.
        """
        bounded = within(scores, self.sensitivity)
        noise.charge(self.cost)
        return int(noise.choose(bounded, self.epsilon, flips=self.flips)[0])
