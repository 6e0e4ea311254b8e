"""Local privacy: each user adds its own noise, and nobody has to be trusted."""

import math
from functools import partial
from typing import ClassVar

from pydantic import Field

from strategies.clipping.clip_facts import ClipNotes
from strategies.core.about import About
from strategies.core.mean_rounds import MeanRounds, PlainDescent
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.scheme import Outline
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation, LocalNoise
from userdp.problems.noise_paths import NoisySteps
from userdp.sampling import DisjointBatches


class LocalDP(Recipe):
    """The mean of user gradients that were clipped and made noisy by the users themselves.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, against everybody but the user's own node, the server
    included. *Why.* Unit: one whole user; relation: replace-one, in the local model: each user's own messages are
    (epsilon, delta)-DP in its data, with whoever reads them, the server included. A user clips to l2 norm C, so its
    data move what it sends by at most 2C, and adds N(0, (2 C z)^2 I) for that; its rounds compose as one Gaussian
    mechanism. Nothing else that depends on its data leaves it: no count of clipped samples or of rows that were not
    finite, and of an error no more than that there was one. What the server does with the messages is post-processing.
    Seeded noise comes from the run's seed, by user and round; secure noise from the operating system of the user's own
    machine.

    *Assumptions.* Each user's own client is honest. The server may be curious, but asks what the plan says: a node
    answers other questions too. In a simulation its noise is seeded; secure noise is its own machine's.
    """

    about: ClassVar[About] = About(
        name="local_dp",
        summary_line="each user adds its own noise; no trust in the server",
        family="local",
        cost="node O(N d) and a noise vector per user, one sum of d numbers up; server O(K d)",
        paper="Duchi, Jordan, Wainwright 2013; Gaussian noise as in Balle, Wang 2018",
        promise="user level, against the server too",
        adversary="against everybody but the user's own node, the server included",
        server_trusted=False,
        with_secure_noise="no seed is sent, each user's machine draws its own noise",
        without_comparison="users would have to trust the server with what they prefer",
        example={"rounds": 3},
        meanings={"noise_per_user": "standard deviation of the noise that each user adds to each coordinate"},
    )

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    rounds: int = Field(1, ge=1, description="Rounds in all.")
    cohort: int | None = Field(None, ge=1, description="Users a round, disjoint within an epoch; default all of them.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")

    def scheme(self, given: Given) -> MeanRounds:
        n, clip = given.users, self.clip_norm
        cohort = self.cohort or n
        epochs = math.ceil(self.rounds / DisjointBatches(n, cohort).rounds_per_epoch)
        sampler = DisjointBatches(n, cohort, epochs, given.seed)
        multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
        of_user = GaussianMechanism(sampler.sensitivity_factor * clip, multiplier)
        deviation, rate = of_user.standard_deviation, self.learning_rate or given.default_step
        noise = deviation * math.sqrt(given.dimension / cohort)

        gradient = Computation("user_gradient", "sum", clip, noise=LocalNoise(deviation, seed=None, round=0))
        assumptions = (
            "each user clips and adds its noise itself",
            "the server asks what the plan says: a node answers other questions too",
            *(() if given.secure else ("noise is simulated from the run's seed",)),
        )
        return MeanRounds(
            price=given.price(sampler, multiplier, assumptions),
            outline=Outline(
                rounds=self.rounds,
                cohort=cohort,
                users_needed=cohort,
                path=NoisySteps(steps=self.rounds, rate=rate, deviation=deviation / math.sqrt(cohort), longest=clip),
                noise=noise,
                signal=clip,
                numbers={
                    "clip_norm": clip,
                    "cohort": cohort,
                    "participations": epochs,
                    "learning_rate": rate,
                    "noise_multiplier": multiplier,
                    "noise_per_user": deviation,
                },
            ),
            new_memory=partial(PlainDescent, rate),
            domain=given.problem.domain,
            sampler=sampler,
            query=lambda _: gradient,
            divisor=sampler.batch,
            mechanism=None,
            noted=ClipNotes(clip, noise, None),
        )
