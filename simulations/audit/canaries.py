"""Worst cases: canaries of few users, as far away as data within the declared bounds can be, chosen by coins."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from simulations.audit.instance import CANARIES, Instance, edge, public_sampler
from strategies.core.scheme import law_of
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.nodes.node import Node
from userdp.problems.linear import Linear

_SEVERAL = 16
"""Canaries of one run, at least, where there are not just one."""

Floats = NDArray[np.float64]
Coins = NDArray[np.int64]


@dataclass(frozen=True)
class Attack:
    """Which users are canaries, and what the others hold.

    Attributes:
        name: for people.
        canaries: (m,) users.
        directions: (m, p) of length one: where each canary pulls the model.
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
        """One node with everybody, two if their sum is masked, or one for each where they are heard.

        Canaries are as their coins say.

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
        held = np.array_split(np.arange(users), users if instance.heard else instance.least_nodes)
        return [Node(instance.problem, ColumnarFederation(block), each) for each in held]


def attacks(instance: Instance) -> tuple[Attack, ...]:
    """Those to try against a strategy.

    Canaries pull in orthogonal directions. Rows of a Hadamard matrix lie in corners of the declared bounds: each
    is as long as users can be in any norm; columns are for norms in which corners are cut off. Beside many, others pull
    in a direction of their own, as a strategy that believes what stands out of its noise alone would else believe
    nothing; beside one, they hold zeros. In few columns many share one: each is noise for the others, but little where
    one canary moves much less than noise does. One canary also pulls in one column alone, for a server may keep few of
    them. Where a test looks at whether users agree, colluders
    who disagree with the others bring it to where it may go either way, and beyond the radius of agreement nobody moves
    a robust mean further.
    """
    users, columns, far = instance.facts.users, instance.problem.columns, edge(instance.problem)
    dimension, numbers = instance.problem.dimension, instance.plan.numbers
    crowd, every, first = np.zeros((users, columns)), np.ones(columns), np.eye(1, columns)[0]
    add = instance.plan.guarantee.relation == "add_or_remove"
    against = "nobody" if add else "its negative"

    def one(name: str, pull: Floats, others: Floats, tail: float | None = None) -> Attack:
        """Of one canary; a tail is a share of its pull."""
        direction = (
            pull[None] / np.linalg.norm(pull) if columns == dimension else np.full((1, dimension), dimension**-0.5)
        )
        tail = (np.nan if add else -1.0) if tail is None else tail
        return Attack(name, np.zeros(1, dtype=np.int64), direction, others, pull[None], tail * pull[None])

    found = [one(f"a canary at the edge against {against}", far * every, crowd)]
    if columns == dimension > 1:
        found.append(one(f"a canary at the edge of one column against {against}", far * first, crowd))
    if isinstance(threshold := numbers.get("threshold"), float) and isinstance(radius := numbers.get("radius"), float):
        found.append(one(f"a canary at twice the radius of agreement against {against}", 2 * radius * every, crowd))
        for many in _tipping(threshold, instance.plan.cohort):
            others = crowd.copy()
            others[_beside(instance, many - 1)] = far
            name = f"{many - 1} colluders far away in the cohort of a canary who joins them or not"
            found.append(one(name, far * every, others, 0.0))
    elif law_of(instance.template.scheme) is not None and not add and columns > 1:
        # What a choice is likely to be then falls where one vertex rises.
        name = "a canary who pulls one column forth and all others back, against its negative, in a crowd at the edge"
        found.append(one(name, far * (2 * first - every), np.tile(far * every, (users, 1))))
    alike = _alike(instance)
    several = columns == dimension and len(alike) >= _SEVERAL
    if several and columns == CANARIES:
        for pulls, where in (
            (hadamard(columns).astype(np.float64), "at the edge"),
            (np.eye(columns), "at the edge of a column each"),
        ):
            # On a linear loss nothing would stop the others before the domain's edge.
            pulled = crowd if isinstance(instance.problem, Linear) else np.tile(far * pulls[-1], (users, 1))
            found.append(_many(where, against, alike[: columns - 1], far * pulls[:-1], pulled, add=add))
    elif several:
        pulls = far * first * np.ones((min(len(alike), CANARIES), 1))
        found.append(_many("at the edge of one column", against, alike[: len(pulls)], pulls, crowd, add=add))
    return tuple(found)


def _many(where: str, against: str, users: NDArray[np.int64], pulls: Floats, others: Floats, *, add: bool) -> Attack:
    """Of these canaries, who pull so against the negative of that, or against nobody."""
    directions = pulls / np.linalg.norm(pulls, axis=1, keepdims=True)
    tails = np.full(pulls.shape, np.nan) if add else -pulls
    return Attack(f"{len(users)} canaries {where}, each against {against}", users, directions, others, pulls, tails)


def _tipping(threshold: float, cohort: int) -> list[int]:
    """How many of a cohort are far from the others, at one place, when its score falls to the threshold.

    If a score is what share of the others each user agrees with, added up, it is ``(B - j)^2 / B + j^2 / B``; if it
    counts users whom most agree with, it is ``B - j``.
    """
    share = threshold / cohort
    if not 0.5 < share < 1:
        return []
    return sorted({math.ceil(cohort * (1 - math.sqrt(2 * share - 1)) / 2), math.ceil(cohort * (1 - share))})


def _beside(instance: Instance, many: int) -> NDArray[np.int64]:
    """So many users of the first cohort that user 0 is in, without user 0."""
    sampler = public_sampler(instance.template)
    cohorts = [] if sampler is None else [sampler.cohort(index) for index in range(sampler.rounds)]
    found = next((cohort for cohort in cohorts if cohort[0] == 0), np.arange(instance.facts.users))
    return found[1 : 1 + many]


def _alike(instance: Instance) -> NDArray[np.int64]:
    """Users who take part in the same rounds as many, as far as everybody can know: the first rounds that there are.

    What is released at the end of a phase moves furthest by those who came first in it.
    """
    sampler, users = public_sampler(instance.template), instance.facts.users
    if sampler is None:
        return np.arange(users)
    present = np.zeros((users, sampler.rounds), dtype=bool)
    for index in range(sampler.rounds):
        present[sampler.cohort(index), index] = True
    # In their order the pattern with the earliest rounds is the last.
    _, pattern, counts = np.unique(present, axis=0, return_inverse=True, return_counts=True)
    enough = counts >= min(CANARIES - 1, int(counts.max()))
    return np.flatnonzero(pattern.ravel() == int(np.flatnonzero(enough)[-1]))
