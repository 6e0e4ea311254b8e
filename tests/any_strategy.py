"""A small run of any strategy, from what its class declares: so tests know of strategies that nobody named to them."""

from typing import Any

import numpy as np
from helpers import federation_of, make
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from simulations.testing.strategy_contract import SHAPE
from strategies import STRATEGIES, UserLevelStrategy
from strategies.core.recipe import example_problem
from userdp.accounting import Guarantee
from userdp.data import Block, ColumnarFederation, Federation
from userdp.problems import Problem
from userdp.problems.one_hot import OneHot
from userdp.streams import DRAWN_SEED, GIVEN_SEED, SECURE_ASSUMPTIONS

__all__ = ["FACTS", "MEASURED_FIRST", "SHAPE", "USERS", "as_read", "halves", "method_of", "options_of", "problem_of"]
__all__ += ["sources"]
USERS = 400
FACTS = {"min_samples": 1, "max_samples": 1, "samples": USERS}
MEASURED_FIRST = {"localized_weighting"}
"""The first round asks how long gradients are, which has no sign and nothing that a gradient of zero would answer."""


def options_of(name: str) -> dict[str, Any]:
    return dict(STRATEGIES[name].about.example)


def problem_of(name: str) -> Problem:
    """A problem of two features that the strategy can be run with, with models in [-2, 2]^2."""
    return example_problem(STRATEGIES[name], SHAPE)


def method_of(
    name: str, problem: Problem | None = None, epsilon: float = 4.0, delta: float = 1e-4, **options: Any
) -> UserLevelStrategy:
    """The strategy for these users of one sample each, with the options of its example and these."""
    given = {"facts": FACTS, **options_of(name), **options}
    return make(STRATEGIES[name], problem or problem_of(name), USERS, epsilon, delta, **given)


def as_read(problem: Problem, samples: ArrayLike, sizes: list[int] | None = None, targets: Any = None) -> Federation:
    """Users of these samples, with targets if the loss has any: of dense columns, sparse ones, or of codes 0 and 1."""
    made = federation_of(samples, sizes, targets if problem.has_targets else None)
    block = made.block(np.arange(made.users))
    if problem.sparse:
        return ColumnarFederation(Block(csr_array(block.features), block.offsets, block.targets))
    if not isinstance(problem, OneHot):
        return made
    codes = np.where(np.isfinite(block.features), block.features > 0, -1).astype(np.int32)
    return ColumnarFederation(Block(codes, block.offsets, block.targets))


def halves(problem: Problem, users: int = USERS) -> Federation:
    """Users of one sample, all of whose features are 0.5, and its target if it has one."""
    return federation_of(np.full((users, 2), 0.5), targets=np.full(users, 0.5) if problem.has_targets else None)


def sources(guarantee: Guarantee) -> list[str]:
    """The assumptions that say where noise comes from."""
    told = {DRAWN_SEED, GIVEN_SEED, *SECURE_ASSUMPTIONS["user"], *SECURE_ASSUMPTIONS["sample"]}
    return [one for one in guarantee.assumptions if one in told]
