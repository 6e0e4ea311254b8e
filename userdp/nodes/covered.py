"""The check that a mechanism has noise for as far as a user can move the mean of a computation."""

from userdp.accounting import Relation
from userdp.errors import RunFailed
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.statistics import statistic


def check_covered(
    asked: Computation,
    mechanism: GaussianMechanism | LaplaceMechanism,
    divisor: float,
    relation: Relation,
    *,
    number: bool = False,
) -> None:
    """Compare how far a user, protected as a whole, can move the mean with the sensitivity of its mechanism.

    A statistic beside the users' vectors has noise of its own; ``number`` says that the mean is the statistic's. Raises
    `RunFailed`: a user could move the mean by more.
    """
    if isinstance(mechanism, LaplaceMechanism):
        moved, covered = asked.sensitivity(relation, order=1, weight=0.0), mechanism.sensitivity
    else:
        moved, covered = asked.sensitivity(relation, weight=0.0), mechanism.l2_sensitivity
    if number:
        moved = None if asked.statistic is None else statistic(asked.statistic).sensitivity(relation)
    if moved is None or moved / divisor > covered * (1 + 1e-9):
        most = "any length" if moved is None else f"{moved / divisor:.6g}"
        raise RunFailed(
            f"a user can move the mean of {asked.name} by {most}, and its noise is made for {covered:.6g}: clip what "
            "users send to the norm that the mechanism is made for, and divide by a public number"
        )
