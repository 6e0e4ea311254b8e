"""Clipping where the server need not see what a silo sends: what changes in a scheme with ``privacy.trust = "sum"``."""

import math
from collections.abc import Mapping
from dataclasses import replace

from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from userdp.accounting import Guarantee, Privacy
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.sums import SUM_SLACK, MaskedSum
from userdp.nodes.computations import Computation
from userdp.sampling import DisjointBatches, Sampler

LOST_FACT: Mapping[str, Fact] = {
    "lost": Fact("public", "1 where a node of a masked sum fell silent: the round is charged and nothing is released"),
}

_DISCRETE = 2.0**-10
"""Share of delta that is set aside for the difference between discrete and continuous noise."""

_ADVERSARY = (
    "against other nodes, whoever sees every iterate, and the server, which sees the noisy sum over all nodes of a "
    "round and is curious, not active"
)


def masked_budget(privacy: Privacy) -> Privacy:
    """What the noise is calibrated for: delta less what its being discrete may cost."""
    return replace(privacy, delta=privacy.delta * (1 - _DISCRETE))


def masked_sum(strategy: UserLevelStrategy, sampler: Sampler, clip_norm: float, multiplier: float) -> MaskedSum:
    """The sum of a round, before it is known which nodes are in it.

    Args:
        strategy: with its budget.
        sampler: draws fixed cohorts.
        clip_norm: C.
        multiplier: noise over sensitivity that `masked_budget` asks for, of nodes that do not collude.

    Raises:
        BadInput: cohorts must be secret, which nodes of a sum are not; nodes are ordinary Flower clients; or there are
            so many users, coordinates or rounds that the discrete noise would cost more than is set aside.
    """
    privacy = strategy.privacy
    if not isinstance(sampler, DisjointBatches):
        raise BadInput(
            "privacy.trust = 'sum': the nodes of a sum know each other, so cohorts cannot stay secret; set "
            "strategy.sampling = 'disjoint' or 'cyclic'"
        )
    if not strategy.wire.asks_more:
        raise BadInput(
            "privacy.trust = 'sum': clients of an ordinary Flower app mask nothing; use client_app nodes, or trust = "
            "'server'"
        )
    honest = sampler.sensitivity_factor * clip_norm * multiplier * (1 + SUM_SLACK)
    deviation = honest / math.sqrt(1 - privacy.colluding)
    grid = IntegerGrid.finest(deviation, sampler.batch, clip_norm)
    made = MaskedSum(grid, deviation)
    excess = sampler.rounds * made.excess(privacy.colluding, strategy.problem.dimension, privacy.epsilon)
    if excess > privacy.delta * _DISCRETE:
        raise BadInput(
            f"privacy.trust = 'sum': discrete noise would add {excess:.1g} to delta, more than the thousandth of "
            "privacy.delta that is set aside; lower privacy.epsilon or strategy.cohort, or raise privacy.delta"
        )
    return made


def masked_in_round(strategy: UserLevelStrategy, computation: Computation, index: int) -> Computation:
    """The computation in that round, where its sum is masked: shares and masks are its own."""
    if computation.masked is None:
        return computation
    seed = strategy.seed if strategy.privacy.noise == "seeded" else None
    return replace(computation, masked=replace(computation.masked, seed=seed, round=index))


def masked_guarantee(ideal: Guarantee, privacy: Privacy) -> Guarantee:
    """That of masked sums, from that of continuous noise at `masked_budget`."""
    share = privacy.colluding
    colluders = f"at most {share:.0%} of the nodes of a sum"
    return replace(
        ideal,
        delta=privacy.delta,
        adversary=_ADVERSARY if not share else f"{_ADVERSARY}, also with {colluders} on its side",
        assumptions=(
            *ideal.assumptions,
            "nodes clip each user as told, and add their share of the noise and their masks",
            f"{colluders} tell the server what they keep secret" if share else "no node of a sum sides with the server",
            "the server passes nodes' public keys on as they are, and asks what the plan says",
            "X25519, HKDF-SHA256 and ChaCha20 are as strong as they are taken for",
        ),
    )
