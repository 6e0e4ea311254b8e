"""The exact epsilon of a round's discrete outcome, for the worst canaries."""

import numpy as np
from numpy.typing import NDArray

from simulations.audit.canaries import Attack, attacks
from simulations.audit.instance import Instance
from simulations.audit.listening import Listener
from strategies.core.scheme import law_of
from userdp.arrays.sparse_rows import dense
from userdp.audit.discrete import exact_epsilon

Floats = NDArray[np.float64]


def exact_step(instance: Instance) -> float | None:
    """Compute the largest epsilon, at the claim's delta, of a round's discrete outcome over the attacks.

    *Formal guarantees.* The claim's epsilon is at least this: no statistics, no confidence. *Proof.* Two runs of one
    seed on neighbouring data sets are equal up to the first round with different answers. Given all earlier releases,
    the outcome of the rounds so far has the two laws that the scheme computes from these answers (those of earlier
    rounds are the same), and it is a function of the run's releases. So the epsilon that a run claims at a delta, given
    any such past, is at least the smallest one at which the two laws are indistinguishable (`exact_epsilon`).

    Args:
        instance: the run; its strategy's claim must hold given all earlier releases (adaptive composition).

    Returns:
        None if the strategy has no discrete outcome.
    """
    law = law_of(instance.template.scheme)
    if law is None:
        return None
    found = [0.0]
    for attack in attacks(instance):
        runs = [_answers(instance, attack, coin) for coin in (1, -1)]
        for index, (first, second) in enumerate(zip(*runs, strict=False)):
            if first.shape != second.shape or not np.array_equal(first, second):
                if first.shape == second.shape:
                    one, other = (law(gathered[: index + 1]) for gathered in runs)
                    found.append(exact_epsilon(one, other, instance.plan.guarantee.delta))
                break
    return max(found)


def _answers(instance: Instance, attack: Attack, coin: int) -> list[Floats]:
    """Return the nodes' answers of each round; the first canary's coin is given, all others are 1."""
    coins = np.ones(len(attack.canaries), dtype=np.int64)
    coins[0] = coin
    nodes = attack.nodes(instance, coins)
    with Listener(nodes, instance.problem.dimension) as grid:
        instance.strategy(instance.config.seed).start(grid)
    values = [dense(answer.values) for answer in grid.answers]
    return [each[0] if len(each) == 1 else each for each in values]
