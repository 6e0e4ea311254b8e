"""Gradient descent with a smoothly truncated mean of all samples' gradients, coordinate by coordinate."""

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from strategies import About, Given, MeanRounds, Number, Recipe
from strategies.baselines.samples.batch_rounds import SampleRateOptions, noise_numbers, price_of, promised_numbers
from strategies.baselines.samples.sample_options import MEANINGS, most_of, samples_of
from strategies.baselines.smoothed_truncation import LARGEST, truncation_sensitivity
from userdp.accounting import Cost, epsilon_of, rho_for
from userdp.mechanisms import GaussianMechanism
from userdp.nodes import Computation
from userdp.sampling import DisjointBatches


class SmoothedTruncationGD(Recipe, SampleRateOptions):
    """Projected gradient descent with a smoothly truncated, noisy mean of per-sample gradients, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, replace-one, round release, any loss. *Why.* Unit:
    one sample; relation: replace-one; N, the number of samples, is public and divides. Each coordinate of a sample's
    gradient is truncated to ``s 2 sqrt(2)/3``, so replacing a sample moves the mean by at most ``sqrt(d) 4 sqrt(2) s /
    (3 N)`` in l2. Under ``unit = "user"`` a user holds at most max_samples samples, each user's sum is held to that
    many, and the sensitivity is max_samples times larger: group privacy, exact for Gaussian noise. T rounds compose as
    one Gaussian mechanism. Every iterate is released.

    *Assumptions.* N, and for user level `max_samples`, are public. The server is trusted. Nodes truncate each
    sample as requested.
    """

    about: ClassVar[About] = About(
        name="smoothed_truncation_gd",
        summary_line="smoothly truncated mean of all samples' gradients with noise; user level by groups",
        family="sample-level",
        cost="node O(N d), every coordinate of every sample truncated (far slower than a plain gradient), one "
        "sum of d numbers up",
        paper="Wang, Xiao, Devadas, Xu 2020, with the truncation of Catoni, Giulini 2017 and Holland 2019",
        needs="any loss; public number of samples",
        units=("sample", "user"),
        without_secure_noise="how a smoothly truncated gradient is rounded has not been bounded",
        promise="sample level, or user level by group privacy at a price; against other nodes too",
        example={"rounds": 3},
        meanings={
            **MEANINGS,
            "scale": "gradient coordinates well below it count in full",
            "inverse_variance": "of the noise that the truncation is smoothed by",
        },
    )

    rounds: int = Field(20, ge=1, description="T, rounds with all samples.")
    scale: float | None = Field(
        None, gt=0, description="s: gradients well below it count in full; by second_moment if not given."
    )
    second_moment: float = Field(1.0, gt=0, description="v: bound on E of a squared gradient coordinate.")
    inverse_variance: float = Field(2.3, gt=0, description="kappa of the smoothing noise; ln(1/failure) in theory.")
    accounting: Literal["calibrated", "paper"] = Field(
        "calibrated",
        description="calibrated: exact Gaussian composition; paper: zCDP, which is looser. Both are valid.",
    )

    def scheme(self, given: Given) -> MeanRounds:
        privacy, d, samples, group = given.privacy, given.dimension, samples_of(given), most_of(given) or 1
        sampler = DisjointBatches(given.users, given.users, self.rounds, given.seed)
        if self.accounting == "paper":
            multiplier = math.sqrt(self.rounds / (2 * rho_for(privacy.epsilon, privacy.delta)))
        else:
            multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        root = math.sqrt(d * self.rounds * math.log(1 / privacy.delta))
        scale = self.scale or math.sqrt(self.second_moment * samples * privacy.epsilon / root)
        mechanism = GaussianMechanism(truncation_sensitivity(scale, samples, d, group), multiplier)
        rate, largest = self.learning_rate or self.half_step(given), LARGEST * math.sqrt(d)
        # A user's sum travels in units of the scale.
        gradients = Computation(
            "truncated_sample_sum",
            reduce="sum",
            clip_norm=largest * (given.public.max_samples or math.inf),
            parameters={"scale": scale, "inverse_variance": self.inverse_variance},
        )
        rests_on = (
            "the number of samples is public",
            "nodes truncate each sample as requested, and the server is trusted",
        )
        price = price_of(given, sampler, multiplier, rests_on)
        made = price.guarantee
        if group > 1:
            of_group = replace(made, accountant=f"{made.accountant}; group privacy for {group} samples")
            price = replace(price, guarantee=of_group)
        rounds = self.followed(
            given,
            sampler,
            mechanism,
            rate,
            price=price,
            query=lambda _: gradients,
            divisor=samples,
            rounds=self.rounds,
            signal=scale * LARGEST * math.sqrt(d),
            numbers={
                "scale": scale,
                "inverse_variance": self.inverse_variance,
                "learning_rate": rate,
                **noise_numbers(given, mechanism, group),
                **self._epsilons(given, multiplier * group),
                **promised_numbers(sampler, made, multiplier),
            },
        )
        return replace(rounds, mean=lambda total: total * (scale / samples))

    def _epsilons(self, given: Given, alone: float) -> dict[str, Number]:
        """Return the epsilons for one sample, at the noise multiplier ``alone``, and for a whole user of known size."""
        delta, most = given.privacy.delta, given.public.max_samples
        numbers: dict[str, Number] = {"sample_level_epsilon": epsilon_of(Cost(alone), self.rounds, delta)}
        if most is not None:
            numbers["user_level_epsilon"] = epsilon_of(Cost(alone / most), self.rounds, delta)
        return numbers
