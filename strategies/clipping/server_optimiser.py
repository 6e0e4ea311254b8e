"""What the server does with a released gradient. All of it is post-processing: no optimiser here costs privacy."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.ways import Course
from userdp.arrays.types import Vector


class ServerOptions(StrategyOptions):
    """Settings of `ServerOptimiser`."""

    server_optimiser: Literal["sgd", "momentum", "adam"] = Field(
        "sgd", description="How the server follows released gradients; costs no privacy."
    )
    momentum: float = Field(
        0.9, ge=0, lt=1, description="Memory of past gradients, for momentum and (first moment) adam."
    )
    second_moment: float = Field(0.99, ge=0, lt=1, description="Memory of past squared gradients, for adam.")
    adaptivity: float = Field(1e-3, gt=0, description="Added to adam's root of squared gradients; smaller adapts more.")

    def followed(self, course: Course, dimension: int) -> Course:
        """The course of gradients in ``dimension`` coordinates, followed by this optimiser."""
        if self.server_optimiser == "momentum":
            return replace(course, rate=course.rate / (1 - self.momentum))
        if self.server_optimiser == "adam":
            # Whatever is released is stretched to about one in each coordinate.
            return replace(course, deviation=1.0, longest=math.sqrt(dimension))
        return course


class ServerOptimiser:
    """Gradient steps with a memory.

    - sgd: ``x - rate g``.
    - momentum: ``v = momentum v + g``, ``x - rate v`` (Polyak 1964).
    - adam: the first two moments, corrected for their start at zero, ``x - rate m / (sqrt(v) + adaptivity)``
      (Kingma, Ba 2015; as a server optimiser Reddi et al. 2021).

    Args:
        options: which, and its memory.
        rate: step size.
        dimension: p.
    """

    def __init__(self, options: ServerOptions, rate: float, dimension: int) -> None:
        self._options, self._rate = options, rate
        self._first = np.zeros(dimension)
        self._second = np.zeros(dimension)
        self._steps = 0

    def step(self, x: Vector, gradient: Vector) -> Vector:
        """The next model, before projection on the domain."""
        options = self._options
        if options.server_optimiser == "sgd":
            return x - self._rate * gradient
        if options.server_optimiser == "momentum":
            self._first = options.momentum * self._first + gradient
            return x - self._rate * self._first
        self._steps += 1
        self._first = options.momentum * self._first + (1 - options.momentum) * gradient
        self._second = options.second_moment * self._second + (1 - options.second_moment) * gradient**2
        first = self._first / (1 - options.momentum**self._steps)
        second = self._second / (1 - options.second_moment**self._steps)
        return np.asarray(x - self._rate * first / (np.sqrt(second) + options.adaptivity))
