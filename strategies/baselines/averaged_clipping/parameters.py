"""The theory of averaged clipping: rounds, clip, batch, step size, noise, and the risk that it proves.

Jin, Zhou, Han, Cheng, Zeng, "Efficient Private SCO for Heavy-Tailed Data via Averaged Clipping": Theorems 3, 4 and 7
with the constants of their proofs. The noise in these formulas (`paper_noise` with constant 1) is NOT a valid
calibration: it is there to reproduce rates. Private runs take theirs from an accountant; `practical_step` then says how
far to step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from userdp.accounting import check_positive
from userdp.arrays import Vector
from userdp.errors import BadInput

ClipRule = Literal["paper", "tight"]
REACH = 7.0
"""C of Theorem 7: iterates stay within this many radii."""


@dataclass(frozen=True)
class TheoryConstants:
    """The public constants of a problem and a budget in the theorems; `BadInput` for one out of range."""

    samples: int  # n
    dimension: int  # d
    epsilon: float  # of the budget
    delta: float  # of the budget
    # R, a bound on the distance from the start to a minimiser (for a constrained problem, the diameter of the set, or
    # that distance where iterates cannot move away)
    radius: float = 1.0
    smoothness: float = 1.0  # L; for a non-smooth problem M, the Hoelder constant of the gradient
    deviation: float = 1.0  # sigma, ``E ||grad f(x; z) - grad f(x)||^2 <= sigma^2``
    failure: float = 0.1  # beta, the chance that a bound fails
    constant: float = 1.0  # c of `paper_noise`

    def __post_init__(self) -> None:
        names = ("samples", "dimension", "epsilon", "radius", "smoothness", "deviation", "constant")
        check_positive(**{name: getattr(self, name) for name in names})
        for name in ("delta", "failure"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise BadInput(f"{name} = {value}: must lie strictly between 0 and 1")

    @property
    def noise_root(self) -> float:
        """``sqrt(d ln(1/delta))``."""
        return math.sqrt(self.dimension * math.log(1 / self.delta))


@dataclass(frozen=True)
class Parameters:
    """The parameters of one run."""

    rounds: int  # N
    clip: float  # lambda
    batch: int  # m, samples per round; the public divisor
    step: float  # gamma
    noise_deviation: float  # of each coordinate of the noise
    excess: float  # D, the room that noise takes in the clip; zero for the constrained case
    risk_bound: float  # proven bound on the excess risk of the average iterate, if noise and batch are as given


def paper_noise(constants: TheoryConstants, clip: float, batch: int, rounds: int) -> float:
    """Equation (9): ``c clip batch sqrt(rounds ln(1/delta)) / (n epsilon)``. Rate reproduction, NOT certified."""
    return (
        constants.constant
        * clip
        * batch
        * math.sqrt(rounds * math.log(1 / constants.delta))
        / (constants.samples * constants.epsilon)
    )


def constrained(constants: TheoryConstants, rounds: int | None = None) -> Parameters:
    """Theorem 3. The set may be any closed convex one that holds a minimiser, of diameter at most ``radius``.

    The bound (A.2) is ``28 L R^2 ln(4/beta) / N + 2 R s sqrt(16 d ln(4N/beta))`` for noise of ANY deviation s.
    """
    radius, smooth, log = constants.radius, constants.smoothness, math.log(4 / constants.failure)
    rounds = rounds or constrained_rounds(constants)
    clip = 2 * smooth * radius
    batch = _batch(162 * rounds**2, constants.deviation, clip, log)
    noise = paper_noise(constants, clip, batch, rounds)
    tail = math.sqrt(16 * constants.dimension * math.log(4 * rounds / constants.failure))
    bound = 28 * smooth * radius**2 * log / rounds + 2 * radius * noise * tail
    return Parameters(rounds, clip, batch, 1 / (2 * smooth * log), noise, 0.0, bound)


def unconstrained(constants: TheoryConstants, rounds: int | None = None, clip_rule: ClipRule = "paper") -> Parameters:
    """Theorem 4, on the whole space (or any closed convex set with a minimiser: projection only shortens distances).

    N is balanced by a fixed point if not given. The clip is ``4 L R + 2 sqrt(D)`` ("paper"), or the exact root ``2 (L R
    + sqrt(L^2 R^2 + D))`` ("tight").
    """
    rounds = rounds or unconstrained_rounds(constants)
    step, excess = unconstrained_excess(constants, rounds)
    reach = constants.smoothness * constants.radius
    clip = 4 * reach + 2 * math.sqrt(excess) if clip_rule == "paper" else 2 * (reach + math.sqrt(reach**2 + excess))
    log = math.log(4 * rounds / constants.failure)
    batch = _batch(162 * rounds**2, constants.deviation, clip, log)
    noise = paper_noise(constants, clip, batch, rounds)
    return Parameters(rounds, clip, batch, step, noise, excess, 12 * clip**2 * log / (constants.smoothness * rounds))


def unconstrained_excess(constants: TheoryConstants, rounds: int) -> tuple[float, float]:
    """(gamma, D) of Theorem 4."""
    log = math.log(4 * rounds / constants.failure)
    step = 1 / (24 * constants.smoothness * log)
    root = constants.noise_root * math.sqrt(rounds * math.log(4 * rounds**2 / constants.failure))
    top = 648 * step * constants.smoothness * rounds**3 * constants.deviation**2 * root
    return step, top / (constants.samples * constants.epsilon * log**2)


def unconstrained_clip(constants: TheoryConstants, rounds: int, noise_ratio: float) -> float | None:
    """The least clip for which Theorem 4 holds when noise is ``noise_ratio`` times the clip; None if none does.

    ``L R / (1/4 - L gamma N s sqrt(16 d ln(4N^2/beta)))``, from ``L (R + 6 gamma clip ln(4N/beta) + gamma N s clip
    sqrt(...)) <= clip / 2``.
    """
    step = 1 / (24 * constants.smoothness * math.log(4 * rounds / constants.failure))
    tail = math.sqrt(16 * constants.dimension * math.log(4 * rounds**2 / constants.failure))
    room = 0.25 - constants.smoothness * step * rounds * noise_ratio * tail
    return constants.smoothness * constants.radius / room if room > 0 else None


def non_smooth(
    constants: TheoryConstants, exponent: float, rounds: int | None = None, alpha: float | None = None
) -> Parameters:
    """Theorem 7 for gradients with ``||grad f(x) - grad f(y)|| <= M ||x - y||^exponent``; fails with N beta.

    ``exponent`` is nu in [0, 1]: 0 for bounded subgradients, 1 for a smooth loss; ``constants.smoothness`` is M. N is
    the paper's ``(R^2 n epsilon / sqrt(d ln(1/delta)))^{2/7}`` if not given. ``alpha`` is the accuracy aimed at; if not
    given, it makes the first two terms of the bound equal. Raises `BadInput` for an exponent or an alpha out of range.
    """
    if not 0 <= exponent <= 1:
        raise BadInput(f"exponent = {exponent}: must lie in [0, 1]")
    rounds = rounds or plain_rounds(constants)
    if alpha is None:
        alpha = balanced_alpha(constants, exponent, rounds)
    check_positive(alpha=alpha)
    radius, hoelder, beta = constants.radius, constants.smoothness, constants.failure
    log, power = math.log(8 / beta), hoelder ** (1 / (1 + exponent))
    clip = 2 * hoelder * (REACH * radius) ** exponent
    batch = _batch(27 * rounds, constants.deviation, clip, math.sqrt(log))
    top = 108 * rounds**1.5 * constants.deviation**2 * constants.noise_root * math.sqrt(math.log(8 * rounds / beta))
    excess = top / (constants.samples * constants.epsilon * log)
    step = min(
        hoelder_step(constants, exponent, rounds, alpha),
        radius / (math.sqrt(2 * rounds) * alpha ** (exponent / (1 + exponent)) * power),
        radius / (2 * clip * log),
        clip * radius / (2 * excess * rounds),
    )
    noise = paper_noise(constants, clip, batch, rounds)
    return Parameters(rounds, clip, batch, step, noise, excess, (REACH * radius) ** 2 / (step * rounds))


def balanced_alpha(constants: TheoryConstants, exponent: float, rounds: int) -> float:
    """``M (8 R / sqrt(2N))^{1+nu}``: equal first and second terms of the bound in A.5, Theorem 7's first and third."""
    return float(constants.smoothness * (8 * constants.radius / math.sqrt(2 * rounds)) ** (1 + exponent))


