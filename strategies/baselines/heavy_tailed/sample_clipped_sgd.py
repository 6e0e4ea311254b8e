"""Sample-level baseline: every sample's gradient is clipped, the noisy mean of all samples is followed."""

import math
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from strategies import About, Given, MeanRounds, Price, Recipe
from strategies.baselines.heavy_tailed.estimators import simple_radius
from strategies.baselines.heavy_tailed.options import HeavyTailedOptions, group_warnings
from strategies.baselines.samples.sample_options import MEANINGS, clipped_sum, most_of, samples_of
from userdp.accounting import ONE_GAUSSIAN, Cost, epsilon_of, rho_for
from userdp.mechanisms import GaussianMechanism
from userdp.sampling import DisjointBatches


class SampleClippedSGD(Recipe, HeavyTailedOptions):
    """Projected gradient descent with a clipped, noisy mean of per-sample gradients (all samples, every round).

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, round release, any loss. *Why.* Unit: one sample;
    relation: replace-one; N, the number of samples of all users, is public and divides. Each sample's gradient is
    clipped to l2 norm R, so replacing one sample moves the mean by at most 2R/N. Under ``unit = "user"`` a user holds
    at most max_samples samples, each user's sum is held to norm R max_samples, and the sensitivity is max_samples times
    larger: group privacy, exact for Gaussian noise. A gradient that is not finite counts as zero, and is not counted
    among ``non_finite_users``. T rounds compose as one Gaussian mechanism. Every iterate is released.

    *Assumptions.* N, and for user level `max_samples`, are public. The server is trusted. Nodes clip each sample as
    requested.
    """

    about: ClassVar[About] = About(
        name="sample_clipped_sgd",
        summary_line="mean of clipped per-sample gradients with noise; user level only by group privacy",
        family="sample-level",
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="Zhao, Wu, Liu, Wang, Fan, Li: private optimisation with heavy-tailed data (simple clipping)",
        needs="any loss; public number of samples",
        units=("sample", "user"),
        promise="sample level, or user level by group privacy at a price; against other nodes too",
        example={"rounds": 3},
        meanings=MEANINGS,
    )

    radius: Literal["paper", "directional"] = Field(
        "paper",
        description="How clip_norm is chosen if not given; directional uses the smaller bias that a moment bound in "
        "every direction gives.",
    )
    accounting: Literal["paper", "calibrated"] = Field(
        "calibrated",
        description="paper: zCDP by the paper's formula (epsilon <= 1); calibrated: exact Gaussian composition.",
    )

    def scheme(self, given: Given) -> MeanRounds:
        privacy, samples, group = given.privacy, samples_of(given), most_of(given) or 1
        # What the budget is worth for one sample: zCDP of a group grows with its square.
        rho = rho_for(privacy.epsilon, privacy.delta, "paper" if self.accounting == "paper" else "tight") / group**2
        clip = self.clip_norm or simple_radius(
            samples, given.dimension, self.moment_order, rho, self.moment, self.radius
        )
        rounds, warnings = self.wanted_rounds(given, rho, clip)
        rate = self.rate(given, rounds)
        sampler = DisjointBatches(given.users, given.users, rounds, given.seed)
        if self.accounting == "paper":
            # Each round may spend rho / T: variance 2 R^2 T / (rho N^2), in units of the sensitivity 2 R / N.
            multiplier = math.sqrt(rounds / (2 * rho * group**2))
        else:
            multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        mechanism = GaussianMechanism(2 * clip * group / samples, multiplier)
        gradients, of_group = clipped_sum(given, clip), f"; group privacy for {group} samples"
        price = Price(
            given.promise(
                epsilon_of(Cost(multiplier), rounds, privacy.delta),
                f"{ONE_GAUSSIAN}, composed over rounds" + (of_group if privacy.unit == "user" else ""),
                ("the number of samples is public", "nodes clip each sample as requested, and the server is trusted"),
            ),
            partial(sampler.ledger, multiplier),
            summands=given.users if privacy.unit == "user" else samples,
        )
        return self.followed(
            given,
            sampler,
            mechanism,
            rate,
            price=price,
            query=lambda _: gradients,
            divisor=samples,
            rounds=rounds,
            signal=clip,
            numbers={
                "clip_norm": clip,
                "learning_rate": rate,
                "group": group,
                "samples": samples,
                "noise_multiplier": multiplier,
                "noise_deviation": mechanism.standard_deviation,
                "sample_level_epsilon": epsilon_of(Cost(multiplier * group), rounds, privacy.delta),
            },
            warnings=(*warnings, *group_warnings(group, float(group))),
        )
