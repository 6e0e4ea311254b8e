"""Worst cases: canaries of few users, as far away as data within the declared bounds can be, chosen by coins."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from simulations.audit.instance import CANARIES, Instance, edge, public_sampler
from userdp.accounting import ACCOUNTANT
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.nodes.node import Node
from userdp.problems.linear import Linear

Floats = NDArray[np.float64]
Coins = NDArray[np.int64]


@dataclass(frozen=True)
class Attack:
    """Which users are canaries, and what the others hold.

    Attributes:
        name: for people.
        canaries: (m,) users.
        directions: (m, p) of length one and orthogonal: where each canary pulls the model.
        others: (n, k) features of everybody else; also what a canary holds who joins them.
        heads: (m, k) features of canaries whose coin is 1.
        tails: (m, k) those whose coin is -1; not a number for somebody who is not there.
    """

    name: str
    canaries: NDArray[np.int64]
    directions: Floats
    others: Floats
    heads: Floats
    tails: Floats

    def nodes(self, instance: Instance, coins: Coins) -> list[Node]:
        """One node with everybody, canaries as their coins say.

        In a regression everybody's target is the sign of the first feature, and features are their absolute values: the
        gradient at a model of zeros is the product of the two.
        """
        rows = self.others.copy()
        rows[self.canaries] = np.where(coins[:, None] == 1, self.heads, self.tails)
        users, each = len(rows), instance.samples
        features, targets = np.repeat(rows, each, axis=0).astype(np.float32), None
        if instance.problem.has_targets:
            targets, features = np.sign(features[:, 0]), np.abs(features)
        block = Block(features, np.arange(users + 1) * each, targets)
        return [Node(instance.problem, ColumnarFederation(block), np.arange(users))]


def attacks(instance: Instance) -> tuple[Attack, ...]:
    """Those to try against a strategy.

    Canaries pull in orthogonal directions, rows of a Hadamard matrix, which lie in corners of the declared bounds: each
    is as long as users can be in any norm. Beside many, others pull in a direction of their own, as a strategy that
    believes what stands out of its noise alone would else believe nothing; beside one, they hold zeros. Where a test
    looks at whether users agree, it passes for one canary; colluders who disagree with the others bring it to where it
    may go either way.
    """
    users, columns, far = instance.facts.users, instance.problem.columns, edge(instance.problem)
    crowd, every = np.zeros((users, columns)), np.ones(columns)
    add = instance.plan.guarantee.relation == "add_or_remove"
    against = "nobody" if add else "its negative"

    def one(name: str, others: Floats, tail: float) -> Attack:
        direction = np.full((1, instance.problem.dimension), instance.problem.dimension**-0.5)
        return Attack(name, np.zeros(1, dtype=np.int64), direction, others, far * every[None], tail * every[None])

    found = [one(f"a canary at the edge against {against}", crowd, np.nan if add else -far)]
    if instance.plan.guarantee.accountant.startswith(ACCOUNTANT):
        for share in (1 / 3, 1 / 2):
            colluders = np.where(np.arange(users)[:, None] < share * users, far, 0.0) * every
            found.append(one(f"{share:.0%} of colluders far away, and a canary who joins them or not", colluders, 0.0))
    alike, most = _alike(instance), CANARIES - 1
    if len(alike) >= most and columns == instance.problem.dimension == CANARIES:
        pulls = hadamard(CANARIES).astype(np.float64)
        tails = np.full((most, columns), np.nan) if add else -far * pulls[:most]
        name = f"{most} canaries at the edge, each against {against}"
        # On a linear loss nothing would stop them before the domain's edge.
        pulled = crowd if isinstance(instance.problem, Linear) else np.tile(far * pulls[most], (users, 1))
        directions = pulls[:most] / np.sqrt(columns)
        found.append(Attack(name, alike[:most], directions, pulled, far * pulls[:most], tails))
    return tuple(found)


def _alike(instance: Instance) -> NDArray[np.int64]:
    """Users who take part in the same rounds as most, as far as everybody can know."""
    sampler, users = public_sampler(instance.template), instance.facts.users
    if sampler is None:
        return np.arange(users)
    present = np.zeros((users, sampler.rounds), dtype=bool)
    for index in range(sampler.rounds):
        present[sampler.cohort(index), index] = True
    _, pattern, counts = np.unique(present, axis=0, return_inverse=True, return_counts=True)
    return np.flatnonzero(pattern.ravel() == int(np.argmax(counts)))
