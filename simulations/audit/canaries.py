"""Worst cases: canaries among few users, as extreme as data within the declared bounds can be, chosen by coins."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import hadamard

from simulations.audit.instance import CANARIES, Instance, edge, public_sampler
from strategies.core.scheme import law_of
from userdp.arrays.types import Array, Indices
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.masking.sums import fewest_nodes
from userdp.nodes.node import Node
from userdp.problems.separable import Linear

_SEVERAL = 16  # fewest canaries of an attack with several
Coins = Indices


@dataclass(frozen=True)
class Attack:
    """The canaries of a run and the data of all users; the name is for reports."""

    name: str
    canaries: Indices
    """(m,) users."""
    directions: Array
    """(m, p) of length one: the direction in which each canary pulls the model."""
    others: Array
    """(n, k) features of all other users; also of a canary who joins them."""
    heads: Array
    """(m, k) features of canaries whose coin is 1; NaN for an absent canary."""
    tails: Array
    """(m, k) features of canaries whose coin is -1; NaN for an absent canary."""

    def nodes(self, instance: Instance, coins: Coins) -> list[Node]:
        """Return one node with all users, two nodes if their sum is masked, or one for each user that the server hears.

        In a regression every user's target is the sign of the first feature, and features are absolute values: the
        gradient at a model of zeros is the product of the two.
        """
        rows = self.others.copy()
        rows[self.canaries] = np.where(coins[:, None] == 1, self.heads, self.tails)
        users, each = len(rows), instance.facts.min_samples
        features, targets = np.repeat(rows, each, axis=0).astype(np.float32), None
        if instance.problem.has_targets:
            targets, features = np.sign(features[:, 0]), np.abs(features)
        block = Block(features, np.arange(users + 1) * each, targets)
        privacy = instance.template.privacy
        nodes = fewest_nodes(privacy.colluding, privacy.lost_nodes) if privacy.trust == "sum" else 1
        held = np.array_split(np.arange(users), users if instance.heard else nodes)
        return [Node(instance.problem, ColumnarFederation(block), each) for each in held]


def attacks(instance: Instance) -> tuple[Attack, ...]:
    """Return the attacks to try: with one canary each, and with many."""
    return (*_one_canary(instance), *_many_canaries(instance))


def _one_canary(instance: Instance) -> Iterator[Attack]:
    """Yield attacks with one canary among users who hold zeros, colluders, or a crowd at the edge.

    A canary also pulls in one column alone, for servers that keep few of them. If a test checks whether users agree,
    colluders who disagree with the others bring it to its threshold, and beyond the radius of agreement nobody moves a
    robust mean further.
    """
    users, columns, far = instance.facts.users, instance.problem.columns, edge(instance.problem)
    dimension, numbers = instance.problem.dimension, instance.plan.numbers
    zeros, every, first = np.zeros((users, columns)), np.ones(columns), np.eye(1, columns)[0]
    add, against = _relation(instance)

    def attack(name: str, pull: Array, others: Array, tail: float) -> Attack:
        """Make an attack whose tail is a multiple of the pull."""
        direction = (
            pull[None] / np.linalg.norm(pull) if columns == dimension else np.full((1, dimension), dimension**-0.5)
        )
        return Attack(name, np.zeros(1, dtype=np.int64), direction, others, pull[None], tail * pull[None])

    opposite = np.nan if add else -1.0
    yield attack(f"a canary at the edge against {against}", far * every, zeros, opposite)
    if columns == dimension > 1:
        yield attack(f"a canary at the edge of one column against {against}", far * first, zeros, opposite)
    if isinstance(threshold := numbers.get("threshold"), float) and isinstance(radius := numbers.get("radius"), float):
        name = f"a canary at twice the radius of agreement against {against}"
        yield attack(name, 2 * radius * every, zeros, opposite)
        for many in _tipping(threshold, instance.plan.cohort):
            others = zeros.copy()
            others[_beside(instance, many - 1)] = far
            name = f"{many - 1} colluders far away in the cohort of a canary who joins them or not"
            yield attack(name, far * every, others, 0.0)
    elif law_of(instance.template.scheme) is not None and not add and columns > 1:
        # The probability of a likely choice then falls while that of one vertex rises.
        name = "a canary who pulls one column forth and all others back, against its negative, in a crowd at the edge"
        yield attack(name, far * (2 * first - every), np.tile(far * every, (users, 1)), -1.0)


def _many_canaries(instance: Instance) -> Iterator[Attack]:
    """Yield attacks with many canaries in orthogonal directions, or in one column if there are few.

    Rows of a Hadamard matrix lie in corners of the declared bounds: each is as long as users can be in any norm;
    columns are for norms that cut corners off. The other users pull in a direction of their own, because a strategy
    that discards values below its noise level would otherwise keep nothing. Canaries who share a column are noise for
    each other, but little if one canary moves much less than the noise.
    """
    users, columns, far = instance.facts.users, instance.problem.columns, edge(instance.problem)
    alike = _alike(instance)
    if columns != instance.problem.dimension or len(alike) < _SEVERAL:
        return
    zeros = np.zeros((users, columns))
    if columns != CANARIES:
        pulls = far * np.eye(1, columns)[0] * np.ones((min(len(alike), CANARIES), 1))
        yield _many("at the edge of one column", instance, alike[: len(pulls)], pulls, zeros)
        return
    for pulls, where in (
        (hadamard(columns).astype(np.float64), "at the edge"),
        (np.eye(columns), "at the edge of a column each"),
    ):
        # On a linear loss nothing would stop the others before the edge of the domain.
        others = zeros if isinstance(instance.problem, Linear) else np.tile(far * pulls[-1], (users, 1))
        yield _many(where, instance, alike[: columns - 1], far * pulls[:-1], others)


def _many(where: str, instance: Instance, users: Indices, pulls: Array, others: Array) -> Attack:
    add, against = _relation(instance)
    directions = pulls / np.linalg.norm(pulls, axis=1, keepdims=True)
    tails = np.full(pulls.shape, np.nan) if add else -pulls
    return Attack(f"{len(users)} canaries {where}, each against {against}", users, directions, others, pulls, tails)


def _relation(instance: Instance) -> tuple[bool, str]:
    add = instance.plan.guarantee.relation == "add_or_remove"
    return add, "nobody" if add else "its negative"


def _tipping(threshold: float, cohort: int) -> list[int]:
    """Return how many of a cohort must be far from the others, at one place, to bring its score to the threshold.

    A score that adds up the share of users with whom each user agrees is ``(B - j)^2 / B + j^2 / B``; a score that
    counts the users with whom most agree is ``B - j``.
    """
    share = threshold / cohort
    if not 0.5 < share < 1:
        return []
    return sorted({math.ceil(cohort * (1 - math.sqrt(2 * share - 1)) / 2), math.ceil(cohort * (1 - share))})


def _beside(instance: Instance, many: int) -> Indices:
    """Return ``many`` other users of the first cohort that contains user 0."""
    sampler = public_sampler(instance.template)
    cohorts = [] if sampler is None else [sampler.cohort(index) for index in range(sampler.rounds)]
    found = next((cohort for cohort in cohorts if cohort[0] == 0), np.arange(instance.facts.users))
    return found[1 : 1 + many]


def _alike(instance: Instance) -> Indices:
    """Return many users who take part in the same rounds, in the first ones possible, as far as cohorts are public.

    The release at the end of a phase depends most on the users who came first in it.
    """
    sampler, users = public_sampler(instance.template), instance.facts.users
    if sampler is None:
        return np.arange(users)
    present = np.zeros((users, sampler.rounds), dtype=bool)
    for index in range(sampler.rounds):
        present[sampler.cohort(index), index] = True
    # In sorted order the pattern with the earliest rounds is the last.
    _, pattern, counts = np.unique(present, axis=0, return_inverse=True, return_counts=True)
    enough = counts >= min(CANARIES - 1, int(counts.max()))
    return np.flatnonzero(pattern.ravel() == int(np.flatnonzero(enough)[-1]))
