"""Rounds that release a noisy sum of clipped user vectors; with ``privacy.trust = "sum"`` nodes add the noise."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

from pydantic import Field

from strategies.clipping.clip_facts import ClipNotes
from strategies.clipping.cohort_options import CohortOptions, NoisyMean
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.mean_rounds import MeanRounds, as_is
from strategies.core.public_facts import Given, Price
from strategies.core.scheme import Number, Outline
from userdp.accounting import AnyLedger, Guarantee, Privacy
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.masking.sums import LEAST_NODES, SUM_SLACK, MaskedSum, fewest_nodes, least_loudness, most_loudness
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.problems.noise_paths import NoisySteps
from userdp.sampling import DisjointBatches, Sampler

_DISCRETE = 2.0**-10  # Share of delta reserved for the difference between discrete and continuous noise
_COARSER = 4  # On that difference: grids of other lengths are up to twice as coarse, relative to the noise


@dataclass(frozen=True)
class MaskedRounds:
    """Rounds whose sums nodes make noisy and mask: cohorts, noise and guarantee, as one value."""

    privacy: Privacy
    sampler: DisjointBatches
    # noise over sensitivity, of the nodes outside the largest coalition, for delta less the cost of discrete noise
    multiplier: float
    who: tuple[str, ...] = ()  # assumptions about who a user is

    @classmethod
    def of(cls, given: Given, sampler: Sampler, longest: float, columns: int) -> Self:
        """Calibrate sums of rows of so many columns, at first of norm ``longest``, in rounds that the sampler draws.

        Raises `BadInput`: cohorts must be secret, which nodes of a sum are not; a cohort is one user, so one node; or
        discrete noise would cost more than the reserved share of delta; or too few nodes are left of a cohort.
        """
        privacy = given.privacy
        if not isinstance(sampler, DisjointBatches):
            raise BadInput(
                "privacy.trust = 'sum': the nodes of a sum know each other, so cohorts cannot stay secret; set "
                "strategy.sampling = 'disjoint' or 'cyclic'"
            )
        if sampler.batch < LEAST_NODES:
            raise BadInput(
                f"strategy.cohort = {sampler.batch} with privacy.trust = 'sum': at least two nodes must hold users of "
                "a round, or nobody hides the total of the only one; raise strategy.cohort"
            )
        if sampler.batch < (fewest := fewest_nodes(privacy.colluding, privacy.lost_nodes)):
            raise BadInput(
                f"privacy.lost_nodes = {privacy.lost_nodes} with {sampler.batch} users in a round: at least {fewest} "
                "nodes must hold users of a round; raise strategy.cohort, or lower privacy.lost_nodes"
            )
        budget = _budget(privacy)
        made = cls(privacy, sampler, sampler.calibrate(budget.epsilon, budget.delta), given.wire.who)
        excess = made.sum(longest).excess(columns + given.wire.counts, privacy.epsilon) * _COARSER * sampler.rounds
        if excess > privacy.delta * _DISCRETE:
            raise BadInput(
                f"privacy.trust = 'sum': discrete noise would add {excess:.1g} to delta, more than the thousandth of "
                "privacy.delta that is set aside; lower privacy.epsilon or strategy.cohort, or raise privacy.delta"
            )
        return made

    def sum(self, longest: float, weight: float | None = None) -> MaskedSum:
        """Return the sum of a round, before its nodes are known.

        Args:
            longest: largest l2 norm of a row, with its weighted number.
            weight: of that number; None where rows have none.

        Raises `BadInput`: there is no grid for rows of that norm.
        """
        deviation = self.sampler.sensitivity_factor * longest * self.multiplier * (1 + SUM_SLACK)
        most = self.privacy.colluding, weight, self.privacy.lost_nodes
        return MaskedSum.hiding(deviation, self.sampler.batch, longest, *most)

    @property
    def louder(self) -> float:
        """The largest released noise, of all nodes, over the accounted noise."""
        return (1 + SUM_SLACK) * most_loudness(self.privacy.colluding, self.privacy.lost_nodes)

    @cached_property
    def server_epsilon(self) -> float:
        """The largest epsilon against an observer who knows no node's share of the noise."""
        louder = least_loudness(self.sampler.batch, self.privacy.colluding)
        return self.sampler.epsilon(self.multiplier * louder, _budget(self.privacy).delta)

    @property
    def numbers(self) -> dict[str, Number]:
        """The plan's numbers of masked sums."""
        return {"server_epsilon": self.server_epsilon, "node_noise": self.louder}

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all rounds together."""
        ideal = self.sampler.guarantee(self.multiplier, _budget(self.privacy).delta, "", ())
        share, lost = self.privacy.colluding, self.privacy.lost_nodes
        several = f" or at most {share:.4g} of the nodes of a sum together" if share else ""
        them = "they are" if share else "that node is"
        answering = " that answer" if lost else ""
        adversary = (
            f"against any one other node{several}, whoever sees every iterate, and the server, which sees the noisy "
            f"sum over all nodes of a round{answering} and is curious, not active, also where {them} on its side; "
            f"against a server on its own epsilon is at most {self.server_epsilon:.4g}"
        )
        return replace(
            ideal,
            delta=self.privacy.delta,
            adversary=adversary,
            assumptions=(
                *ideal.assumptions,
                *self.who,
                "nodes clip each user as requested, and add their share of the noise and their masks",
                f"users trust the node that holds their data, and no more than one node of a sum{several} tell others "
                "what they keep secret",
                "the server passes nodes' public keys on as they are, and asks what the plan says",
                "X25519, HKDF-SHA256 and ChaCha20 are as strong as they are taken for",
                *_of_survivors(share, lost),
            ),
        )

    def ledger(self, privacy: Privacy) -> AnyLedger:
        """Make the ledger that the rounds are charged to."""
        return self.sampler.ledger(self.multiplier, _budget(privacy))

    @property
    def price(self) -> Price:
        """The price of all rounds together."""
        return Price(self.guarantee, self.ledger, summands=1)  # whole numbers need no rounding


def _of_survivors(colluding: float, lost: int) -> tuple[str, ...]:
    """Return the assumptions of sums that up to ``lost`` nodes may be missing from."""
    if not lost:
        return ()
    several = f", or {colluding:.4g} of them," if colluding else ""
    return (
        f"no more than one of all nodes{several} tells others what it keeps secret",
        f"the server tells all nodes the same about who fell silent; with more than {lost * (lost + 1)} nodes that "
        "keep their secrets it may lie about that",
        "whether a node falls silent does not depend on its users' data",
    )


def _budget(privacy: Privacy) -> Privacy:
    """Return the budget of continuous noise: delta less the share reserved for discrete noise."""
    return replace(privacy, delta=privacy.delta * (1 - _DISCRETE))


def noisy_sums(
    given: Given, sampler: Sampler, computation: Computation, clip: float
) -> tuple[NoisyMean, Computation, GaussianMechanism | None]:
    """Calibrate sums of rows of one entry per parameter, clipped to the l2 norm ``clip``, in all of a run's rounds.

    Returns the mean over a cohort, the users' computation, and the mechanism of the mean; None where nodes add the
    noise. Raises `BadInput`: the sampler cannot keep to the budget, or sums cannot be masked (`MaskedRounds.of`).
    """
    if given.privacy.trust == "server":
        mechanism = given.mean_mechanism(sampler, clip)
        multiplier = mechanism.noise_multiplier
        return NoisyMean(sampler, mechanism, multiplier, given.price(sampler, multiplier)), computation, mechanism
    masked = MaskedRounds.of(given, sampler, clip, given.dimension)
    multiplier = masked.multiplier * masked.louder
    loudest = sampler.mean_mechanism(clip, multiplier)
    mean = NoisyMean(sampler, loudest, multiplier, masked.price, masked.numbers)
    return mean, replace(computation, masked=masked.sum(clip)), None


class ClippedOptions(CohortOptions, ServerOptions):
    """Settings of strategies of clipped rounds."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that what each user sends is clipped to.")
    learning_rate: float | None = Field(None, gt=0, description="Step size of the server.")

    def rate(self, default: float) -> float:
        """Return the step size of the server; ``default`` is that of plain gradient descent."""
        return self.learning_rate or (0.1 if self.server_optimiser == "adam" else default)

    def outline_of(
        self, given: Given, mean: NoisyMean, computation: Computation, rate: float, *, noise: float
    ) -> Outline:
        """Return the plan's numbers; ``noise`` is the expected l2 norm of the noise that is followed."""
        local = computation.parameters
        steps = NoisySteps(
            steps=self.rounds,
            rate=rate,
            deviation=noise / math.sqrt(given.dimension),
            longest=self.clip_norm,
            local_steps=int(local.get("steps", 1) or local.get("epochs", 1)),
            local_rate=local.get("step_size"),
        )
        averaged: dict[str, Number] = {"ema_decay": self.ema_decay} if self.ema_decay else {}
        described = replace(mean, numbers={"clip_norm": self.clip_norm, **averaged, **mean.numbers})
        path = self.followed(steps, given.dimension)
        return self.outline(described, rate, noise=noise, signal=self.clip_norm, path=path)


