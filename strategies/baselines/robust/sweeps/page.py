"""Tables of strategies/baselines/robust/README.md: users that the tests need, and the sensitivity of the estimates."""

from strategies import PublicFacts, RobustRounds
from userdp.accounting import Privacy
from userdp.estimators import Debiased, ExpKernel, RampKernel, Winsorized
from userdp.mechanisms import AboveThreshold, MinimumScore, minimum_batch
from userdp.problems import Quadratic

EPSILON, DELTA, STEPS, FAILURE = 1.0, 1e-6, 20, 0.01
BATCHES = (100, 1000, 10_000)
EPOCHS, PER_EPOCH, USERS = (1, 2, 4, 10, 40), 5, 500_000
_TESTS = {"AboveThreshold over all steps": AboveThreshold, "one test of the smallest score": MinimumScore}
_KERNELS = {"exponential": ExpKernel, "ramp": RampKernel}


def users() -> str:
    """Return the number of users per step with which honest users pass the test."""
    lines = ["| test | kernel | users per step |", "|---|---|---|"]
    for test, kind in _TESTS.items():
        for kernel, shape in _KERNELS.items():
            needed = minimum_batch(kind, shape(1.0), epsilon=EPSILON / 2, delta=DELTA / 2, steps=STEPS, failure=FAILURE)
            lines.append(f"| {test} | {kernel} | {needed:,} |")
    head = (
        f"Smallest number of users per step with which identical users pass {STEPS} steps with probability "
        f"{1 - FAILURE:.0%}, at half of epsilon = {EPSILON:g} and of delta = {DELTA:.0e}:"
    )
    return "\n".join([head, "", *lines])


def rounds() -> str:
    """Return the number of users that robust rounds need, by test and number of epochs."""
    lines = [f"| test | {' | '.join(_epochs(epochs) for epochs in EPOCHS)} |", f"|---|{'---|' * len(EPOCHS)}"]
    for test in ("min_score", "above_threshold"):
        needed = (f"{_users_needed(test, epochs):,}" for epochs in EPOCHS)
        lines.append(f"| `{test}` | {' | '.join(needed)} |")
    head = (
        f"Smallest number of users for `robust_rounds` with {PER_EPOCH} rounds per epoch, by number of epochs, at "
        f"epsilon = {EPSILON:g} and delta = {DELTA:.0e}:"
    )
    return "\n".join([head, "", *lines])


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def _users_needed(test: str, epochs: int) -> int:
    strategy = RobustRounds(test=test, epochs=epochs, rounds=PER_EPOCH * epochs, radius=1.0).strategy(
        Quadratic(1, 1.0, 1.0), PublicFacts(USERS), Privacy(EPSILON, DELTA)
    )
    return strategy.plan.users_needed


def sensitivities() -> str:
    """Return the largest change of a step's estimate by one user, in radii."""
    estimates = {
        "mean, clipped about the trimmed mean (the paper's)": Debiased(statistic="trimmed_mean", radius=1.0),
        "mean, clipped about the median": Debiased(statistic="median", radius=1.0),
        "mean of users, each clipped about the trimmed mean (winsorised)": Winsorized(radius=1.0),
    }
    lines = [f"| estimate | {' | '.join(f'{batch:,} users' for batch in BATCHES)} |", f"|---|{'---|' * len(BATCHES)}"]
    for told, estimate in estimates.items():
        moved = (f"{estimate.sup_sensitivity(batch):.3g}" for batch in BATCHES)
        lines.append(f"| {told} | {' | '.join(moved)} |")
    return "\n".join(
        ["Largest change of a coordinate of a step's estimate by one user, in units of the radius:", "", *lines]
    )


PARTS = {"sensitivities": sensitivities, "users": users, "rounds": rounds}
"""Part of the page -> its table, made anew with the page."""
