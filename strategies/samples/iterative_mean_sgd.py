"""Sample-level descent along the iterative mean: a centre deep among noisy means of secret random groups of samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Step
from strategies.samples.heavy_tailed import HeavyTailedOptions, chosen_rate, chosen_rounds, group_warnings
from strategies.samples.sample_strategy import OutputAverage, Rounds, SampleScheme, SampleStrategy
from strategies.wire.replies import Gathered, Request
from userdp.accounting import (
    Cost,
    Guarantee,
    Ledger,
    Privacy,
    calibrate_noise,
    calibrate_steps,
    epsilon_of,
    rho_for,
    share_of_group,
)
from userdp.accounting.composition import step_budget
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.accounting.shuffling import GROUP_ACCOUNTING, GroupAccounting, group_rho
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.estimators.depth import geometric_median
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.partition import Partition, group_size, spread_length
from userdp.papers.heavy_tailed.estimators import deep_centre, group_radius
from userdp.randomness import stream

_PARALLEL = f"{ONE_GAUSSIAN}, parallel over groups and composed over rounds"
_SHUFFLED = "amplification by shuffling, composed over rounds as the worst such mechanisms"
_SECRET_FROM = "against whoever sees every iterate and knows no sample's group; server and nodes are trusted"
_SECRET = "the random groups of every round stay secret: nodes do not tell those of their samples"


class IterativeMeanOptions(HeavyTailedOptions):
    """Settings of `IterativeMeanSGD`."""

    groups: int = Field(20, ge=1, description="k: groups of samples; fewer give less noise, more resist more outliers.")
    share: float = Field(
        0.5, gt=0.1, le=0.9, description="Share of groups that must lie beyond the centre for it to move; 0.9: paper's."
    )
    centre: Literal["deep", "geometric_median", "coordinate_median", "mean"] = Field(
        "deep",
        description="What is followed of the noisy group means: the paper's deep centre, or a baseline.",
    )
    inner_steps: int = Field(50, ge=1, description="Steps towards the centre, at most; they cost no privacy.")
    accounting: Literal["auto", "parallel", "calibrated_shuffle", "paper_shuffle"] = Field(
        "auto",
        description="parallel: a sample is in one group; the shuffles also count that its group is secret (from about "
        "1000 groups on); auto: the least noise of those that hold.",
    )


@dataclass(frozen=True)
class Spending:
    """How a budget is spent over the rounds.

    Attributes:
        accounting: which.
        rho: of each group, for one sample, a round.
        cost: of one round, for the unit of privacy.
    """

    accounting: GroupAccounting
    rho: float
    cost: Cost


def spending(accounting: GroupAccounting, privacy: Privacy, rounds: int, groups: int, together: int) -> Spending:
    """What each group may spend in each of ``rounds`` rounds.

    Args:
        accounting: which.
        privacy: the budget.
        rounds: T.
        groups: k.
        together: slots that are replaced together, spread over groups under "parallel".

    Raises:
        BadInput: the accounting does not hold here.
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


@dataclass(frozen=True, kw_only=True)
class GroupedScheme(SampleScheme):
    """A `SampleScheme` of noisy means of random groups of samples; ``divisor`` is what a group holds on average.

    Attributes:
        slots: most samples of a user, each with its group.
        spending: how the budget is spent over the rounds.
        spread: whether a user's slots are spread over the groups, rather than all slots partitioned uniformly.
        weight: how much farther the unit of privacy moves the means, as one vector, than one sample does.
    """

    slots: int
    spending: Spending
    spread: bool
    weight: float


