"""The computations of a node on its users' data: only one row per user, or their sum, leaves it."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.nodes.computations import Computation
    from userdp.nodes.functions import RowFunction
    from userdp.nodes.partition import OUTSIDE, Partition

__all__ = [
    "OUTSIDE",
    "Computation",
    "Partition",
    "RowFunction",
]

__getattr__, __dir__ = lazily(__name__)
