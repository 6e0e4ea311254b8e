"""Clipping where the server need not see what a silo sends: what changes in a scheme with ``privacy.trust = "sum"``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from strategies.core.about import Fact
from strategies.core.public_facts import Given
from strategies.core.scheme import Number
from userdp.accounting import AnyLedger, Guarantee, Privacy
from userdp.errors import BadInput
from userdp.masking.sums import LEAST_NODES, SUM_SLACK, MaskedSum, least_loudness, most_loudness
from userdp.sampling import DisjointBatches, Sampler

LOST_FACT: Mapping[str, Fact] = {
    "lost": Fact("public", "1 where a node of a masked sum fell silent: the round is charged and nothing is released"),
}

_DISCRETE = 2.0**-10
"""Share of delta that is set aside for the difference between discrete and continuous noise."""

MASKED_MEANINGS: Mapping[str, str] = {
    "server_epsilon": "epsilon against a server on whose side no node is, and whoever sees every iterate, at most",
    "node_noise": "most noise of all nodes together, over that which is left when those who collude take off their own",
}
"""What the numbers of a plan with masked sums mean."""

_COARSER = 4
"""Beside its noise, the grid of rows of another length is at most twice as coarse, as steps are powers of two."""


@dataclass(frozen=True)
class MaskedRounds:
    """Rounds whose sums nodes make noisy and mask: who is in them, their noise and what they promise, as one value.

    Attributes:
        privacy: what is asked for.
        sampler: draws fixed cohorts.
        multiplier: noise over sensitivity, of the nodes outside the largest coalition, for delta less what discrete
            noise may cost.
    """

    privacy: Privacy
    sampler: DisjointBatches
    multiplier: float

    @classmethod
    def of(cls, given: Given, sampler: Sampler, longest: float, columns: int) -> Self:
        """For sums of rows of so many columns, at first of norm ``longest``, in rounds that the sampler draws.

        Raises:
            BadInput: cohorts must be secret, which nodes of a sum are not; a cohort is one user, so one node; nodes are
                ordinary Flower clients; or there are so many users, coordinates or rounds that discrete noise would
                cost more than is set aside.
        """
        privacy = given.privacy
        if not isinstance(sampler, DisjointBatches):
            raise BadInput(
                "privacy.trust = 'sum': the nodes of a sum know each other, so cohorts cannot stay secret; set "
                "strategy.sampling = 'disjoint' or 'cyclic'"
            )
        if not given.wire.asks_more:
            raise BadInput(
                "privacy.trust = 'sum': clients of an ordinary Flower app mask nothing; use client_app nodes, or trust "
                "= 'server'"
            )
        if sampler.batch < LEAST_NODES:
            raise BadInput(
                f"strategy.cohort = {sampler.batch} with privacy.trust = 'sum': at least two nodes must hold users of "
                "a round, or nobody hides the total of the only one; raise strategy.cohort"
            )
        budget = _budget(privacy)
        made = cls(privacy, sampler, sampler.calibrate(budget.epsilon, budget.delta))
        excess = made.sum(longest).excess(columns, privacy.epsilon) * _COARSER * sampler.rounds
        if excess > privacy.delta * _DISCRETE:
            raise BadInput(
                f"privacy.trust = 'sum': discrete noise would add {excess:.1g} to delta, more than the thousandth of "
                "privacy.delta that is set aside; lower privacy.epsilon or strategy.cohort, or raise privacy.delta"
            )
        return made

    def sum(self, longest: float, weight: float | None = None) -> MaskedSum:
        """The sum of a round, before it is known which nodes are in it.

        Args:
            longest: l2 norm that no row exceeds, its weighted number with it.
            weight: of that number; None where rows have none.

        Raises:
            BadInput: there is no grid for rows of that norm.
        """
        deviation = self.sampler.sensitivity_factor * longest * self.multiplier * (1 + SUM_SLACK)
        return MaskedSum.hiding(deviation, self.sampler.batch, longest, self.privacy.colluding, weight)

    @property
    def louder(self) -> float:
        """The noise of all nodes, which is released, over that which is priced: the most, whatever their number."""
        return (1 + SUM_SLACK) * most_loudness(self.privacy.colluding)

    @cached_property
    def server_epsilon(self) -> float:
        """Epsilon against whoever knows no node's share, whatever the number of nodes, at most."""
        louder = least_loudness(self.sampler.batch, self.privacy.colluding)
        return self.sampler.epsilon(self.multiplier * louder, _budget(self.privacy).delta)

    @property
    def numbers(self) -> dict[str, Number]:
        """What a plan prints of it."""
        return {"server_epsilon": self.server_epsilon, "node_noise": self.louder}

    @property
    def guarantee(self) -> Guarantee:
        """What all rounds together promise."""
        ideal = self.sampler.guarantee(self.multiplier, _budget(self.privacy).delta, "", ())
        share = self.privacy.colluding
        several = f" or at most {share:.4g} of the nodes of a sum together" if share else ""
        them = "they are" if share else "that node is"
        adversary = (
            f"against any one other node{several}, whoever sees every iterate, and the server, which sees the noisy "
            f"sum over all nodes of a round and is curious, not active, also where {them} on its side; against a "
            f"server on its own epsilon is at most {self.server_epsilon:.4g}"
        )
        return replace(
            ideal,
            delta=self.privacy.delta,
            adversary=adversary,
            assumptions=(
                *ideal.assumptions,
                "nodes clip each user as told, and add their share of the noise and their masks",
                f"users trust the node that holds their data, and no more than one node of a sum{several} tell others "
                "what they keep secret",
                "the server passes nodes' public keys on as they are, and asks what the plan says",
                "X25519, HKDF-SHA256 and ChaCha20 are as strong as they are taken for",
            ),
        )

    def ledger(self, privacy: Privacy) -> AnyLedger:
        """That the rounds are charged to."""
        return self.sampler.ledger(self.multiplier, _budget(privacy))


def _budget(privacy: Privacy) -> Privacy:
    """What the noise is calibrated for: delta less what its being discrete may cost."""
    return replace(privacy, delta=privacy.delta * (1 - _DISCRETE))
