"""Winsorised mean after a random rotation: each coordinate is clamped to a privately chosen interval."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies import ROW_ADVERSARY, ROW_MEANINGS, About, Given, Noise, Recipe, RowOptions, RowRounds
from strategies.baselines.rotation.rotation import CellGrid, HadamardRotation
from userdp.arrays import Rows, Vector, clip_rows
from userdp.errors import PopulationTooSmall
from userdp.mechanisms import GaussianMechanism
from userdp.sampling import ConcentratedBatches, DisjointBatches

_MOST_SELECTION = 0.5  # The largest share of a round's rho for choosing intervals.
# Bound on how much rounding lengthens the difference of two rotated rows, relatively (see *Why*).
_ROTATION_ROUNDING = 2.0**-47

_UNDECLARED = (
    "strategy.deviation: this loss has no bound on its gradient, so no interval follows from theory; "
    "give strategy.deviation (of one sample's gradient, per coordinate)"
)

_UNRELIABLE = (
    "half of the budget does not suffice to find the coordinates' intervals reliably: use fewer "
    "strategy.rounds, more users or a smaller strategy.clip_norm"
)


@dataclass(frozen=True, kw_only=True)
class ClampedMean:
    """The mean of rotated rows, each coordinate clamped to a privately chosen interval."""

    clip_norm: float  # l2 norm that rows are clipped to first
    rotation: HadamardRotation  # of rows
    grid: CellGrid  # the cells of each rotated coordinate's interval
    selection_epsilon: float  # of each coordinate's choice

    def __call__(self, rows: Rows, noise: Noise) -> Vector:
        """Return the (d',) mean of (B, p) rows, each coordinate clamped to its interval."""
        rotated, grid = self.rotation(clip_rows(rows, self.clip_norm)), self.grid
        if grid.cells == 1:
            return self.clamped_mean(rotated, np.repeat(grid.centres, self.rotation.size))
        return self.clamped_mean(rotated, grid.select(rotated, self.selection_epsilon, noise(1)))

    def clamped_mean(self, rotated: Rows, centres: Vector) -> Vector:
        """Return the (d',) mean of (B, d') rows, each coordinate clamped to the interval about its centre."""
        interval = 2 * self.grid.half_width
        return np.asarray(np.clip(rotated, centres - interval, centres + interval).mean(axis=0))

    def gradient(self, mean: Vector) -> Vector:
        """Return the (p,) mean, rotated back."""
        return np.asarray(self.rotation.inverse(mean[None])[0])


def selection_share(rho: float, cells: int, size: int, batch: int, failure: float) -> float:
    """Return the share of a round's rho for choosing ``size`` cells (*Split*); zero for one cell: no choice."""
    if cells == 1:
        return 0.0
    needed = 8 * math.log(cells * size / failure) / batch
    return min(_MOST_SELECTION, size * needed**2 / (8 * rho))


class WinsorizedRotation(Recipe, RowOptions):
    """Mean of user gradients, rotated and clamped coordinate by coordinate to private intervals, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole user;
    relation: replace-one; n public. In a round, (1) the exponential mechanism chooses a cell for each of the d' rotated
    coordinates (score of sensitivity 1), ``d' epsilon_1^2 / 8``-zCDP; (2) coordinates are clamped to that cell's centre
    +- 2 tau', so replacing a user moves its row by at most the diagonal of that box, ``4 tau' sqrt(d')`` in l2; nor by
    more than ``2 C``, as the server clips rows to length C before it rotates them, and rotating keeps a difference's
    length while clamping to a box never adds to it. The mean of B users moves by the smaller of both over B, and
    Gaussian noise makes it zCDP with the rest of the round's rho. With one cell there is no choice: a round releases
    the mean alone, accounted as the Gaussian that it is. The rotation's signs are public and drawn without looking at
    data. A user is in one round an epoch; rho adds up over epochs. Every iterate is released. *Rounding.* Each of the
    log2 d' <= 30 stages of the transform, and the division, err by 2^-53 of a row's length: by 2^-48 together.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.

    *Split.* The noise falls with the selection's share only while cells are found, so it gets what that needs and no
    more: the chosen cell's score is within ``(2 / epsilon_1) ln(K d' / failure)`` of the best, and a quarter of the
    users is allowed for that.
    """

    about: ClassVar[About] = About(
        name="winsorized_rotation",
        summary_line="rotated, clamped to private intervals, noisy every round",
        family="robust",
        adversary=ROW_ADVERSARY,
        cost="one gradient per user, a row of d numbers each; server O(U d log d), to rotate them",
        paper="Levy, Sun, Amin, Kale, Kulesza, Mohri, Suresh 2021; zCDP and Hoeffding's constant: ours",
        with_secure_noise="intervals by the exponential mechanism without rounding; the rotation's signs are public, "
        "from the seed",
        example={"rounds": 2},
        meanings={
            **ROW_MEANINGS,
            "rotated_dimension": "coordinates after the rotation, a power of two",
            "interval": "half-width of the interval that each rotated coordinate is clamped to",
            "cells": "cells of the public grid in which intervals are sought",
            "selection_epsilon": "epsilon of choosing one coordinate's interval",
        },
    )

    clip_norm: float = Field(
        1.0,
        gt=0,
        description="l2 norm that gradients are clipped to: how far intervals may lie, and what noise is for where "
        "they are wide.",
    )
    failure: float = Field(0.01, gt=0, lt=1, description="Probability that some coordinate of a round goes wrong.")

    def scheme(self, given: Given) -> RowRounds:
        n, batch, privacy = given.users, self.cohort(given.users), given.privacy
        if batch < 1:
            raise PopulationTooSmall(
                f"data.users = {n}: {self.count} rounds need a user each; use fewer strategy.rounds"
            )
        rotation = HadamardRotation(given.dimension, given.seed)
        grid, size = self._grid(given, rotation, batch), rotation.size
        sampler = (DisjointBatches if grid.cells == 1 else ConcentratedBatches)(n, batch, self.epochs, given.seed)
        multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        rho = 1 / (2 * multiplier**2)
        share = selection_share(rho, grid.cells, size, batch, self.failure)
        estimator = ClampedMean(
            clip_norm=self.clip_norm, rotation=rotation, grid=grid, selection_epsilon=math.sqrt(8 * share * rho / size)
        )
        # In l2: a row within its box, and what one user can move it by.
        diagonal = 4 * grid.half_width * math.sqrt(size)
        moved = min(diagonal, 2 * self.clip_norm)
        # A clamped row is no longer than (cells + 1) half widths a coordinate; the diagonal is four of them.
        spread = (grid.cells + 1) / 4 * diagonal / moved
        price = replace(
            given.price(sampler, multiplier, ("the server is trusted",)), spread=spread, rounding=_ROTATION_ROUNDING
        )
        rounds = self.row_rounds(
            given,
            sampler,
            GaussianMechanism(moved / batch, multiplier / math.sqrt(1 - share)),
            {
                "noise_multiplier": multiplier,
                "rotated_dimension": size,
                "interval": 2 * grid.half_width,
                "cells": grid.cells,
                "selection_epsilon": estimator.selection_epsilon,
            },
            signal=self.clip_norm,
            warnings=(_UNRELIABLE,) if share == _MOST_SELECTION else (),
            clip_norm=self.clip_norm,
            price=price,
            estimator=estimator,
        )
        return replace(rounds, gradient=lambda _, released: estimator.gradient(released))

    def _grid(self, given: Given, rotation: HadamardRotation, batch: int) -> CellGrid:
        """Return cells as wide as users' typical distance, as far out as their clipped gradients may lie."""
        deviation = self.declared_deviation(given, _UNDECLARED)
        distance = deviation * (math.sqrt(given.dimension) + 3)  # of a user from the mean; rarely more, if normal
        reach = rotation.largest_coordinate(self.clip_norm, batch, self.failure)
        return CellGrid(reach, min(reach, rotation.largest_coordinate(distance, batch, self.failure)))
