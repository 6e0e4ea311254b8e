"""Winsorised mean after a random rotation: each coordinate is clamped to an interval that is found privately."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Number, Step
from strategies.robust.tested_strategy import ADVERSARY, ROW_MEANINGS, TRUST, RowOptions, RowScheme, declared_deviation
from strategies.wire.replies import Gathered, Request
from userdp.arrays.sparse_rows import clip_rows
from userdp.arrays.types import Rows, Vector
from userdp.errors import PopulationTooSmall
from userdp.estimators.rotation import CellGrid, HadamardRotation
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.sampling import ConcentratedBatches, DisjointBatches

_MOST_SELECTION = 0.5
"""The largest share of a round's rho that choosing intervals gets."""

_ROTATION_ROUNDING = 2.0**-47
"""How much longer the difference of two rotated rows can become by rounding, relatively (see *Why*)."""


class WinsorizedRotationOptions(RowOptions):
    """Settings of `WinsorizedRotation`."""

    clip_norm: float = Field(
        1.0,
        gt=0,
        description="l2 norm that gradients are clipped to: how far intervals may lie, and what noise is for where "
        "they are wide.",
    )
    failure: float = Field(0.01, gt=0, lt=1, description="Probability that some coordinate of a round goes wrong.")


@dataclass(frozen=True, kw_only=True)
class RotationScheme(RowScheme):
    """A `RowScheme` of rotated rows, whose ``noise_multiplier`` is that of choice and mean together.

    Attributes:
        rotation: of rows.
        grid: the cells that each rotated coordinate's interval is chosen from.
        selection_share: of a round's rho, for the choices.
        selection_epsilon: of each coordinate's choice.
    """

    rotation: HadamardRotation
    grid: CellGrid
    selection_share: float
    selection_epsilon: float

    def clamped_mean(self, rotated: Rows, centres: Vector) -> Vector:
        """Of (B, d') rows, each coordinate held to its interval."""
        interval = 2 * self.grid.half_width
        return np.asarray(np.clip(rotated, centres - interval, centres + interval).mean(axis=0))


def selection_share(rho: float, cells: int, size: int, batch: int, failure: float) -> float:
    """Of a round's rho, for choosing one of so many cells for each of ``size`` coordinates (see *Split* below).

    None where one cell is all there is, for that choice reveals nothing.
    """
    if cells == 1:
        return 0.0
    needed = 8 * math.log(cells * size / failure) / batch
    return min(_MOST_SELECTION, size * needed**2 / (8 * rho))


