"""What docs/papers/robust-user-level.md counts: users that tests take, and how far one user moves an estimate."""

from userdp.estimators import Debiased, ExpKernel, RampKernel, Winsorized
from userdp.mechanisms import AboveThreshold, MinimumScore, minimum_batch

EPSILON, DELTA, STEPS, FAILURE = 1.0, 1e-6, 20, 0.01
BATCHES = (100, 1000, 10_000)
_TESTS = {"AboveThreshold over all steps": AboveThreshold, "one test of the least score": MinimumScore}
_KERNELS = {"exponential": ExpKernel, "ramp": RampKernel}


def users() -> str:
    """How many users a step takes for honest ones to pass."""
    lines = ["| test | kernel | users a step |", "|---|---|---|"]
    for test, kind in _TESTS.items():
        for kernel, shape in _KERNELS.items():
            needed = minimum_batch(kind, shape(1.0), epsilon=EPSILON / 2, delta=DELTA / 2, steps=STEPS, failure=FAILURE)
            lines.append(f"| {test} | {kernel} | {needed:,} |")
    head = (
        f"Fewest users a step, for users who agree wholly to pass {STEPS} steps with probability {1 - FAILURE:.0%}, at "
        f"half of epsilon = {EPSILON:g} and of delta = {DELTA:.0e}:"
    )
    return "\n".join([head, "", *lines])


def sensitivities() -> str:
    """How far one user moves the estimate of a step, in radii."""
    estimates = {
        "clip of the mean about the trimmed mean (the paper's)": Debiased(statistic="trimmed_mean", radius=1.0),
        "the same about the median": Debiased(statistic="median", radius=1.0),
        "mean of users clipped about the trimmed mean (winsorised)": Winsorized(radius=1.0),
    }
    lines = [f"| estimate | {' | '.join(f'{batch:,} users' for batch in BATCHES)} |", f"|---|{'---|' * len(BATCHES)}"]
    for told, estimate in estimates.items():
        moved = (f"{estimate.sup_sensitivity(batch):.3g}" for batch in BATCHES)
        lines.append(f"| {told} | {' | '.join(moved)} |")
    return "\n".join(
        ["What one user can move a coordinate of a step's estimate by, in units of the radius:", "", *lines]
    )
