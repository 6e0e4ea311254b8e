"""Rows of numbers, dense and sparse, the names of array types, and compiled loops."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.arrays.sparse_rows import clip_rows, dense, finite_rows
    from userdp.arrays.types import Indices, Rows, Vector

__all__ = [
    "Indices",
    "Rows",
    "Vector",
    "clip_rows",
    "dense",
    "finite_rows",
]

__getattr__, __dir__ = lazily(__name__)
