"""The promises of plans beside the founding paper's Theorem 3.1: the price of privacy, and the n from which they pay.

Losses on a box of half-width 1, for samples in [-1, 1]: linear, quadratic, and logistic (rates on the logit scale). The
second term of the theorem is ``d^(3/2) / (n eps^2 sqrt(m))``; its lower bound, Theorem 4.1, has eps for eps^2.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sweeps.slopes import slope
from sweeps.sweep import Sweep

from strategies import DPFedSGD, LocalizedClipping, LocalizedRobustSGD, PublicFacts
from strategies.core.base import UserLevelStrategy
from userdp import Privacy
from userdp.errors import PopulationTooSmall
from userdp.problems import Bernoulli, Linear, Quadratic
from userdp.problems.base import Problem

DELTA = 1e-9
USUAL = {"n": 1e6, "m": 100.0, "d": 10.0, "eps": 1.0}
ALONG: Mapping[str, tuple[float, ...]] = {
    "n": (1e5, 3e5, 1e6, 3e6, 1e7),
    "m": (10.0, 30.0, 100.0, 300.0, 1000.0),
    "d": (2.0, 5.0, 10.0, 20.0, 50.0),
    "eps": (0.25, 0.5, 1.0, 2.0, 4.0),
}
THEORY = {"n": -1.0, "m": -0.5, "d": 1.5, "eps": -2.0}
"""Powers of the second term of Theorem 3.1."""
PAPER: Mapping[str, Any] = {"estimate": "debiased", "kernel": "exp", "test": "above_threshold"}
LOSSES: Mapping[str, Callable[[int], Problem]] = {
    "linear": lambda d: Linear(d, bound=1.0),
    "quadratic": lambda d: Quadratic(d, bound=1.0, radius=1.0),
    "logistic": lambda d: Bernoulli(d, radius=1.0),
}
DEVIATION = 0.5
"""The standard deviation of a sample's coordinate: half of the bound."""


# --- Slopes ----------------------------------------------------------------------------------------------------------


def at_the_papers(
    problem: Problem, pieces: Mapping[str, Any], *, n: float, m: float, eps: float, phases: int
) -> UserLevelStrategy:
    """Return a strategy with the paper's radius and step, and its batch half as large again.

    The batch is larger because noise is for scores that move by 2. The step of a smooth loss is the longest that the
    lemma on query sensitivity allows, ``1 / (6 beta B)``; a linear loss has one phase, in which its length cancels.
    """
    batch = math.ceil(150 * math.log(n * m * problem.dimension / DELTA) / eps)
    smoothness = problem.certificate.smoothness or 0.0
    return LocalizedRobustSGD(
        batch=batch,
        radius=(problem.certificate.lipschitz or 1.0) * math.log(n * m * problem.dimension) / math.sqrt(m),
        phases=phases,
        learning_rate=1 / (6 * smoothness * batch) if smoothness else 1.0,
        deviation=DEVIATION,
        **pieces,
    ).strategy(problem, PublicFacts(users=int(n), min_samples=int(m)), Privacy(eps, DELTA), seed=0)


def planned(loss: str, pieces: Mapping[str, Any], *, n: float, m: float, d: float, eps: float) -> float:
    """Return d times the planned noise on a coordinate of the mean gradient, of one phase.

    A linear loss loses a coordinate's mean where the noise turns its sign: that much, up to a factor below one.
    """
    (phase,) = at_the_papers(LOSSES[loss](int(d)), pieces, n=n, m=m, eps=eps, phases=1).scheme.phases
    travelled = phase.learning_rate * (phase.steps + 1) / 2
    return d * phase.mechanism.standard_deviation / travelled


def slopes() -> pd.DataFrame:
    """Slopes of the planned privacy term in users, samples, columns and epsilon; losses with the same share a row."""
    rows = []
    for loss in LOSSES:
        for along, values in ALONG.items():
            row: dict[str, Any] = {"loss": loss, "slope_in": along, "Theorem_3.1": THEORY[along]}
            for name, pieces in {"the paper's": PAPER, "ours": {}}.items():
                found = np.array([planned(loss, pieces, **(USUAL | {along: value})) for value in values])
                row[name], row[f"standard_error,_{name}"] = slope(np.array(values), found)
            rows.append(row)
    table = pd.DataFrame(rows).round(9)
    found = [column for column in table if column != "loss"]
    return table.groupby(found, sort=False, as_index=False)["loss"].agg(", ".join)[["loss", *found]]


