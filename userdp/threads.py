"""Threads of one process, for numpy's work outside Python's lock; results do not depend on their number."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def threads() -> int:
    """Return the number of threads for mathematics: that of a Ray actor or an operator, else one a processor."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def side_by_side(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Apply the function to each part, up to `threads` at a time; results keep the order of parts."""
    workers = min(threads(), len(parts))
    if workers < 2:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, parts))


def ahead(items: Iterator[Part]) -> Iterator[Part]:
    """Yield the items; with a second thread each is made, in the context of this call, while the last one is in use."""
    if threads() < 2:
        yield from items
        return
    context = copy_context()

    def following() -> Part | None:
        return context.run(lambda: next(items, None))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(following)
        while (item := coming.result()) is not None:
            coming = pool.submit(following)
            yield item
