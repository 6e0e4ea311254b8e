"""Clipped rounds with ``privacy.trust = "sum"``: nodes add the noise, and the server sees masked sums alone."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from strategies.core.public_facts import Given
from strategies.core.scheme import Number
from userdp.accounting import AnyLedger, Guarantee, Privacy
from userdp.errors import BadInput
from userdp.masking.sums import LEAST_NODES, SUM_SLACK, MaskedSum, least_loudness, most_loudness
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

    @classmethod
    def of(cls, given: Given, sampler: Sampler, longest: float, columns: int) -> Self:
        """Calibrate sums of rows of so many columns, at first of norm ``longest``, in rounds that the sampler draws.

        Raises `BadInput`: cohorts must be secret, which nodes of a sum are not; a cohort is one user, so one node;
        nodes are ordinary Flower clients; or discrete noise would cost more than the reserved share of delta.
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
        """Return the sum of a round, before its nodes are known.

        Args:
            longest: largest l2 norm of a row, with its weighted number.
            weight: of that number; None where rows have none.

        Raises `BadInput`: there is no grid for rows of that norm.
        """
        deviation = self.sampler.sensitivity_factor * longest * self.multiplier * (1 + SUM_SLACK)
        return MaskedSum.hiding(deviation, self.sampler.batch, longest, self.privacy.colluding, weight)

    @property
    def louder(self) -> float:
        """The largest released noise, of all nodes, over the accounted noise."""
        return (1 + SUM_SLACK) * most_loudness(self.privacy.colluding)

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
                "nodes clip each user as requested, and add their share of the noise and their masks",
                f"users trust the node that holds their data, and no more than one node of a sum{several} tell others "
                "what they keep secret",
                "the server passes nodes' public keys on as they are, and asks what the plan says",
                "X25519, HKDF-SHA256 and ChaCha20 are as strong as they are taken for",
            ),
        )

    def ledger(self, privacy: Privacy) -> AnyLedger:
        """Make the ledger that the rounds are charged to."""
        return self.sampler.ledger(self.multiplier, _budget(privacy))

    @property
    def accounted(self) -> dict[str, Any]:
        """The fields of a `Scheme` that differ from those of noise by the server."""
        return {"guarantee": self.guarantee, "ledger": self.ledger, "summands": 1}  # whole numbers need no rounding


def _budget(privacy: Privacy) -> Privacy:
    """Return the budget of continuous noise: delta less the share reserved for discrete noise."""
    return replace(privacy, delta=privacy.delta * (1 - _DISCRETE))
