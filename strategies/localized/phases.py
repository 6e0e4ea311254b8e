"""Phases whose iterates stay private: what their guarantee takes, and how far float64 may carry them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies.core.about import Fact
from strategies.core.public_facts import Given
from userdp.errors import BadInput
from userdp.problems.base import Problem

ASSUMPTIONS = (
    "every user's answer is the certified function of the model: nodes are honest",
    "data lie in the declared bounds (they are clipped into them)",
    "n and who takes part are public",
)
"""What every guarantee of a phase rests on."""

PHASE_ABOUT: Mapping[str, Any] = {
    "adversary": "against whoever sees the released models; nodes of a phase and the server see its iterates and are "
    "trusted",
    "needs": "convex loss, certified gradient bound and diagonally dominant bounded Hessian; honest nodes",
    "promise": "user level, against whoever sees the released models",
    "release": "phase",
    "with_secure_noise": "noise is larger by what rounding can do to the steps of a phase (`phase_rounding`); losses "
    "without a bound on how their gradients are rounded are refused, and so are domains without an end",
}
"""What strategies of phases say about themselves."""

PHASE_MEANINGS: Mapping[str, str] = {
    "batch": "users a step, fresh ones each time",
    "phases": "releases; each phase starts at the model released before",
    "steps": "steps of each phase",
}
"""Numbers of their plans."""

PHASE_FACT = Fact("public", "number of the phase")
"""What a round notes as its phase."""


def check_contractive(
    given: Given, learning_rate: float | None, *, opted_out: bool, needed_then: Mapping[str, float | None]
) -> None:
    """Refuse losses and step sizes for which steps are not proven to be contractive.

    Args:
        given: what the scheme is made from.
        learning_rate: of the first phase, where it is set.
        opted_out: a loss without certificate is accepted, and no privacy is promised.
        needed_then: options that must be set for such a loss, beside the learning rate.

    Raises:
        MissingAssumption: the loss is not certified, and nobody has opted out.
        BadInput: an option is not set that a loss without certificate needs, or the step is too long.
    """
    certificate = given.problem.certificate
    if not opted_out:
        certificate.require_contractive(given.strategy)
    elif certificate.missing() and None in (*needed_then.values(), learning_rate):
        names = " and ".join(f"strategy.{name}" for name in (*needed_then, "learning_rate"))
        raise BadInput(f"{names} must be given for a loss without certificate")
    if learning_rate and certificate.smoothness and learning_rate > 2 / certificate.smoothness:
        raise BadInput(
            f"strategy.learning_rate = {learning_rate:g}: must be at most 2 / smoothness = "
            f"{2 / certificate.smoothness:.6g}, beyond which steps of this loss are not proven to be contractive"
        )


def gradient_rounding(problem: Problem) -> float:
    """How far computed gradients are from those that steps are contractive for, where noise is secure.

    Raises:
        BadInput: nothing bounds that, or models.
    """
    if problem.gradient_rounding is None or math.isinf(problem.domain.radius):
        raise BadInput(
            f"privacy.noise = 'secure': problem.kind = {problem.name!r} has no bound on how gradients or models inside "
            "a phase are rounded; choose a strategy that releases every round (robust_rounds), a finite "
            "problem.radius, or noise = 'seeded' for a simulation"
        )
    return problem.gradient_rounding


def phase_rounding(
    problem: Problem, *, steps: int, rate: float, sensitivity: float, error: float, longest: float
) -> float:
    """How much the sensitivity of a phase's average iterate can grow, relatively, by float64 steps.

    *Formal guarantees.* Let T steps of size eta be ``x <- P(x - eta g(x))``, where the true g moves by at most s (sup
    norm) if a user of its batch is replaced, and x - eta g(x) is 1-Lipschitz in x; P is the projection, or nothing.
    What is computed of g is within ``error`` of it for the computed rows, in which a user's row is within
    `gradient_rounding` of a true one; g is 1-Lipschitz in them. So a step's g errs by ``error + gradient_rounding``.
    It is at most ``longest`` in each coordinate, so iterates are at most ``X = X_0 + T eta longest``, with X_0 for
    the domain. With u = 2^-53, the product errs by ``u eta longest``, the difference by u X, P not at all. So two
    neighbours' iterates, equal up to the user's step, are at most ``eta (s + 2 T E)`` apart, with
    ``E = error + gradient_rounding + u longest + u X / eta``. Their average, computed in any order, errs by another
    T u X for each. All that up to a factor of 1 + 2^-18.

    Args:
        problem: whose gradients are taken; see `gradient_rounding`.
        steps: T.
        rate: eta.
        sensitivity: s, of a step's mean gradient, sup norm.
        error: of it, as computed from given rows.
        longest: bound on its entries.

    Raises:
        BadInput: see `gradient_rounding`.
    """
    unit = 2.0**-53
    farthest = float(np.abs(problem.domain.centre).max()) + problem.domain.radius
    iterates = farthest / rate + steps * longest  # X / eta
    step = error + gradient_rounding(problem) + unit * (longest + iterates)
    return (1 + 2.0**-18) * 2 * steps * (step + unit * iterates) / sensitivity