class IterativeMeanSGD(SampleStrategy):
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

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, round release, any loss. *Why.* Unit: one
    sample; relation: replace-one; N and max_samples are public. A sample is clipped to l2 norm R and lies in at
    most one group, so it moves the k means, as one vector, by at most 2R/m. "parallel": the k noisy means are one
    Gaussian mechanism, and T rounds compose as one. Under ``unit = "user"`` the partition spreads each user's slots
    over the groups (and is not of exactly equal groups, which "parallel" does not need), so that with c_j slots in
    group j a user moves the k means by at most ``(2R/m) sqrt(sum c_j^2)``: sqrt(max_samples) times as far as a
    sample where k >= max_samples, and max_samples / sqrt(k) times where k divides max_samples, so that the noise of
    the mean of all groups is then no larger than that of `sample_clipped_sgd`. "calibrated_shuffle" and
    "paper_shuffle": since all groups have one number of slots, the partition is uniform, and drawn anew every
    round, the amplification of `userdp.accounting.shuffling` holds with slots as records, empty or not; rounds
    compose as the worst (e, d)-DP mechanisms do, and user level follows by (e, d) group privacy. The partition must
    then stay secret: nodes know the groups of their own samples, so this promise is NOT against other nodes. All
    that follows the noisy means is post-processing; every iterate is released; the server is trusted, nodes clip
    and sum as told. Slots and their accounting are ours, and for fixed groups amplification by shuffling would be
    false.

    *Assumptions.* N and `max_samples` are public. The server is trusted. Nodes clip each sample as told. By
    shuffling: groups stay secret, and nodes, which know those of their own samples, are trusted; "auto" shuffles
    only where that needs less noise, which the printed guarantee then says.
    """

    name: ClassVar[str] = "iterative_mean_sgd"
    summary_line: ClassVar[str] = "centre deep among noisy means of secret random groups of clipped samples"
    cost: ClassVar[str] = "node O(N d), k sums of d numbers up (k groups); server O(k^2 d) for each inner step"
    compares_users: ClassVar[bool] = True
    paper: ClassVar[str] = "Zhao, Wu, Liu, Wang, Fan, Li: private optimisation with heavy-tailed data (iterative mean)"
    without_secure_noise: ClassVar[str | None] = "which samples share a group comes from the seed"
    needs: ClassVar[str] = "any loss; public number of samples, in all and at most of a user"
    promise: ClassVar[str] = (
        "sample level, or user level by group privacy at a price; against other nodes too, unless accounted by "
        "shuffling"
    )
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "groups": "random groups that samples are split into, anew each round",
        "group_samples": "samples of a group on average, the public divisor of its sum",
        "group_rho": "zero-concentrated budget of one group's mean in one round, for one sample",
        "accounting": "how the groups are accounted",
    }
    Options: ClassVar[type[StrategyOptions]] = IterativeMeanOptions
    options: IterativeMeanOptions
    scheme: GroupedScheme

    # The scheme ----------------------------------------------------------------------------------------------------

    def _make_scheme(self) -> GroupedScheme:
        samples, slots = self._checked_samples()
        options, k, group = self.options, self.options.groups, self.group
        clip, chosen = self._tuned(samples)
        rounds = chosen.count
        rate = chosen_rate(self, options, rounds)
        spent = self._spend(rounds)
        spread = self.privacy.unit == "user" and spent.accounting == "parallel"
        weight = spread_length(group, k) if spread else float(group)
        # Samples of a group on average: public, whatever the partition.
        size = group_size(self.public.users, slots, k)
        divisor = samples / k if spread else samples * size / (self.public.users * slots)
        mechanism = GaussianMechanism(2 * clip * weight / divisor, 1 / (math.sqrt(2 * spent.rho) * weight))
        alone = None if spent.accounting == "parallel" else mechanism.cost  # to whoever knows the groups
        return GroupedScheme(
            guarantee=self._promised(spent, rounds, spread),
            ledger=partial(Ledger, self.public.users, spent.cost, rounds, drawn=alone),
            new_memory=partial(OutputAverage, options.output, self.problem.dimension),
            chosen=chosen,
            clip=clip,
            divisor=divisor,
            mechanism=mechanism,
            rate=rate,
            slots=slots,
            spending=spent,
            spread=spread,
            weight=weight,
        )

    def _checked_samples(self) -> tuple[int, int]:
        """(samples of all users together, most of one user)."""
        samples, slots = self.samples, self.public.declared("max_samples", self.name)
        if samples > self.public.users * slots:
            raise BadInput(
                f"data.samples = {samples}: more than {self.public.users} users of at most {slots} "
                "samples can hold; correct data.samples or data.max_samples"
            )
        return samples, slots

    def _tuned(self, samples: int) -> tuple[float, Rounds]:
        """(R, T): by the rho of the mean of all groups; the paper's, which put epsilon^2 there, with its accounting."""
        options, privacy = self.options, self.privacy
        if options.accounting == "paper_shuffle":
            rho = (privacy.epsilon / self.group) ** 2
        else:
            length = spread_length(self.group, options.groups)
            rho = rho_for(privacy.epsilon, privacy.delta) / length**2 / options.groups
        clip = options.clip_norm or group_radius(
            samples, self.problem.dimension, options.moment_order, rho, options.moment
        )
        return clip, chosen_rounds(self, options, rho, clip)

    def _spend(self, rounds: int) -> Spending:
        """The accounting asked for, or the one with the least noise of those that hold."""

        def spend(accounting: GroupAccounting) -> Spending:
            return spending(accounting, self.privacy, rounds, self.options.groups, self.group)

        if self.options.accounting != "auto":
            return spend(self.options.accounting)
        best = spend("parallel")
        for accounting in GROUP_ACCOUNTING[1:]:
            try:
                other = spend(accounting)
            except BadInput:
                continue  # it does not hold here
            best = other if other.rho > best.rho else best
        return best

    def _promised(self, spent: Spending, rounds: int, spread: bool) -> Guarantee:
        parallel = spent.accounting == "parallel"
        accountant = _PARALLEL if parallel else _SHUFFLED
        if self.privacy.unit == "user":
            accountant += f"; group privacy for {self.group} samples{', spread over groups' if spread else ''}"
        assumptions = ("the number of samples is public", "nodes clip each sample as told, and the server is trusted")
        made = self._promise(epsilon_of(spent.cost, rounds, self.privacy.delta), accountant, assumptions)
        return made if parallel else replace(made, adversary=_SECRET_FROM).assuming(_SECRET)

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        scheme, k = self.scheme, self.options.groups
        deviation = scheme.mechanism.standard_deviation
        noise = deviation * math.sqrt(self.problem.dimension / k)
        return self._planned(
            self._course(scheme.rounds, scheme.rate, deviation / math.sqrt(k), scheme.clip),
            rounds=scheme.rounds,
            cohort=self.public.users,
            users_needed=math.ceil(k / scheme.slots),
            noise=noise,
            signal=scheme.clip,
            numbers={
                "clip_norm": scheme.clip,
                "learning_rate": scheme.rate,
                "group": self.group,
                "samples": self.samples,
                "groups": k,
                "group_samples": scheme.divisor,
                "group_rho": scheme.spending.rho,
                "accounting": scheme.spending.accounting,
                "noise_deviation": deviation,
                "sample_level_epsilon": self._sample_level_epsilon(),
            },
            warnings=(*scheme.chosen.warnings(), *group_warnings(self.group, scheme.weight)),
        )

    def _sample_level_epsilon(self) -> float:
        cost = self.scheme.spending.cost
        if self.scheme.spending.accounting == "parallel":
            one = replace(cost, noise_multiplier=cost.noise_multiplier * self.scheme.weight)
        else:
            each, each_delta = share_of_group(cost.pure_epsilon, cost.failure_delta, self.group)
            one = Cost(pure_epsilon=each, failure_delta=each_delta)
        return epsilon_of(one, self.scheme.rounds, self.privacy.delta)

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        """Each node is told the groups of its own users' samples only: see `Wire.contents`."""
        scheme, users = self.scheme, self.public.users
        draw = Partition.spread if scheme.spread else Partition.draw
        partition = draw(users, scheme.slots, self.options.groups, stream(self.seed, "sampling", index))
        computation = Computation(
            "clipped_sample_sum",
            reduce="sum",
            clip_norm=scheme.clip * scheme.slots,
            parameters={"sample_clip_norm": scheme.clip},
            partition=partition,
        )
        return Request(np.arange(users), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        sums = gathered.values.reshape(self.options.groups, -1)
        means = scheme.mechanism.release(sums / scheme.divisor, self._noise(index))
        centre = self._centre_of(means, stream(self.seed, "noise", index, 1))
        return self._descend(x, centre, scheme.rate, {"noise_deviation": scheme.mechanism.standard_deviation})

    def _centre_of(self, means: NDArray[np.float64], rng: np.random.Generator) -> Vector:
        """Post-processing of the noisy (k, d) group means."""
        if self.options.centre == "geometric_median":
            return geometric_median(means)
        if self.options.centre == "coordinate_median":
            return np.asarray(np.median(means, axis=0))
        if self.options.centre == "mean":
            return np.asarray(means.mean(axis=0))
        return deep_centre(means, self.options.share, self.options.inner_steps, rng=rng).point