class WinsorizedRotation(UserLevelStrategy):
    """Mean of user gradients, rotated and clamped coordinate by coordinate to private intervals, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one; n public. Any loss. In a round, (1) the exponential mechanism chooses a cell for
    each of the d' rotated coordinates (score of sensitivity 1), ``d' epsilon_1^2 / 8``-zCDP; (2) coordinates are
    clamped to that cell's centre +- 2 tau', so replacing a user moves its row by at most the diagonal of that box,
    ``4 tau' sqrt(d')`` in l2; nor by more than ``2 C``, as the server clips rows to length C before it rotates them,
    and rotating keeps a difference's length while clamping to a box never adds to it. The mean of B users moves by
    the smaller of both over B, and Gaussian noise makes it zCDP with the rest of the round's rho. With one cell there
    is nothing to choose: the mean is all that a round releases, and is accounted as the Gaussian that it is. The
    rotation's signs are public and drawn without looking at data. A user is in one round an epoch; rho adds up over
    epochs. Every iterate is released; the server is trusted, other nodes may answer anything. *Rounding.* Each of the
    log2 d' <= 30 stages of the transform, and the division, err by 2^-53 of a row's length: by 2^-48 together.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.

    *Split.* The noise falls with the selection's share only as long as cells are found, so it gets what finding them
    takes and no more: the chosen cell's score is within ``(2 / epsilon_1) ln(K d' / failure)`` of the best, and a
    quarter of the users is allowed for that.
    """

    adversary: ClassVar[str] = ADVERSARY
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
        **ROW_MEANINGS,
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
    scheme: RotationScheme

    def _make_scheme(self) -> RotationScheme:
        options, n, p = self.options, self.public.users, self.problem.dimension
        batch = options.cohort(n)
        if batch < 1:
            raise PopulationTooSmall(f"data.users = {n}: {options.rounds} rounds take a user each; use fewer rounds")
        rotation = HadamardRotation(p, self.seed)
        grid, size = self._grid(rotation, batch), rotation.size
        kind = DisjointBatches if grid.cells == 1 else ConcentratedBatches
        sampler = kind(n, batch, options.epochs, self.seed)
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        rho = 1 / (2 * multiplier**2)
        share = selection_share(rho, grid.cells, size, batch, options.failure)
        # In l2: a row within its box, and what one user can move it by.
        diagonal = 4 * grid.half_width * math.sqrt(size)
        moved = min(diagonal, 2 * options.clip_norm)
        return RotationScheme(
            guarantee=sampler.guarantee(multiplier, self.privacy.delta, self.adversary, (TRUST,)),
            ledger=partial(sampler.ledger, multiplier),
            # A clamped row is no longer than (cells + 1) half widths a coordinate; the diagonal is four of them.
            summands=batch,
            spread=(grid.cells + 1) / 4 * diagonal / moved,
            rounding=_ROTATION_ROUNDING,
            sampler=sampler,
            rounds=min(options.rounds, sampler.rounds),
            noise_multiplier=multiplier,
            mechanism=GaussianMechanism(moved / batch, multiplier / math.sqrt(1 - share)),
            rate=options.learning_rate or self._default_step,
            rotation=rotation,
            grid=grid,
            selection_share=share,
            selection_epsilon=math.sqrt(8 * share * rho / size),
        )

    def _grid(self, rotation: HadamardRotation, batch: int) -> CellGrid:
        """Cells as wide as users of a cohort are apart, as far out as their clipped gradients may lie."""
        options, certificate, p = self.options, self.problem.certificate, self.problem.dimension
        deviation = declared_deviation(options, certificate, self.public.min_samples, self.undeclared)
        distance = deviation * (math.sqrt(p) + 3)  # of a user from the mean; rarely more, for normal gradients
        reach = rotation.largest_coordinate(options.clip_norm, batch, options.failure)
        return CellGrid(reach, min(reach, rotation.largest_coordinate(distance, batch, options.failure)))

    def _make_plan(self) -> Plan:
        options, scheme, grid = self.options, self.scheme, self.scheme.grid
        noise = scheme.mechanism.standard_deviation * math.sqrt(self.problem.dimension)
        warnings = []
        if scheme.selection_share == _MOST_SELECTION:
            warnings.append(
                "half of the budget does not suffice to find the coordinates' intervals reliably: use fewer "
                "strategy.rounds, more users or a smaller strategy.clip_norm"
            )
        own: dict[str, Number] = {
            "noise_multiplier": scheme.noise_multiplier,
            "rotated_dimension": scheme.rotation.size,
            "interval": 2 * grid.half_width,
            "cells": grid.cells,
            "selection_epsilon": scheme.selection_epsilon,
        }
        return self._planned(
            scheme.course(options.clip_norm),
            rounds=scheme.rounds,
            cohort=scheme.sampler.batch,
            users_needed=math.ceil(options.rounds / options.epochs),
            noise=noise,
            signal=options.clip_norm,
            numbers=scheme.numbers(own),
            warnings=tuple(warnings),
        )

    def _ask(self, index: int) -> Request:
        computation = Computation("user_gradient", clip_norm=self.options.clip_norm)
        return Request(self.scheme.sampler.cohort(index), computation)

    def _centres(self, index: int, rotated: Vector) -> Vector:
        """(d',) the middle of each coordinate's interval."""
        scheme, grid = self.scheme, self.scheme.grid
        if grid.cells == 1:
            return np.repeat(grid.centres, scheme.rotation.size)
        return grid.select(rotated, scheme.selection_epsilon, self._noise(index, 1))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        rotated = scheme.rotation(clip_rows(gathered.values, self.options.clip_norm))
        clamped = scheme.clamped_mean(rotated, self._centres(index, rotated))
        mean = scheme.mechanism.release(clamped, self._noise(index, 2))
        following = self.problem.domain.project(x - scheme.rate * scheme.rotation.inverse(mean[None])[0])
        return Step(following, following, {"noise_deviation": scheme.mechanism.standard_deviation})
