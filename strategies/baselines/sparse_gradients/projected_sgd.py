"""Gradient descent on a noisy mean of users' gradients, projected on the set of means of sparse gradients."""

import math
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from strategies import CLIP_FACTS, About, Given, MeanRounds, Number, Recipe, as_is
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors, expected_error
from strategies.baselines.sparse_gradients.sparse_clips import SparselyClippedOptions
from strategies.clipping import SECRET_COHORTS, NoisyMean, rounds_of
from userdp.accounting import Cost
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.nodes import Computation
from userdp.sampling import DisjointBatches

_MARGIN = 1e-12  # A relative margin, so that rounding never takes calibrated noise over the budget


class LaplaceBatches(DisjointBatches):
    """Disjoint batches whose sums get Laplace noise, for pure privacy (delta = 0).

    *Formal guarantees.* Noise multipliers are here the scale of the noise over the l1 sensitivity, so one participation
    is (1 / multiplier)-DP; over the run a user's participations add up. Otherwise those of `DisjointBatches`.
    """

    accountant: ClassVar[str] = "Laplace mechanism, epsilon added up over participations"

    def calibrate(self, epsilon: float, delta: float) -> float:
        """Return the multiplier for ``epochs`` participations at delta = 0; raise `BadInput` for another delta."""
        if not 0 < epsilon < math.inf or delta != 0:
            raise BadInput(f"epsilon = {epsilon}, delta = {delta}: pure privacy has a positive epsilon and delta = 0")
        return self.epochs / epsilon * (1 + _MARGIN)

    def cost(self, noise_multiplier: float) -> Cost:
        return Cost(pure_epsilon=1 / noise_multiplier)


class ProjectedSGD(Recipe, SparselyClippedOptions):
    """Clipped mean of user gradients plus noise, projected on the means that sparse gradients can have, every round.

    With s-sparse gradients of samples, of l2 norm at most L, a user's average gradient lies in the l1 ball of radius
    ``L sqrt(s)`` and in the l2 ball of radius L, however many samples it averages. Each user is clipped to both, so the
    true mean of a cohort lies there too. Projecting the noisy mean never takes it further from any point there, and
    leaves an error of at most ``sqrt(2 L sqrt(s) ||noise||_inf)``, in which the dimension counts by its logarithm. A
    loss whose gradients are not that sparse is biased by the l1 clip, and protected all the same.

    *Formal guarantees.* *Claim.* For delta > 0 that of `dp_fed_sgd`. For delta = 0 pure epsilon, replace-one, disjoint
    cohorts. *Why.* Unit: one whole user; relation: replace-one with n public (add-or-remove for poisson and
    allocation). With delta > 0: each user's row has l2 norm at most L, and the Gaussian noise, the samplers and their
    accounting are those of dp_fed_sgd. With delta = 0: each row has l1 norm at most ``L sqrt(s)``, so replacing a user
    moves the mean of B users by at most ``2 L sqrt(s) / B`` in l1; Laplace noise makes every round purely private, a
    user's rounds add up, and disjoint cohorts compose in parallel. The projection sees only what is noisy already.
    Every iterate is released: nodes are protected from each other; the server is trusted. Nodes clip and sum; an answer
    larger than clipped users can add up to, in either norm, is refused. If samples' gradients have s non-zeros and norm
    at most L, users' averages lie in both balls whatever their size, so neither clip nor projection costs accuracy.

    *Assumptions.* Those of `dp_fed_sgd`. A wrong s biases the gradient and protects as before. More on
    `strategies/baselines/sparse_gradients/README.md`.
    """

    about: ClassVar[About] = About(
        name="projected_sgd",
        summary_line="noisy mean of user gradients, projected on what sparse gradients can average to",
        family="sparse gradients",
        cost="node O(N d), one sum of d numbers up; server O(K d + d log d)",
        paper="Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 1), every round",
        needs="sparse gradients of samples (one_hot losses are certified)",
        with_secure_noise=SECRET_COHORTS,
        pure=True,
        promise="user level, against other nodes too; also pure (delta = 0), by Laplace noise",
        example={"rounds": 3, "sparsity": 2},
        meanings={
            "l1_clip_norm": "l1 norm that gradients are clipped to as well",
            "sparsity": "most non-zeros of a sample's gradient",
            "noise_before": "expected l2 norm of the noise before the projection",
        },
        notes=CLIP_FACTS,
    )

    projection: Literal["l1l2", "l1", "none"] = Field(
        "l1l2",
        description="What the noisy mean is projected on: the l1 ball of radius L sqrt(s), within the l2 ball of "
        "radius L (l1l2) or not (l1); none: noise as it is, to compare with.",
    )

    def scheme(self, given: Given) -> MeanRounds:
        if self.noise_corrected and self.projection != "none":
            raise BadInput(
                f"strategy.noise_corrected with projection = {self.projection!r}: how much noise a projection "
                "leaves is not known; set projection = 'none', or leave it out"
            )
        members, p = self.members(given), given.dimension
        gradients = Computation("user_gradient", "sum", self.clip_norm, l1_norm=members.l1_norm)
        mean = self._mean(given, members)
        ball = None if self.projection == "none" else self.projection
        return rounds_of(
            given,
            self,
            mean,
            gradients,
            given.default_step,
            gradient=as_is if ball is None else partial(members.project, ball=ball),
            noise=None if ball is None else expected_error(mean.mechanism, members, p, ball),
        )

    def _mean(self, given: Given, members: SparseVectors) -> NoisyMean:
        """Return the mean of a round before it is projected: with Laplace noise for pure privacy."""
        sampler, privacy = self.sampler(given), given.privacy
        mechanism: GaussianMechanism | LaplaceMechanism
        if privacy.delta > 0:
            mechanism = given.mean_mechanism(sampler, self.clip_norm)
            multiplier = mechanism.noise_multiplier
        elif self.sampling == "disjoint":
            users, cohort = sampler.users, self.cohort or sampler.users
            sampler = LaplaceBatches(users, cohort, -(-self.rounds // (users // cohort)), given.seed)
            multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
            sensitivity = sampler.sensitivity_factor * members.l1_norm / sampler.expected_batch
            mechanism = LaplaceMechanism(sensitivity, 1 / multiplier)
        else:
            raise BadInput(
                f"strategy.sampling = {self.sampling!r} with privacy.delta = 0: pure privacy is accounted for "
                "'disjoint' cohorts only"
            )
        numbers: dict[str, Number] = {
            "sparsity": members.sparsity,
            "l1_clip_norm": members.l1_norm,
            "noise_before": mechanism.standard_deviation * math.sqrt(given.dimension),
        }
        return NoisyMean(sampler, mechanism, multiplier, given.price(sampler, multiplier), numbers)