def hoelder_step(constants: TheoryConstants, exponent: float, rounds: int, alpha: float | None = None) -> float:
    """``alpha^{(1-nu)/(1+nu)} / (8 M^{2/(1+nu)})``: the longest step of Theorem 7 whatever the noise."""
    alpha = balanced_alpha(constants, exponent, rounds) if alpha is None else alpha
    return float(alpha ** ((1 - exponent) / (1 + exponent)) / (8 * constants.smoothness ** (2 / (1 + exponent))))


def plain_rounds(constants: TheoryConstants, power: float = 2 / 7) -> int:
    """``(R^2 n epsilon / sqrt(d ln(1/delta)))^power``; for Theorem 7, ``2 / (4 + nu)`` balances better than 2/7."""
    signal = constants.radius**2 * constants.samples * constants.epsilon
    return max(1, math.ceil(math.pow(signal / constants.noise_root, power)))


def constrained_rounds(constants: TheoryConstants) -> int:
    """N that makes the two terms of the bound in A.2 equal, by its fixed point."""
    reach = constants.smoothness * constants.radius
    top = 7 * reach**2 * constants.samples * constants.epsilon * math.log(4 / constants.failure) ** 3
    bottom = 162 * constants.deviation**2 * constants.noise_root
    return _fixed_point(lambda n: top / (bottom * math.sqrt(math.log(4 * n / constants.failure))))


