"""Every strategy against everybody whom its guarantee names: there is a test of what each of them sees."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from any_strategy import options_of, problem_of
from flwr.app import Array
from helpers_adversaries import Overheard

from simulations.testing.strategy_contract import Small
from simulations.testing.tape import Tape, Taped, epsilon_between
from strategies import STRATEGIES, PublicFacts, UserLevelStrategy
from strategies.core.mean_rounds import CorrelatedDescent
from strategies.core.streams import Streams
from userdp.accounting import Privacy
from userdp.nodes.computations import LocalNoise
from userdp.nodes.node import Node
from userdp.sampling import FixedSizeBatches

USERS = 400
NODES = 4
PRIVATE = sorted(set(STRATEGIES) - {"non_private"})


# --- Whom guarantees name -----------------------------------------------------------------------------------

VIEWS: Mapping[str, str] = {
    "other nodes": "asked",
    "any one other node": "asked",
    "whoever sees every iterate": "asked",
    "whoever sees every iterate and does not know who takes part": "asked",
    "whoever sees every iterate and knows no sample's group": "asked",
    "whoever sees the released model": "released",
    "whoever sees the released models": "released",
    "everybody but the user's own node, the server included": "answered",
    "the server": "masked",
}
"""Adversary -> what it sees, for which there is a test: messages to nodes, models handed out, users' answers, sums."""


def named(adversary: str) -> set[str]:
    """Those from whom a sentence says that it protects, as keys of `VIEWS`; what it says of others follows a semicolon.

    Raises:
        AssertionError: nothing is known of somebody.
    """
    said = adversary.partition(";")[0]
    assert said.startswith("against "), f"no sentence about adversaries: {adversary}"
    found, left = set(), said.removeprefix("against ")
    for name in sorted(VIEWS, key=len, reverse=True):
        if name in left:
            found.add(name)
            left = left.replace(name, "")
    left = re.sub(r", which sees the noisy sum .* on its side", "", left)
    left = re.sub(r" or at most [\d.]+ of the nodes of a sum together", "", left)
    assert not re.sub(r"\band\b|,", "", left).strip(), f"no view is taken of {left!r}: add it to VIEWS, with a test"
    return found


OTHERS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    *(("dp_fed_sgd", {"sampling": sampling, "cohort": 40}, {}) for sampling in ("cyclic", "poisson", "fixed_size")),
    ("dp_fed_sgd", {"sampling": "allocation"}, {}),
    ("iterative_mean_sgd", {"accounting": "calibrated_shuffle", "groups": 200}, {}),
    *(
        (name, {}, {"trust": "sum", "colluding": share})
        for name in ("dp_fed_sgd", "dp_fed_avg", "adaptive_clipping")
        for share in (0.0, 0.3)
    ),
)
"""Settings with which a guarantee says something else."""


def made(name: str, options: Mapping[str, Any] = {}, privacy: Mapping[str, Any] = {}) -> UserLevelStrategy:
    kind = STRATEGIES[name]
    budget = Privacy(2.0, 1e-3, kind.about.units[0], **privacy)
    facts = PublicFacts(USERS, 1, 1, USERS)
    return kind(problem_of(name), facts, budget, **(options_of(name) | dict(options)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "privacy"), [*((name, {}, {}) for name in PRIVATE), *OTHERS])
def test_a_guarantee_names_nobody_whose_view_is_not_tested(name, options, privacy):
    guarantee = made(name, options, privacy).plan.guarantee
    views = {VIEWS[adversary] for adversary in named(guarantee.adversary)}
    assert views
    if "answered" in views:
        assert not STRATEGIES[name].about.server_trusted
    if "masked" in views:
        assert privacy["trust"] == "sum"  # see clipping/test_curious_nodes.py
    if "asked" in views:
        assert STRATEGIES[name].about.release == "round"


def test_a_sentence_that_names_somebody_else_is_noticed():
    assert named("against other nodes and whoever sees every iterate; the server is trusted") == {
        "other nodes",
        "whoever sees every iterate",
    }
    with pytest.raises(AssertionError, match="add it to VIEWS"):
        named("against other nodes and the neighbours; the server is trusted")


# --- What nodes are asked -----------------------------------------------------------------------------------


def overheard(small: Small, user: tuple[float, float], monkeypatch: Any, first: Tape) -> tuple[Tape, list[Any]]:
    """Run with these features of a user, and the first run's releases if any; return the tape and all questions."""
    strategy, tape, features = small.strategy(), Tape(first.draws or None), small.alike()
    if isinstance(strategy.memory, CorrelatedDescent):  # whose simulated noise is not added to a value
        strategy = small.strategy(noise="secure")
    strategy.streams = Streams(secure=False, source=tape.source)
    features[0] = user
    add = LocalNoise.add

    class Own:
        """Users' own noise, as a source."""

        def __init__(self, noise, users):
            self.gaussian = lambda rows, _: add(noise, rows, users)

    people = small.people(features)
    nodes = [Node(strategy.original, people, users) for users in np.array_split(np.arange(small.users), NODES)]
    with monkeypatch.context() as patch, Overheard(nodes) as grid:
        patch.setattr(
            LocalNoise, "add", lambda own, rows, users: Taped(Own(own, users), tape).gaussian(rows, own.deviation)
        )
        strategy.start(grid)
    return tape, [
        (record, name, (value.dtype, value.shape, value.data) if isinstance(value, Array) else value)
        for message in grid.trained
        for record, values in message.content.items()
        for name, value in values.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_what_nodes_are_asked_follows_from_what_was_released(name, monkeypatch):
    """To the bit. The contract of strategies says the same of models and facts, and what all releases cost."""
    small = Small(STRATEGIES[name], USERS)
    promised = small.strategy().plan.guarantee
    if not {VIEWS[adversary] for adversary in named(promised.adversary)} & {"asked", "answered"}:
        return  # nodes are trusted
    one, asked = overheard(small, (1.0, 1.0), monkeypatch, Tape())
    other, again = overheard(small, (-1.0, -1.0), monkeypatch, one)
    assert one.draws
    assert asked
    assert asked == again
    if not STRATEGIES[name].about.server_trusted:  # which the contract leaves out
        assert 0 < epsilon_between(one, other, promised.delta) <= promised.epsilon * (1 + 1e-6)


# --- Who takes part, where it is secret ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "allocation"])
def test_a_node_that_knows_its_own_users_draws_knows_nothing_of_others_wherever_nodes_are_named(sampling):
    options = {"sampling": sampling, "rounds": 400} | ({} if sampling == "allocation" else {"cohort": 40})
    if sampling == "allocation":
        options["participations"] = 40
    method = made("dp_fed_sgd", options)
    sampler = method.scheme.sampler
    cohorts = [sampler.cohort(index) for index in range(400)]
    own = np.array([np.sum(cohort < USERS // 2) for cohort in cohorts])
    others = np.array([np.sum(cohort >= USERS // 2) for cohort in cohorts])
    related = abs(np.corrcoef(own, others)[0, 1])
    names_nodes = "other nodes" in named(method.plan.guarantee.adversary)
    assert names_nodes == (not isinstance(sampler, FixedSizeBatches))
    assert (related < 5 / 20) == names_nodes  # seeded: one fixed sample, five deviations of independent draws
