"""Rows of numbers, dense and sparse, the names of array types, and compiled loops."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.arrays.projections import project_l1, project_l1_l2
    from userdp.arrays.sparse_rows import clip_rows, dense, finite_rows
    from userdp.arrays.types import Indices, Rows, Vector

__all__ = [
    "Indices",
    "Rows",
    "Vector",
    "clip_rows",
    "dense",
    "finite_rows",
    "project_l1",
    "project_l1_l2",
]

__getattr__, __dir__ = lazily(__name__)
