"""Public facts that the caller states: what a guarantee assumes about users."""

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of

from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES, PublicFacts
from userdp import Node, Privacy
from userdp.errors import BadInput

UNIT = "a user is a partition of IidPartitioner, not a person"
PUBLIC = "which node holds which users is public"


@pytest.mark.parametrize("name", ["auto", "dp_fed_sgd", "robust_rounds", "private_hard_thresholding", "non_private"])
def test_what_users_are_assumed_to_be_is_in_the_guarantee(name):
    problem = problem_of(name)
    facts = PublicFacts(400, 1, 1, samples=400, assumptions=(PUBLIC,), user_is=UNIT)
    strategy = STRATEGIES[name](**options_of(name)).strategy(problem, facts, Privacy(8.0, 1e-4), seed=1)
    plan = strategy.plan.guarantee
    assert plan.assumptions.count(PUBLIC) == plan.holds == (name != "non_private")
    assert plan.sentence().endswith(f"; {UNIT}") == plan.holds
    if name == "dp_fed_sgd":
        with LocalGrid([Node(problem, halves(problem), np.arange(400))]) as grid:
            assert strategy.start(grid).guarantee == plan


@pytest.mark.parametrize("name", ["users", "min_samples", "max_samples", "samples"])
@pytest.mark.parametrize("value", [400.5, 400.0, "400"])
def test_numbers_of_people_and_samples_are_whole(name, value):
    with pytest.raises(BadInput, match=f"data.{name} = {value!r}: must be a whole number"):
        PublicFacts(**{"users": 400, name: value})
    assert getattr(PublicFacts(**{"users": 400, name: np.int64(400)}), name) == 400
