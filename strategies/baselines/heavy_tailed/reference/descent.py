"""Private descents on plain arrays, as the paper states them: clipped, and along iterative means."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.composition import step_budget
from strategies.baselines.heavy_tailed.estimators import RadiusForm, group_radius, simple_radius
from strategies.baselines.heavy_tailed.options import wanted_rounds
from strategies.baselines.heavy_tailed.reference.estimators import iterative_mean, simple_clip_mean
from strategies.baselines.heavy_tailed.shuffling import GroupAccounting, group_rho
from strategies.baselines.samples.sample_options import whole_rounds
from userdp.accounting import check_positive, rho_for
from userdp.arrays import Vector

Gradients = Callable[[Vector], NDArray[np.float64]]
"""(d,) model -> (n, d) gradients of the samples."""

Projection = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Descent:
    """The numbers of a run, all from public facts."""

    clip_norm: float  # R
    rounds: int  # T, at least 1
    wanted_rounds: float  # T before it was made a whole number within its cap
    step_size: float  # ``1 / (smoothness sqrt(2 T))``
    rho: float  # that one round may spend: on its mean, or on each of its groups


def simple_descent(
    samples: int,  # n
    dimension: int,  # d
    order: float,  # p, of the bounded moment
    epsilon: float,  # of the whole run; at most 1 for the form "paper"
    delta: float,  # of the whole run
    *,
    smoothness: float,  # lambda, of EVERY sample's loss (the proof needs more than the mean's)
    diameter: float,  # L, of the domain
    moment: float = 1.0,  # M
    form: Literal["tight", "paper"] = "paper",  # of the conversion from zCDP, as `rho_for` has it
    radius: RadiusForm = "paper",  # as `simple_radius` has it
    paper_units: bool = False,  # M = 1 in R and lambda L = 1 in T, as printed; correct if units are chosen so
    max_rounds: int | None = None,  # cap on T
) -> Descent:
    """The paper's numbers for descent by `simple_clip_mean` (its equations 15 and 19, and Theorem 4).

    *Formal guarantees.* T rounds of rho / T compose to rho-zCDP, which is (epsilon, delta)-DP by `rho_for`.

    Raises `BadInput` for an argument out of range.
    """
    check_positive(smoothness=smoothness, diameter=diameter)
    rho = rho_for(epsilon, delta, form)
    clip = simple_radius(samples, dimension, order, rho, 1.0 if paper_units else moment, radius)
    wanted = wanted_rounds(samples, dimension, rho, clip, 1.0 if paper_units else smoothness * diameter)
    rounds = whole_rounds(wanted, max_rounds)
    return Descent(clip, rounds, wanted, 1 / (smoothness * math.sqrt(2 * rounds)), rho / rounds)


def iterative_descent(
    samples: int,  # n
    dimension: int,  # d
    order: float,  # p
    epsilon: float,  # of the whole run
    delta: float,  # of the whole run
    *,
    groups: int,  # k
    smoothness: float,  # lambda
    diameter: float,  # L
    moment: float = 1.0,  # M
    accounting: GroupAccounting = "parallel",  # of the groups
    form: Literal["tight", "paper"] = "paper",  # as `rho_for` has it
    paper_units: bool = False,  # as `simple_descent` has it
    max_rounds: int | None = None,  # cap on T
) -> Descent:
    """The numbers for descent by `iterative_mean`.

    *Formal guarantees.* "parallel": T rounds of rho / T on each group compose to rho-zCDP. By shuffling: each round is
    (e, d)-DP with the `step_budget` of T rounds, which compose to (epsilon, delta) by advanced composition.

    With "parallel" (ours), R and T follow rho / k, that of the mean of all groups. By shuffling they are the paper's,
    ``R = sqrt(d) (n epsilon / sqrt(d))^(1/p)`` and ``T = n^2 epsilon^2 / (d R^2)``, which ignore delta. Raises
    `BadInput`: an argument out of range, or outside the region in which the accounting holds.
    """
    check_positive(smoothness=smoothness, diameter=diameter)
    parallel = accounting == "parallel"
    rho = rho_for(epsilon, delta, form) / groups if parallel else epsilon**2
    clip = group_radius(samples, dimension, order, rho, 1.0 if paper_units else moment)
    wanted = wanted_rounds(samples, dimension, rho, clip, 1.0 if paper_units else smoothness * diameter)
    rounds = whole_rounds(wanted, max_rounds)
    each = (
        rho * groups / rounds if parallel else group_rho(*step_budget(epsilon, delta, rounds), groups, accounting, form)
    )
    return Descent(clip, rounds, wanted, 1 / (smoothness * math.sqrt(2 * rounds)), each)


def descend(
    gradients: Gradients,
    mean: Callable[[NDArray[np.float64]], Vector],
    project: Projection,
    start: Vector,
    rounds: int,
    step_size: float,
) -> Vector:
    """Projected descent along ``mean`` of the samples' gradients; the average of the points they were taken at.

    The last step is not taken: the average does not hold where it would lead. It is paid for nevertheless.
    """
    model = np.array(start, dtype=np.float64)
    total = np.zeros_like(model)
    for left in range(rounds, 0, -1):
        total += model
        if left > 1:
            model = project(model - step_size * mean(gradients(model)))
    return np.asarray(total / rounds)


def dp_sco_clip(
    gradients: Gradients, project: Projection, start: Vector, descent: Descent, rng: np.random.Generator
) -> Vector:
    """(d,): descent along `simple_clip_mean` (Algorithm 1 with Algorithm 2).

    *Formal guarantees.* ``descent.rounds * descent.rho``-zCDP for one replaced sample, whatever the loss: later rounds
    start from what was released.

    ``gradients`` are of all samples at a model, ``project`` is on the domain, ``start`` (d,) lies in it and must not
    depend on private data, and ``descent`` comes from `simple_descent`.
    """
    mean = partial(simple_clip_mean, clip_norm=descent.clip_norm, rho=descent.rho, rng=rng)
    return descend(gradients, mean, project, start, descent.rounds, descent.step_size)


def dp_sco_iterative(
    gradients: Gradients,  # of all samples at a model
    project: Projection,  # on the domain
    start: Vector,  # (d,) in the domain, not depending on private data
    descent: Descent,  # from `iterative_descent`, for the same number of groups
    groups: int,  # k
    rng: np.random.Generator,  # of partitions, noise and starts
    *,
    share: float = 0.5,  # see `strategies.baselines.heavy_tailed.estimators.deep_centre`
    steps: int = 100,  # of each round's inner iteration
) -> Vector:
    """(d,): descent along `iterative_mean`, with a fresh partition every round (Algorithm 1 with Algorithm 3).

    *Formal guarantees.* As `iterative_descent` has it; the partitions are drawn from ``rng``, secret and fresh.
    """
    clip, rho = descent.clip_norm, descent.rho
    mean = partial(iterative_mean, clip_norm=clip, groups=groups, rho=rho, rng=rng, share=share, steps=steps)
    return descend(gradients, mean, project, start, descent.rounds, descent.step_size)
