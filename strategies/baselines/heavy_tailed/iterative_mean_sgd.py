"""Sample-level descent along the iterative mean: a centre deep among noisy means of secret random groups of samples."""

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies import About, Given, MeanRounds, Price, Recipe
from strategies.baselines.composition import calibrate_steps, share_of_group, step_budget
from strategies.baselines.heavy_tailed.depth import geometric_median
from strategies.baselines.heavy_tailed.estimators import deep_centre, group_radius
from strategies.baselines.heavy_tailed.options import HeavyTailedOptions, group_warnings
from strategies.baselines.heavy_tailed.partitions import group_size, shuffled, spread, spread_length
from strategies.baselines.heavy_tailed.shuffling import GROUP_ACCOUNTING, GroupAccounting, group_rho
from strategies.baselines.samples.sample_options import MEANINGS, clipped_sum, declared, most_of, samples_of
from userdp.accounting import ONE_GAUSSIAN, Cost, Guarantee, Ledger, Privacy, calibrate_noise, epsilon_of, rho_for
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.randomness import stream
from userdp.sampling import DisjointBatches

_PARALLEL = f"{ONE_GAUSSIAN}, parallel over groups and composed over rounds"
_SHUFFLED = "amplification by shuffling, composed over rounds as the worst such mechanisms"
_SECRET_FROM = "against whoever sees every iterate and knows no sample's group; server and nodes are trusted"
_SECRET = "the random groups of every round stay secret: nodes do not tell those of their samples"


@dataclass(frozen=True)
class Spending:
    """The division of a budget over the rounds."""

    accounting: GroupAccounting
    rho: float  # of each group, for one sample, a round
    cost: Cost  # of one round, for the unit of privacy

    @property
    def parallel(self) -> bool:
        """True if the groups may be known."""
        return self.accounting == "parallel"

    def of_sample(self, rounds: int, delta: float, group: int, weight: float) -> float:
        """Epsilon for one sample, where ``group`` are protected, which move the means ``weight`` times as far."""
        if self.parallel:
            one = replace(self.cost, noise_multiplier=self.cost.noise_multiplier * weight)
        else:
            each, each_delta = share_of_group(self.cost.pure_epsilon, self.cost.failure_delta, group)
            one = Cost(pure_epsilon=each, failure_delta=each_delta)
        return epsilon_of(one, rounds, delta)


def spending(accounting: GroupAccounting, privacy: Privacy, rounds: int, groups: int, together: int) -> Spending:
    """Return the budget of each of k groups in each of T rounds; `BadInput` where the accounting does not hold.

    ``together`` slots are replaced together; "parallel" spreads them over groups.
    """
    epsilon, delta = privacy.epsilon, privacy.delta
    if accounting == "parallel":
        multiplier = calibrate_noise(epsilon, delta, rounds)
        rho = 1 / (2 * (multiplier * spread_length(together, groups)) ** 2)
        return Spending(accounting, rho, Cost(noise_multiplier=multiplier))
    if accounting == "paper_shuffle":
        each, each_delta = step_budget(epsilon, delta, rounds)
    else:
        each_delta = delta / (2 * rounds)
        each = calibrate_steps(epsilon, delta, rounds, each_delta)
    rho = group_rho(*share_of_group(each, each_delta, together), groups, accounting, "exact")
    return Spending(accounting, rho, Cost(pure_epsilon=each, failure_delta=each_delta))