# --- From which n, and from which m ----------------------------------------------------------------------------------

USERS = tuple(round(10 ** (power / 8)) for power in range(16, 65))
SAMPLES = tuple(10**power for power in range(7))
Plan = Callable[[Problem, PublicFacts, Privacy], UserLevelStrategy]


def _paper(problem: Problem, public: PublicFacts, privacy: Privacy) -> UserLevelStrategy:
    """Return the plan with the least forecast of up to three phases."""
    sizes = {"n": public.users, "m": public.min_samples, "eps": privacy.epsilon}
    counts = (1, 2, 3) if problem.certificate.smoothness else (1,)
    return min((at_the_papers(problem, PAPER, phases=count, **sizes) for count in counts), key=forecast)


def _clipping(problem: Problem, public: PublicFacts, privacy: Privacy) -> UserLevelStrategy:
    """Return user-level clipping at the longest gradient, in three rounds, or in one that leaves the box."""
    clip = (problem.certificate.lipschitz or 1.0) * math.sqrt(problem.dimension)
    steps = {"rounds": 3} if problem.certificate.smoothness else {"rounds": 1, "learning_rate": 1e6}
    return DPFedSGD(clip_norm=clip, **steps).strategy(problem, public, privacy, seed=0)


PLANS: Mapping[str, Plan] = {
    "the paper's": _paper,
    "ours": lambda *given: LocalizedRobustSGD(deviation=DEVIATION).strategy(*given, seed=0),
    "localized_clipping": lambda *given: LocalizedClipping(deviation=DEVIATION).strategy(*given, seed=0),
    "dp_fed_sgd": _clipping,
}


def forecast(strategy: UserLevelStrategy) -> float:
    """Return the excess risk that the plan forecasts."""
    assert strategy.plan.forecast is not None
    assert strategy.plan.forecast.excess is not None
    return strategy.plan.forecast.excess


def _forecast(name: str, problem: Problem, n: int, m: int, eps: float) -> float:
    """Return the forecast of that name's plan; infinite for too few users."""
    try:
        return forecast(PLANS[name](problem, PublicFacts(users=n, min_samples=m), Privacy(eps, DELTA)))
    except PopulationTooSmall:
        return math.inf


def pays() -> pd.DataFrame:
    """The n from which a forecast is below half of the start's excess risk, and the m from which ours beats clipping.

    d = 10, m = 100 for the first, n = 10,000 for the second. Empty: not up to 1e8 users, or 1e6 samples per user.
    """
    rows = []
    for loss, make in LOSSES.items():
        problem = make(10)
        for eps in (1.0, 4.0):
            row: dict[str, Any] = {"loss": loss, "eps": eps}
            for name in PLANS:
                enough = partial(_enough, name, problem, eps)
                index = bisect_left(USERS, True, key=enough)
                row[f"n,_{name}"] = USERS[index] if index < len(USERS) else math.nan
            ours = [_forecast("ours", problem, 10_000, m, eps) for m in SAMPLES]
            for rival in ("localized_clipping", "dp_fed_sgd"):
                theirs = [_forecast(rival, problem, 10_000, m, eps) for m in SAMPLES]
                behind = [m for m, own, other in zip(SAMPLES, ours, theirs, strict=True) if own >= other]
                first = max(behind, default=0.1) * 10
                row[f"m,_ours_below_{rival}"] = first if first <= SAMPLES[-1] else math.nan
            rows.append(row)
    return pd.DataFrame(rows)


def _enough(name: str, problem: Problem, eps: float, n: int) -> bool:
    """Return whether that name's plan for n users of 100 samples forecasts less than half of the start's excess."""
    return _forecast(name, problem, n, 100, eps) < problem.landscape.start / 2


SWEEPS: dict[str, Sweep] = {"robust-slopes": Sweep(slopes), "robust-pays": Sweep(pays, quick=False)}
"""The sweeps of plans."""
