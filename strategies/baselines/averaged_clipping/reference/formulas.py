"""Closed forms of the paper that no strategy needs."""

from strategies.baselines.averaged_clipping.parameters import TheoryConstants, paper_noise, unconstrained_excess
from userdp.accounting import poisson_epsilon
from userdp.errors import BadInput


def closed_form_noise(constants: TheoryConstants, clip: float, batch: int, rounds: int) -> float:
    """Equation (9) with ``constants.constant``, if the accountant agrees that it is private.

    2 sqrt(2) is the constant that small epsilon and much noise would take at sensitivity ``2 clip``. Raises `BadInput`:
    it is not (epsilon, delta)-DP for adding or removing one sample.
    """
    deviation, rate = paper_noise(constants, clip, batch, rounds), sample_rate(batch, constants.samples)
    spent = poisson_epsilon(deviation / (2 * clip), rate, rounds, constants.delta)
    if spent > constants.epsilon:
        raise BadInput(
            f"constant = {constants.constant:.3g}: noise by the closed form costs epsilon = {spent:.4g}, more than "
            f"{constants.epsilon:g}; raise the constant or calibrate by the accountant"
        )
    return deviation


def sample_rate(batch: int, samples: int) -> float:
    """M / n, at most 1."""
    return min(1.0, batch / samples)


def noise_floor(constants: TheoryConstants, rounds: int) -> float:
    """Return what the proof adds to the gap for the noise of a run, ``2 D / (gamma L^2 N0)``; huge unless n is."""
    step, excess = unconstrained_excess(constants, rounds)
    return 2 * excess / (step * constants.smoothness**2 * rounds)
