"""What a run of steps gives of its iterates."""

from typing import ClassVar

from userdp.arrays.types import Vector
from userdp.state import Stateful


class IterateAverage(Stateful):
    """The memory of a run that gives the average of its iterates, the start included; or of several such runs.

    Attributes:
        start: where each run starts; None before the first step.
        finished: what the runs before this one gave.
    """

    remembered: ClassVar[tuple[str, ...]] = ("start", "finished", "_total", "_count")

    def __init__(self) -> None:
        self.start: Vector | None = None
        self.finished: list[Vector] = []
        self._total: Vector | None = None
        self._count = 0

    def output(self, x: Vector, following: Vector) -> Vector:
        """The model after a step from ``x``."""
        if self._total is None:
            self.start, self._total, self._count = x, x.copy(), 1
        self._total += following
        self._count += 1
        return self._total / self._count

    def restart(self, model: Vector) -> Vector:
        """Keep what a run gave, and say where the next one starts."""
        assert self.start is not None  # a run of no steps is none
        self.finished.append(model)
        self._total = None
        return self.start


class RandomIterate(Stateful):
    """The memory of a run that gives one of its iterates, drawn before it starts.

    Args:
        kept_at: how many steps that one has behind it.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_steps", "_kept")
    given: ClassVar[tuple[str, ...]] = ("kept_at",)

    def __init__(self, kept_at: int) -> None:
        self.kept_at = kept_at
        self._steps = 0
        self._kept: Vector | None = None

    def output(self, x: Vector, following: Vector) -> Vector:
        """The model after a step from ``x``: the latest iterate until the drawn one is reached."""
        if self._kept is None:
            self._kept = x
        self._steps += 1
        if self._steps <= self.kept_at:
            self._kept = following
        return self._kept
