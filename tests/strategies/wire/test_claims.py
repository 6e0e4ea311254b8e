"""The door of a node: what every strategy asks passes it, and a node behind it remembers what it let in."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of
from flwr.app import Context, RecordDict
from helpers import federation_of

from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES, DPFedSGD, PublicFacts
from strategies.wire.claims import Claim, Door, Refused, check_question, kept_claim
from userdp.accounting import Privacy
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Quadratic

CLAIM = Claim("auto", "secure", "server", "user", "replace_one", 1.0, 1e-6, "digest", "run")
SECURE = [
    name
    for name in STRATEGIES
    if STRATEGIES[name].about.without_secure_noise is None and "user" in STRATEGIES[name].about.units
]


class Open(Door):
    """Admits every run."""

    def admit(self, claim):
        pass


class Heard(LocalGrid):
    def _deliver(self, messages, timeout):
        for reply in super()._deliver(messages, timeout):
            assert not reply.has_error()
            yield reply


def behind_doors(problem, people, users):
    nodes = [Node(problem, people, part) for part in np.array_split(np.arange(users), 2)]
    for node in nodes:
        node.door = Open()
    return nodes


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SECURE)
def test_what_a_strategy_asks_with_secure_noise_passes_the_door(name):
    privacy = Privacy(8.0, 1e-4, noise="secure")
    strategy = STRATEGIES[name](problem_of(name), PublicFacts(400, 1, 1, 400), privacy, **options_of(name))
    strategy.claim = CLAIM
    with Heard(behind_doors(strategy.original, halves(strategy.original), 400)) as grid:
        strategy.start(grid)
    assert strategy.result.rounds


@pytest.mark.parametrize("more", [{"trust": "sum"}, {"held_out": 10}], ids=str)
def test_masked_sums_and_questions_to_held_out_users_pass_too(more):
    trust, held_out = more.get("trust", "server"), more.get("held_out", 0)
    problem, people = Quadratic(2, 1.0, 1.0), federation_of(np.full((50, 2), 0.5))
    privacy = Privacy(8.0, 1e-4, noise="secure", trust=trust)
    strategy = DPFedSGD(problem, PublicFacts(50 - held_out, 1, 1), privacy, held_out=held_out, rounds=2, clip_norm=1.0)
    strategy.claim = replace(CLAIM, trust=trust)
    with Heard(behind_doors(problem, people, 50)) as grid:
        strategy.start(grid)
    assert strategy.result.rounds


@pytest.mark.parametrize("groups", [{"clip_norm": None}, {"clip_norm": None, "l1_norm": float("inf")}])
def test_a_sum_needs_a_bound(groups):
    asked = Computation("user_gradient", "sum", 1.0, separate=True)
    check_question(CLAIM, asked)
    with pytest.raises(Refused, match="no clip bounds"):
        check_question(CLAIM, replace(asked, **groups))


def test_a_door_remembers_a_run_between_messages_and_forgets_one_that_was_refused():
    context = partial(Context, 1, 1, {})
    state, door = RecordDict(), Open()
    with kept_claim(context(state, {}), door, 5):
        door.claims[5] = CLAIM
    for run, known in ((5, {5: CLAIM}), (5, {5: CLAIM})):
        anew = Open()
        with kept_claim(context(state, {}), anew, run):
            assert anew.claims == known
    anew = Open()
    with kept_claim(context(state, {}), anew, 5):
        anew.claims.pop(5)
    assert not state
    with kept_claim(context(state, {}), None, 5):
        pass
