"""The server's optimisers of released gradients: post-processing, which costs no privacy."""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.core.mean_rounds import Descent
from strategies.core.options import StrategyOptions
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.noise_paths import NoisySteps


class ServerOptions(StrategyOptions):
    """Settings of `ServerOptimiser`."""

    server_optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    """The server's rule for following released gradients; costs no privacy."""
    momentum: float = Field(0.9, ge=0, lt=1, description="Memory of gradients, for momentum and (first moment) adam.")
    second_moment: float = Field(0.99, ge=0, lt=1, description="Memory of past squared gradients, for adam.")
    adaptivity: float = Field(1e-3, gt=0, description="Added to adam's root of squared gradients; smaller adapts more.")
    noise_corrected: bool = False
    """Subtract the known variance of the noise from adam's squared gradients, so that steps follow the signal where
    noise hides it; costs no privacy."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Release an average of the models so far, each weighted by this share of the weight of the next (an exponential
    moving average): it takes larger steps well; costs no privacy. 0 releases the last model."""

    def followed(self, steps: NoisySteps, dimension: int) -> NoisySteps:
        """Return the path of plain steps in ``dimension`` coordinates as this optimiser changes it."""
        if self.server_optimiser == "momentum":
            return replace(steps, rate=steps.rate / (1 - self.momentum))
        if self.server_optimiser == "adam":
            # Adam stretches each coordinate of a release to about one.
            return replace(steps, deviation=1.0, longest=math.sqrt(dimension))
        return steps


class ServerOptimiser(Descent):
    """Gradient steps with a memory, and an average of the models that they lead to.

    - sgd: ``x - rate g``.
    - momentum: ``v = momentum v + g``, ``x - rate v`` (Polyak 1964).
    - adam: the first two moments, corrected for their start at zero, ``x - rate m / (sqrt(v) + adaptivity)``
      (Kingma, Ba 2015; as a server optimiser Reddi et al. 2021).
    - adam, noise_corrected: noise adds its public variance to each squared gradient. With s its average over the same
      rounds, ``v - s`` estimates the squares of the signal alone (Tang, Shpilevskiy, Lecuyer 2024, arXiv 2312.14334),
      here held above the standard deviation that noise alone gives v.
    - ema_decay: gradients are taken at the models x_1, x_2, ... as without it, and the released model is their average
      of weights ``decay^(t - s)`` (Polyak, Juditsky 1992; of DP-SGD De et al. 2022, arXiv 2204.13650). The weights add
      up to one: nothing is left of the start, which is no model of the run.

    Raises `BadInput`: a correction for noise without adam.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_first", "_second", "_variance", "_steps", "_average", "_models")
    given: ClassVar[tuple[str, ...]] = (*Descent.given, "_options")

    def __init__(self, options: ServerOptions, rate: float, dimension: int) -> None:
        if options.noise_corrected and options.server_optimiser != "adam":
            raise BadInput(
                f"strategy.noise_corrected with server_optimiser = {options.server_optimiser!r}: only adam has squares "
                "to correct; set server_optimiser = 'adam', or leave it out"
            )
        super().__init__(rate)
        self._options = options
        self._first = np.zeros(dimension)
        self._second = np.zeros(dimension)
        self._variance = 0.0
        self._steps = 0
        self._average = np.zeros(dimension)
        self._models = 0

    def step(self, x: Vector, gradient: Vector, deviation: float = 0.0) -> Vector:
        """See `Descent`; `noise_corrected` subtracts the variance of ``deviation``."""
        options = self._options
        if options.server_optimiser == "sgd":
            return x - self.rate * gradient
        if options.server_optimiser == "momentum":
            self._first = options.momentum * self._first + gradient
            return x - self.rate * self._first
        self._steps += 1
        self._first = options.momentum * self._first + (1 - options.momentum) * gradient
        self._second = options.second_moment * self._second + (1 - options.second_moment) * gradient**2
        self._variance = options.second_moment * self._variance + (1 - options.second_moment) * deviation**2
        first = self._first / (1 - options.momentum**self._steps)
        second = np.maximum(self.signal, self._least) if options.noise_corrected else self.squares
        return np.asarray(x - self.rate * first / (np.sqrt(second) + options.adaptivity))

    def output(self, x: Vector, following: Vector) -> tuple[Vector, Vector]:
        """See `Descent`; the released model is the average."""
        decay = self._options.ema_decay
        if not decay:
            return following, following
        self._models += 1
        self._average = decay * self._average + (1 - decay) * following
        return following, self._average / (1 - decay**self._models)

    @property
    def squares(self) -> Vector:
        """(p,) averages of squared gradients so far, signal and noise."""
        return self._second / (1 - self._options.second_moment**self._steps)

    @property
    def signal(self) -> Vector:
        """(p,) unbiased estimates of those averages without noise; negative where noise was small by chance."""
        return self.squares - self._variance / (1 - self._options.second_moment**self._steps)

    @property
    def _least(self) -> float:
        """The standard deviation of `squares` for Gaussian noise alone, whose squares deviate by root two each."""
        memory = self._options.second_moment
        forgotten = memory**self._steps
        squared_weights = (1 - memory) * (1 + forgotten) / ((1 + memory) * (1 - forgotten))
        return self._variance / (1 - forgotten) * math.sqrt(2 * squared_weights)
