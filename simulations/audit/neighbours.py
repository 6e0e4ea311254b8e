"""Worst cases: pairs of neighbouring data sets of few users, as far apart as data within the declared bounds can be."""

from dataclasses import dataclass

import numpy as np

from simulations.audit.instance import Instance, edge
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation, Federation
from userdp.nodes.node import Node

_MISSING = np.nan
"""A feature of somebody whose data cannot be used, who counts as one that is not there."""


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that differ in user 0, the canary.

    Attributes:
        name: what the attack is.
        first: nodes with the canary.
        second: nodes with the other canary, or none.
    """

    name: str
    first: list[Node]
    second: list[Node]


def worst_cases(instance: Instance) -> tuple[Neighbours, ...]:
    """The pairs to try against a strategy, likeliest to succeed first.

    Others sit at zero, so that the canary alone moves a clipped sum, by all that the clip allows. Where a test looks at
    whether users agree, it passes for those; colluders who disagree with them bring it to where it may go either way.
    """
    users, far = instance.facts.users, edge(instance.problem)
    crowd = np.zeros(users)
    if instance.plan.guarantee.relation == "add_or_remove":
        return (_pair(instance, "canary at the clip against nobody", crowd, far, _MISSING),)
    found = [_pair(instance, "canary at the clip against its negative", crowd, far, -far)]
    if instance.plan.pass_probability is not None:
        for share in (1 / 3, 1 / 2):
            colluders = np.where(np.arange(users) < share * users, far, 0.0)
            name = f"{share:.0%} of colluders far away, and a canary who joins them or not"
            found.append(_pair(instance, name, colluders, far, 0.0))
    return tuple(found)


def _pair(instance: Instance, name: str, others: np.ndarray, first: float, second: float) -> Neighbours:
    return Neighbours(name, *(_nodes(instance, np.concatenate([[canary], others[1:]])) for canary in (first, second)))


def _nodes(instance: Instance, values: np.ndarray) -> list[Node]:
    """One node with users all of whose features and targets are these values."""
    users = np.arange(instance.facts.users)
    return [Node(instance.problem, _federation(instance, values), users)]


def _federation(instance: Instance, values: np.ndarray) -> Federation:
    """(U,) one number a user: each of its samples has it in every feature of a mean, or as target of a regression.

    In a regression the features of whoever has a target other than zero are at their bound: gradients are their
    product.
    """
    each, columns = instance.samples, instance.problem.columns
    repeated = np.repeat(values, each).astype(np.float32)
    features = np.tile(repeated[:, None], (1, columns))
    targets = None
    if instance.problem.has_targets:
        targets, features = repeated, np.abs(features)
    return ColumnarFederation(Block(features, np.arange(instance.facts.users + 1) * each, targets))
