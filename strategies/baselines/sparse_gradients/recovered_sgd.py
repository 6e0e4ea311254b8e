"""Gradient descent on means of users' gradients that are recovered from a few noisy random measurements."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies import CLIP_FACTS, About, Given, MeanRounds, Number, Recipe
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors, expected_error
from strategies.baselines.sparse_gradients.recovery import TOLERANCE, Matrix, basis_pursuit, gershgorin_stretch
from strategies.baselines.sparse_gradients.sparse_clips import SparselyClippedOptions
from strategies.clipping import NoisyMean, rounds_of
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.nodes import Computation
from userdp.randomness import stream
from userdp.sampling import Sampler

_MATRIX = 4
"""Label of the stream that the matrix comes from; `stopped_sgd` has the ones below."""


@dataclass(frozen=True)
class Measurements:
    """A public matrix, how it measures a round's mean, and how that is recovered."""

    matrix: Matrix  # (m, d)
    members: SparseVectors  # s and L
    divisor: float  # public number of users in a round

    def of(self, total: Vector) -> Vector:
        """(m,) measured mean of users whose rows add up to ``total``."""
        return np.asarray(self.matrix @ total / self.divisor)

    def recover(self, measured: Vector) -> Vector:
        """(d,) of the least l1 norm among what has these measurements, put where means lie."""
        found = basis_pursuit(self.matrix, measured)
        # What the iterations leave instead of zero.
        found[np.abs(found) <= TOLERANCE * np.abs(found).max()] = 0.0
        return self.members.settled(found)


class RecoveredSGD(Recipe, SparselyClippedOptions):
    """Noise on m random measurements of users' mean gradient, from which the least l1 norm recovers it, every round.

    Users' gradients are clipped as those of `projected_sgd`: to l2 norm L, and to l1 norm ``L sqrt(s)``. The server
    adds them up, measures the mean by one public matrix of normal entries, adds noise to the m numbers, and takes the
    vector of the least l1 norm that has these measurements. Noise has m entries instead of d, and in theory the error
    depends on ``ln(d / s)`` instead of ``ln d``. In few dimensions, where measurements do not pay, the noisy mean is
    projected.

    *Formal guarantees.* *Claim.* That of `dp_fed_sgd`. *Why.* Unit: one whole user; relation: replace-one with n public
    (add-or-remove for poisson and allocation). The matrix A follows from the seed alone, and may be known. For every
    row g of l2 norm at most L and l1 norm at most ``L sqrt(s)``, ``||A g||_2 <= kappa L`` with ``kappa^2 = c^2 + (s -
    1) mu``, c the longest column of A and mu the largest inner product of two: ``||A g||^2 <= (c^2 - mu) ||g||_2^2 + mu
    ||g||_1^2``, as ``mu <= c^2``. So a user moves the measured sum by at most ``kappa L``, or twice that if replaced;
    the Gaussian noise is for that, and samplers and accounting are those of dp_fed_sgd. kappa is computed from the
    matrix of the run: nothing rests on an isometry that may fail, nor on true sparsity. Recovery sees only what is
    noisy. Where measurements do not pay A is the identity, and kappa is 1. Every iterate is released: nodes are
    protected from each other; the server is trusted. Nodes clip and sum.

    *Assumptions.* Those of `dp_fed_sgd`. A wrong s biases the gradient and protects as before. More on
    `strategies/baselines/sparse_gradients/README.md`.
    """

    about: ClassVar[About] = About(
        name="recovered_sgd",
        summary_line="noise on random measurements of users' mean gradient, recovered by the least l1 norm",
        family="sparse gradients",
        cost="node O(N d), one sum of d numbers up; server O(m d^2) once, O(m^3 + i m d) a round of i iterations",
        paper="Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 2), every round, for a stretch that is proven",
        needs="sparse gradients of samples (one_hot losses are certified)",
        without_secure_noise="how measurements of a sum are rounded has not been bounded",
        promise="user level, against other nodes too",
        example={"rounds": 3, "sparsity": 1, "measurements": 1, "clip_norm": 0.7},
        meanings={
            "l1_clip_norm": "l1 norm that gradients are clipped to as well",
            "sparsity": "most non-zeros of a sample's gradient",
            "measurements": "m, numbers of a round that get noise; as many as the model has where none are taken",
            "stretch": "kappa: how much longer a measured gradient can be than the clip",
        },
        notes=CLIP_FACTS,
    )

    measurements: int | None = Field(
        None,
        ge=1,
        description="m; as many as balance their noise and what they leave open, if not given, or none where m ln(m)^2 "
        "exceeds the model's entries. As many as these, or more, are none.",
    )

    def scheme(self, given: Given) -> MeanRounds:
        if self.noise_corrected:
            raise BadInput(
                "strategy.noise_corrected = true: how much noise a recovery leaves is not known; leave it out"
            )
        members, sampler = self.members(given), self.sampler(given)
        count = self._count(given, sampler, members.sparsity)
        gradients = Computation("user_gradient", "sum", self.clip_norm, l1_norm=members.l1_norm)
        matrix, stretch = None, 1.0
        if count < given.dimension:
            rng = stream(given.seed, "sampling", _MATRIX)
            matrix = rng.normal(scale=1 / math.sqrt(count), size=(count, given.dimension))
            stretch = gershgorin_stretch(matrix, members.sparsity)
        mechanism = given.mean_mechanism(sampler, stretch * self.clip_norm)
        multiplier = mechanism.noise_multiplier
        numbers: dict[str, Number] = {
            "sparsity": members.sparsity,
            "l1_clip_norm": members.l1_norm,
            "measurements": count,
            "stretch": stretch,
        }
        mean = NoisyMean(sampler, mechanism, multiplier, given.price(sampler, multiplier), numbers)
        recover: Callable[[Vector], Vector] = members.project
        if matrix is None:
            mean_of, noise = None, expected_error(mechanism, members, given.dimension)
        else:
            measured = Measurements(matrix, members, sampler.expected_batch)
            recover, mean_of = measured.recover, measured.of
            noise = min(mechanism.standard_deviation * math.sqrt(count), 2 * members.norm)
        follow = given, self, mean, gradients, given.default_step
        rounds = rounds_of(*follow, gradient=lambda _, released: recover(released), noise=noise)
        return replace(rounds, mean=mean_of)

    def _count(self, given: Given, sampler: Sampler, sparsity: int) -> int:
        """m: as set, or ``B sqrt(2 s ln(d / s)) / z``, with B users per round and noise of multiplier z; d for none.

        It is the rule of Algorithm 2, with a round's epsilon, ``sqrt(2 ln(1 / delta)) / z``, in place of the run's.
        """
        d = given.dimension
        if self.measurements is not None:
            return min(self.measurements, d)
        if sparsity >= d:
            return d
        multiplier = given.mean_mechanism(sampler, 1.0).noise_multiplier
        count = math.ceil(sampler.expected_batch * math.sqrt(2 * sparsity * math.log(d / sparsity)) / multiplier)
        return d if d < max(count * math.log(count) ** 2, count + 1) else count
