"""Winsorised mean after a random rotation: each coordinate is clamped to an interval that is found privately."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from strategies.row_rounds import RowOptions, RowRounds
from userdp.computations import Computation
from userdp.errors import PopulationTooSmall
from userdp.estimators.rotation import CellGrid, HadamardRotation
from userdp.mechanisms import GaussianMechanism
from userdp.noise import rounding_slack
from userdp.problems.base import Vector
from userdp.sampling import ConcentratedBatches, DisjointBatches

_MOST_SELECTION = 0.5


class WinsorizedRotationOptions(RowOptions):
    """Settings of `WinsorizedRotation`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that gradients are clipped to: how far intervals may lie.")
    failure: float = Field(0.01, gt=0, lt=1, description="Probability that some coordinate of a round goes wrong.")


class WinsorizedRotation(RowRounds):
    """Mean of user gradients, rotated and clamped coordinate by coordinate to private intervals, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one; n public. Any loss. In a round, (1) the exponential mechanism chooses a cell for
    each of the d' rotated coordinates (score of sensitivity 1), ``d' epsilon_1^2 / 8``-zCDP; (2) coordinates are
    clamped to that cell's centre +- 2 tau', so replacing a user moves the mean of B users by at most ``4 tau'
    sqrt(d') / B`` in l2, and Gaussian noise makes it zCDP with the rest of the round's rho. With one cell there is
    nothing to choose: the mean is all that a round releases, and is accounted as the Gaussian that it is. The
    rotation's signs are public and drawn without looking at data. A user is in one round an epoch; rho adds up over
    epochs. Every iterate is released; the server is trusted, other nodes may answer anything.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.

    *Split.* The noise falls with the selection's share only as long as cells are found, so it gets what finding them
    takes and no more: the chosen cell's score is within ``(2 / epsilon_1) ln(K d' / failure)`` of the best, and a
    quarter of the users is allowed for that.
    """

    name: ClassVar[str] = "winsorized_rotation"
    summary_line: ClassVar[str] = "rotated, clamped to private intervals, noisy every round"
    family: ClassVar[str] = "robust"
    cost: ClassVar[str] = "one gradient a user, a row of d numbers each; server O(U d log d), to rotate them"
    paper: ClassVar[str] = "Levy, Sun, Amin, Kale, Kulesza, Mohri, Suresh 2021; zCDP and Hoeffding's constant: ours"
    with_secure_noise: ClassVar[str] = (
        "intervals by the exponential mechanism without rounding; the rotation's signs are public, from the seed"
    )
    example: ClassVar[Mapping[str, Any]] = {"rounds": 2}
    meanings: ClassVar[Mapping[str, str]] = {
        "rotated_dimension": "coordinates after the rotation, a power of two",
        "interval": "half-width of the interval that each rotated coordinate is clamped to",
        "cells": "cells of the public grid in which intervals are sought",
        "selection_epsilon": "epsilon of choosing one coordinate's interval",
    }
    Options: ClassVar[type[StrategyOptions]] = WinsorizedRotationOptions
    options: WinsorizedRotationOptions
    undeclared: ClassVar[str] = (
        "strategy.deviation: this loss has no bound on its gradient, so no interval follows from theory; "
        "give strategy.deviation (of one sample's gradient, per coordinate)"
    )
    _sampler: DisjointBatches

    def _make_plan(self) -> Plan:
        options, n, p, batch = self.options, self.public.users, self.problem.dimension, self._batch
        if batch < 1:
            raise PopulationTooSmall(f"data.users = {n}: {options.rounds} rounds take a user each; use fewer rounds")
        self._rotation = HadamardRotation(p, self.seed)
        size = self._rotation.size
        reach = self._rotation.largest_coordinate(options.clip_norm, batch, options.failure)
        spread = self._rotation.largest_coordinate(self._concentration(), batch, options.failure)
        self._grid = CellGrid(reach, min(reach, spread))
        scheme = DisjointBatches if self._grid.cells == 1 else ConcentratedBatches
        self._sampler = scheme(n, batch, options.epochs, self.seed)
        self._multiplier = self._sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        rho = 1 / (2 * self._multiplier**2)
        share = self._selection_share(rho)
        self._selection_epsilon = math.sqrt(8 * share * rho / size)
        sensitivity = 4 * self._grid.half_width * math.sqrt(size) / batch
        self._mechanism = GaussianMechanism(sensitivity, self._multiplier / math.sqrt(1 - share))
        noise = self._mechanism.standard_deviation * math.sqrt(p)
        warnings = []
        if noise >= options.clip_norm:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the clip ({options.clip_norm:g}), which bounds the mean "
                "gradient: use fewer strategy.rounds, more users or a larger epsilon"
            )
        if share == _MOST_SELECTION:
            warnings.append(
                "half of the budget does not suffice to find the coordinates' intervals reliably: use fewer "
                "strategy.rounds, more users or a smaller strategy.clip_norm"
            )
        return self._row_plan(
            users_needed=math.ceil(options.rounds / options.epochs),
            guarantee=self._sampler.guarantee(self._multiplier, self.privacy.delta, self.adversary, (self.trust,)),
            noise=noise,
            signal=options.clip_norm,
            numbers={
                "noise_multiplier": self._multiplier,
                "rotated_dimension": size,
                "interval": 2 * self._grid.half_width,
                "cells": self._grid.cells,
                "selection_epsilon": self._selection_epsilon,
            },
            warnings=warnings,
        )

    def _concentration(self) -> float:
        """l2 distance of a user's gradient from the mean that is rarely exceeded, for normal gradients."""
        return self._user_deviation * (math.sqrt(self.problem.dimension) + 3)

    def _selection_share(self, rho: float) -> float:
        """Of a round's rho; none where one cell is all there is, for that choice reveals nothing."""
        if self._grid.cells == 1:
            return 0.0
        size = self._rotation.size
        needed = 8 * math.log(self._grid.cells * size / self.options.failure) / self._batch
        return min(_MOST_SELECTION, size * needed**2 / (8 * rho))

    def _rounding_slack(self) -> float:
        # A clamped row is no longer than (cells + 1) half widths a coordinate, the sensitivity is four of them.
        return rounding_slack(self._batch, (self._grid.cells + 1) / 4)

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), Computation("user_gradient", clip_norm=self.options.clip_norm))

    def _centers(self, index: int, rotated: Vector) -> Vector:
        """(d',) the middle of each coordinate's interval."""
        if self._grid.cells == 1:
            return np.repeat(self._grid.centers, self._rotation.size)
        return self._grid.select(rotated, self._selection_epsilon, self._noise(index, 1))

    def _clamped_mean(self, rotated: Vector, centers: Vector) -> Vector:
        """Of (B, d') rows, each coordinate held to its interval."""
        interval = 2 * self._grid.half_width
        return np.asarray(np.clip(rotated, centers - interval, centers + interval).mean(axis=0))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        rotated = self._rotation(gathered.values)
        centers = self._centers(index, rotated)
        mean = self._mechanism.release(self._clamped_mean(rotated, centers), self._noise(index, 2))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        return self._descend(x, self._rotation.inverse(mean[None])[0])
