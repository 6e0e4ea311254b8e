"""Whom guarantees name: each of them has a view that is tested.

That a view shows nothing but what was released is tested in test_coupling.py, and what all draws together cost in
test_releases.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from any_strategy import options_of, problem_of
from helpers import strategy_of

from strategies import STRATEGIES, PublicFacts, UserLevelStrategy
from userdp.accounting import Privacy
from userdp.sampling import FixedSizeBatches

USERS = 400
PRIVATE = sorted(set(STRATEGIES) - {"non_private"})
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
    """The adversaries against whom a sentence promises protection, as keys of `VIEWS`; others follow a semicolon.

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
        for name in ("dp_fed_sgd", "dp_fed_avg", "adaptive_clipping", "vote_descent")
        for share in (0.0, 0.3)
    ),
    ("dp_fed_sgd", {}, {"trust": "sum", "colluding": 0.3, "lost_nodes": 1}),
)
"""Settings with which a guarantee says something else."""


def made(name: str, options: Mapping[str, Any] = {}, privacy: Mapping[str, Any] = {}) -> UserLevelStrategy:
    kind = STRATEGIES[name]
    budget = Privacy(2.0, 1e-3, kind.about.units[0], **privacy)
    facts = PublicFacts(USERS, 1, 1, USERS)
    return strategy_of(kind, problem_of(name), facts, budget, seed=0, **(options_of(name) | dict(options)))


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
