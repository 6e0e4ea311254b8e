"""The computations of a node on its users' data: only one row a user, or their sum, leaves it."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.nodes.computations import Computation
    from userdp.nodes.partition import Partition, group_size, spread_length
    from userdp.nodes.truncated import truncated_gradients

__all__ = [
    "Computation",
    "Partition",
    "group_size",
    "spread_length",
    "truncated_gradients",
]

__getattr__, __dir__ = lazily(__name__)
