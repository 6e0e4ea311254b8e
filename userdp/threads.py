"""Threads of one process, for work that numpy does without Python's lock; with any number of them the same numbers."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def threads() -> int:
    """As many as mathematics may take here: what a Ray actor or an operator says, else one a processor."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def side_by_side(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """The function of each part, in their order; as many at a time as there are `threads`."""
    workers = min(threads(), len(parts))
    if workers < 2:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, parts))