def unconstrained_rounds(constants: TheoryConstants) -> int:
    """N at which noise takes as much of the clip as the distance does, ``D = 4 L^2 R^2``, by its fixed point."""
    reach = constants.smoothness * constants.radius
    top = 4 * reach**2 * constants.samples * constants.epsilon
    bottom = 27 * constants.deviation**2 * constants.noise_root

    def ratio(n: float) -> float:
        logs = math.log(4 * n / constants.failure) ** 3 / math.sqrt(math.log(4 * n**2 / constants.failure))
        return top * logs / bottom

    return _fixed_point(ratio)


def practical_step(
    constants: TheoryConstants, clip: float, rounds: int, noise_deviation: float, longest: float | None = None
) -> float:
    """``R / sqrt(N (clip^2 + d s^2))``: balances the textbook bound of projected SGD for any noise s.

    At most ``longest``, which is ``1 / (2L)`` if not given.
    """
    power = clip**2 + constants.dimension * noise_deviation**2
    most = 1 / (2 * constants.smoothness) if longest is None else longest
    return min(most, constants.radius / math.sqrt(rounds * power))


def _batch(factor: float, deviation: float, clip: float, log: float) -> int:
    return max(1, math.ceil(factor * deviation**2 / (clip * log) ** 2))


def _fixed_point(ratio: Callable[[float], float]) -> int:
    """N = ratio(N)^{2/7}, at least 1; the right side moves by logarithms only, so a few rounds settle it."""
    n = 1.0
    for _ in range(100):
        n = max(1.0, ratio(n) ** (2 / 7))
    return max(1, math.ceil(n))


def average_clip(mean: Vector, clip: float) -> Vector:
    """The mean of a batch, scaled down to l2 norm at most ``clip``: its projection on the ball.

    *Formal guarantees.* Whatever two batches are, their clipped means lie in one ball, so they are at most ``2 clip``
    apart, and two opposite means attain it: the sensitivity is ``2 clip``, not ``clip / batch`` and not ``clip``, for
    adding, removing or replacing one sample, all samples of a user, or anything else. It does not matter how the mean
    was made. A mean that is not finite becomes zero, which lies in the ball too.

    ``mean`` (d,) is a sum over the batch by a PUBLIC divisor; an infinite ``clip`` leaves finite means as they are.
    Raises `BadInput` unless ``clip`` is positive.
    """
    if not clip > 0:
        raise BadInput(f"clip = {clip}: must be a positive number")
    if not np.isfinite(mean).all():
        return np.zeros_like(mean, dtype=np.float64)
    largest = float(np.abs(mean).max(initial=0.0))
    if largest == 0 or largest * math.sqrt(mean.size) <= clip:
        return np.array(mean, dtype=np.float64)
    unit = mean / largest  # a norm taken after this cannot overflow and escape the clip
    norm = float(np.linalg.norm(unit))
    if largest <= clip / norm:
        return np.array(mean, dtype=np.float64)
    return np.asarray(unit * (clip / norm))


def clipped_average(divisor: float, clip: float) -> Callable[[Vector], Vector]:
    """Return a function from the sum over a batch to its clipped mean."""
    return lambda total: average_clip(total / divisor, clip)