class IterativeMeanSGD(Recipe, HeavyTailedOptions):
    """Projected descent along a centre deep among noisy means of random groups of samples.

    How the federation gives the groups: every user has max_samples slots, filled by its samples in their order, empty
    slots count as zero vectors. Each round the server draws a uniformly random partition of all ``n max_samples`` slots
    into k groups of EXACTLY the same number of slots (a random few are left out) and tells each node the groups of its
    own users' slots, and no others. A node clips each sample, and returns k sums over all of its users, which the
    server adds up: it sees k sums of clipped gradients, and knows the partition. Each sum is divided by the same public
    number m, the samples that a group has on average, so group means differ in how many samples they hold (not at all
    if every user holds max_samples). Privacy does not change, since m does not depend on data; nor does the bound that
    the paper uses for the variance of a group mean, ``E <u, Y>^2 / m <= M^2 / m``, since empty slots are zero. No
    user's number of samples is told or needed. Bounds far above what users hold make messages long and groups uneven.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, round release, any loss. *Why.* Unit: one sample;
    relation: replace-one; N and max_samples are public. A sample is clipped to l2 norm R and lies in at most one group,
    so it moves the k means, as one vector, by at most 2R/m. "parallel": the k noisy means are one Gaussian mechanism,
    and T rounds compose as one. Under ``unit = "user"`` the partition spreads each user's slots over the groups (and is
    not of exactly equal groups, which "parallel" does not need), so that with c_j slots in group j a user moves the k
    means by at most ``(2R/m) sqrt(sum c_j^2)``: sqrt(max_samples) times as far as a sample where k >= max_samples, and
    max_samples / sqrt(k) times where k divides max_samples, so that the noise of the mean of all groups is then no
    larger than that of `sample_clipped_sgd`. "calibrated_shuffle" and "paper_shuffle": since all groups have one number
    of slots, the partition is uniform, and drawn anew every round, the amplification of `heavy_tailed.shuffling` holds
    with slots as records, empty or not; rounds compose as the worst (e, d)-DP mechanisms do, and user level follows by
    (e, d) group privacy. The partition must then stay secret: nodes know the groups of their own samples, so this
    promise is NOT against other nodes. All that follows the noisy means is post-processing; every iterate is released.
    Slots and their accounting are ours, and for fixed groups amplification by shuffling would be false.

    *Assumptions.* N and `max_samples` are public. The server is trusted. Nodes clip each sample as requested. By
    shuffling: groups stay secret, and nodes, which know those of their own samples, are trusted; "auto" shuffles
    only where that needs less noise, which the printed guarantee then says.
    """

    about: ClassVar[About] = About(
        name="iterative_mean_sgd",
        summary_line="centre deep among noisy means of secret random groups of clipped samples",
        family="sample-level",
        cost="node O(N d), k sums of d numbers up (k groups); server O(k^2 d) for each inner step",
        compares_users=True,
        paper="Zhao, Wu, Liu, Wang, Fan, Li: private optimisation with heavy-tailed data (iterative mean)",
        needs="any loss; public number of samples, in all and at most of a user",
        units=("sample", "user"),
        without_secure_noise="which samples share a group comes from the seed",
        promise="sample level, or user level by group privacy at a price; against other nodes too, unless accounted by "
        "shuffling",
        example={"rounds": 3},
        meanings={
            **MEANINGS,
            "groups": "random groups that samples are split into, anew each round",
            "group_samples": "samples of a group on average, the public divisor of its sum",
            "group_rho": "zero-concentrated budget of one group's mean in one round, for one sample",
            "accounting": "how the groups are accounted",
        },
    )

    groups: int = Field(20, ge=1, description="k: groups of samples; fewer give less noise, more resist more outliers.")
    share: float = Field(
        0.5, gt=0.1, le=0.9, description="Share of groups that must lie beyond the centre for it to move; 0.9: paper's."
    )
    centre: Literal["deep", "geometric_median", "coordinate_median", "mean"] = Field(
        "deep", description="What is followed of the noisy group means: the paper's deep centre, or a baseline."
    )
    inner_steps: int = Field(50, ge=1, description="Steps towards the centre, at most; they cost no privacy.")
    accounting: Literal["auto", "parallel", "calibrated_shuffle", "paper_shuffle"] = Field(
        "auto",
        description="parallel: a sample is in one group; the shuffles also count that its group is secret (from about "
        "1000 groups on); auto: the least noise of those that hold.",
    )

    def scheme(self, given: Given) -> MeanRounds:
        users, privacy, k = given.users, given.privacy, self.groups
        samples, slots = self._checked_samples(given)
        group = most_of(given) or 1
        clip, rounds, warnings = self._tuned(given, group)
        rate = self.rate(given, rounds)
        spent = self._spend(privacy, rounds, group)
        apart = privacy.unit == "user" and spent.parallel
        # How much farther the unit of privacy moves the means, as one vector, than one sample does.
        weight = spread_length(group, k) if apart else float(group)
        # Samples of a group on average: public, whatever the partition.
        divisor = samples / k if apart else samples * group_size(users, slots, k) / (users * slots)
        mechanism = GaussianMechanism(2 * clip * weight / divisor, 1 / (math.sqrt(2 * spent.rho) * weight))
        alone = None if spent.parallel else mechanism.cost  # to whoever knows the groups
        sums, draw = clipped_sum(given, clip), spread if apart else shuffled
        promise = self._promise(given, spent, rounds, group, spread=apart)
        made = self.followed(
            given,
            DisjointBatches(users, users, rounds, given.seed),
            mechanism,
            rate,
            price=Price(promise, partial(Ledger, users, spent.cost, rounds, drawn=alone)),
            # Each node is told the groups of its own users' samples only: see `Wire.contents`.
            query=lambda index: replace(sums, partition=draw(users, slots, k, stream(given.seed, "sampling", index))),
            divisor=divisor,
            rounds=rounds,
            users_needed=math.ceil(k / slots),
            groups=k,
            signal=clip,
            numbers={
                "clip_norm": clip,
                "learning_rate": rate,
                "group": group,
                "samples": samples,
                "groups": k,
                "group_samples": divisor,
                "group_rho": spent.rho,
                "accounting": spent.accounting,
                "noise_deviation": mechanism.standard_deviation,
                "sample_level_epsilon": spent.of_sample(rounds, privacy.delta, group, weight),
            },
            warnings=(*warnings, *group_warnings(group, weight)),
        )
        return replace(made, gradient=partial(self._centre_of, given.seed))

    def _checked_samples(self, given: Given) -> tuple[int, int]:
        """(samples of all users together, most of one user)."""
        samples, slots = samples_of(given), declared(given, "max_samples")
        if samples > given.users * slots:
            raise BadInput(
                f"data.samples = {samples}: more than {given.users} users of at most {slots} "
                "samples can hold; correct data.samples or data.max_samples"
            )
        return samples, slots

    def _tuned(self, given: Given, group: int) -> tuple[float, int, tuple[str, ...]]:
        """(R, T, warnings): by the rho of the mean of all groups; the paper's is epsilon^2, with its accounting."""
        privacy = given.privacy
        if self.accounting == "paper_shuffle":
            rho = (privacy.epsilon / group) ** 2
        else:
            rho = rho_for(privacy.epsilon, privacy.delta) / spread_length(group, self.groups) ** 2 / self.groups
        clip = self.clip_norm or group_radius(samples_of(given), given.dimension, self.moment_order, rho, self.moment)
        return clip, *self.wanted_rounds(given, rho, clip)

    def _spend(self, privacy: Privacy, rounds: int, group: int) -> Spending:
        """The accounting asked for, or the one with the least noise of those that hold."""
        if self.accounting != "auto":
            return spending(self.accounting, privacy, rounds, self.groups, group)
        holding = [spending("parallel", privacy, rounds, self.groups, group)]
        for accounting in GROUP_ACCOUNTING[1:]:
            with suppress(BadInput):
                holding.append(spending(accounting, privacy, rounds, self.groups, group))
        return max(holding, key=lambda spent: spent.rho)

    def _promise(self, given: Given, spent: Spending, rounds: int, group: int, *, spread: bool) -> Guarantee:
        accountant = _PARALLEL if spent.parallel else _SHUFFLED
        if given.privacy.unit == "user":
            accountant += f"; group privacy for {group} samples{', spread over groups' if spread else ''}"
        assumptions = (
            "the number of samples is public",
            "nodes clip each sample as requested, and the server is trusted",
        )
        made = given.promise(epsilon_of(spent.cost, rounds, given.privacy.delta), accountant, assumptions)
        return made if spent.parallel else replace(made, adversary=_SECRET_FROM).assuming(_SECRET)

    def _centre_of(self, seed: int, index: int, released: Vector) -> Vector:
        """Post-processing of the noisy (k, d) group means of a round."""
        means = released.reshape(self.groups, -1)
        if self.centre == "geometric_median":
            return geometric_median(means)
        if self.centre == "coordinate_median":
            return np.asarray(np.median(means, axis=0))
        if self.centre == "mean":
            return np.asarray(means.mean(axis=0))
        return deep_centre(means, self.share, self.inner_steps, rng=stream(seed, "noise", index, 1)).point