def clipped_rounds(
    given: Given,
    options: ClippedOptions,
    computation: Computation,
    rate: float,
    gradient: Callable[[int, Vector], Vector] = as_is,
    numbers: Mapping[str, Number] | None = None,
) -> MeanRounds:
    """Return rounds with Gaussian noise for the clip, as the sampler calibrates it; or with masked sums.

    Args:
        given: with the budget.
        options: the strategy's settings.
        computation: of the users, clipped to ``options.clip_norm``.
        rate: default step of plain descent.
        gradient: from a round and the released mean to the vector that the server's optimiser follows.
        numbers: of the plan, beyond those that all such strategies have.
    """
    mean, asked, of_server = noisy_sums(given, options.sampler(given), computation, options.clip_norm)
    mean = replace(mean, numbers={**(numbers or {}), **mean.numbers})
    return replace(rounds_of(given, options, mean, asked, rate, gradient=gradient), mechanism=of_server)


def rounds_of(
    given: Given,
    options: ClippedOptions,
    mean: NoisyMean,
    computation: Computation,
    rate: float,
    *,
    gradient: Callable[[int, Vector], Vector] = as_is,
    noise: float | None = None,
) -> MeanRounds:
    """Return rounds that release this mean, as `clipped_rounds` does for Gaussian noise and the clip alone.

    ``noise`` is the expected l2 norm of the noise in ``gradient``, if that is not the mean's own.
    """
    p, rate = given.dimension, options.rate(rate)
    noise = mean.noise(p) if noise is None else noise
    computation = replace(computation, lengths=computation.masked is None)
    return MeanRounds(
        price=mean.price,
        outline=options.outline_of(given, mean, computation, rate, noise=noise),
        domain=given.problem.domain,
        sampler=mean.sampler,
        new_memory=partial(ServerOptimiser, options, rate, p),
        query=lambda _: computation,
        divisor=mean.sampler.expected_batch,
        mechanism=mean.mechanism,
        gradient=gradient,
        noted=ClipNotes(options.clip_norm, noise),
    )
