"""The cost of rounding with secure noise, for docs/guarantees.md."""

from collections.abc import Callable

from strategies.baselines.outlier_removal.neighbour_mean import NeighbourMean
from userdp.errors import BadInput
from userdp.estimators import Debiased, Winsorized
from userdp.noise import rounding_slack

USERS = (1_000, 10_000, 100_000, 1_000_000)
DIMENSION = 100
_ESTIMATORS: dict[str, Callable[[int], float]] = {
    "winsorised mean": Winsorized(radius=1.0).rounding,
    "clip of the mean about the median": Debiased(statistic="median", radius=1.0).rounding,
    f"mean without outliers, {DIMENSION} columns": lambda users: NeighbourMean(1.0).rounding(users, DIMENSION),
}


def costs() -> str:
    """Return the relative increase of the noise, by release and number of users."""
    lines = [f"| noise grows by | {' | '.join(f'{users:,} users' for users in USERS)} |", f"|---|{'---|' * len(USERS)}"]
    lines.append(f"| sum of clipped users | {' | '.join(_grown(users) for users in USERS)} |")
    for release, rounding in _ESTIMATORS.items():
        lines.append(f"| {release} | {' | '.join(_grown(users, rounding(users)) for users in USERS)} |")
    return "\n".join(lines)


def _grown(terms: int, further: float = 0.0) -> str:
    """Return the relative increase, or "refused" if it is too large."""
    try:
        return f"{rounding_slack(terms, further=further):.1e}"
    except BadInput:
        return "refused"
