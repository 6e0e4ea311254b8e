"""Every strategy against everybody whom its guarantee names: epsilon from the noise that is left in all that they see.

A run is made twice, with neighbouring data. The second run draws no noise: each of its draws comes out as in the first.
So the two show the same, or the adversary sees more than was released. What was to be hidden differs by some distance,
the noise has some size, and dp-accounting says what all draws together cost: never more than is claimed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from any_strategy import MEASURED_FIRST, SHAPE, options_of, problem_of
from helpers import federation_of, requested, strategy_of
from helpers_adversaries import Draw, Losses, Overheard, Recorded, Replayed, fields_of

from strategies import STRATEGIES, PublicFacts, UserLevelStrategy, model_vector
from strategies.core.recipe import notes_of
from strategies.wire.questions import Reader
from userdp.accounting import Privacy
from userdp.mechanisms.prefix_sums import PrefixSums
from userdp.nodes.computations import LocalNoise
from userdp.nodes.node import Node
from userdp.sampling import FixedSizeBatches

USERS = 400
NODES = 4
DISCRETISED = 1e-3
"""The largest relative error by which losses on a lattice overstate epsilon; they never understate it."""
SAMPLED_IN_SECRET = {"averaged_clipping", "averaged_clipping_restarted", "poisson_sample_sgd"}
"""Samples take part by coins: a draw is then priced with the chance of taking part that the nodes are sent."""
WITHOUT_REPLACEMENT = {"stopped_sgd"}
"""A draw is priced below with everybody taking part, which bounds a rate without knowing how it amplifies."""
PRIVATE = sorted(set(STRATEGIES) - {"non_private"})
ATTAINED = {
    "adaptive_clipping",
    "dp_fed_avg",
    "dp_fed_sgd",
    "dp_ftrl",
    "local_dp",
    "poisson_sample_sgd",
    "projected_sgd",
    "sample_clipped_sgd",
}
"""The strategies for which the user made here is the worst: a tenth less noise would show."""
WORST: Mapping[str, float] = {"clip_norm": 0.1, "learning_rate": 0.01}
"""Options with which that user is clipped at either end of its bounds, wherever the model goes."""


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


def worst(name: str) -> UserLevelStrategy:
    options = dict(WORST) if name in ATTAINED else {}
    return made(name, options)


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


# --- Two runs of neighbouring data --------------------------------------------------------------------------


@dataclass
class Run:
    """One of the two runs: its draws, and all that it showed.

    Attributes:
        draws: of noise, in their order.
        asked: every field of every message to nodes.
        released: models handed out.
        noted: facts that may be shown.
        rates: of coins, where samples take part by them.
    """

    draws: list[Draw] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)
    noted: list[dict[str, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def data_of(name: str, *, other: bool, removed: bool, victim: int) -> Any:
    """Everybody at a half; the victim at one end of its bounds, at the other, or with nothing that can be used."""
    features = np.full((USERS, 2), 0.5)
    targets = np.full(USERS, 0.5) if problem_of(name).has_targets else None
    features[victim] = (np.nan if removed else -SHAPE.bound) if other else SHAPE.bound
    if targets is not None:
        targets[victim] = 1.0
    return federation_of(features, targets=targets)


def run(method: UserLevelStrategy, data: Any, monkeypatch: Any, outcomes: list[Draw] | None = None) -> Run:
    """Run the strategy's own loop, with its draws recorded, or replayed from ``outcomes``."""
    made = Run()
    replayed = None if outcomes is None else iter(outcomes)

    def watched(source: Any) -> Any:
        return Recorded(source, made.draws) if replayed is None else Replayed(replayed, made.draws)

    opened = method.streams.open
    add, correlated = LocalNoise.add, PrefixSums.release
    with monkeypatch.context() as patch:
        patch.setattr(method.streams, "open", lambda *place: watched(opened(*place)))

        class Own:
            """Each user's own noise, as a source."""

            def __init__(self, noise, users):
                self.noise, self.users = noise, users

            def gaussian(self, rows, _):
                return add(self.noise, rows, self.users)

        class Correlated:
            """The noise of all rounds together, as a source: what a round shows less what it is to hide."""

            def __init__(self, sums, noise):
                self.sums, self.noise = sums, noise

            def gaussian(self, mean, _):
                return correlated(self.sums, mean, self.noise)

        patch.setattr(
            LocalNoise,
            "add",
            lambda self, rows, users: watched(Own(self, users)).gaussian(rows, self.deviation),
        )
        if method.name == "dp_ftrl":
            patch.setattr(method.streams, "open", opened)
            patch.setattr(
                PrefixSums,
                "release",
                lambda self, mean, noise: watched(Correlated(self, noise)).gaussian(mean, self.deviation),
            )
        nodes = [Node(method.original, data, users) for users in np.array_split(np.arange(USERS), NODES)]
        public = {name for name, fact in notes_of(method.recipe).items() if fact.kind != "private"}

        def on_round(record: Any) -> None:
            made.noted.append({name: value for name, value in record.facts.items() if name in public})

        with Overheard(nodes) as grid:
            method.start(
                grid,
                on_round=on_round,
                evaluate_fn=lambda _, arrays: made.released.append(model_vector(arrays).tobytes()),
            )
    for message in grid.trained:
        made.asked.append(fields_of(message))
        coins = Reader().request(message)[1].coins
        if coins is not None:
            made.rates.append(coins.rate)
    return made


def whitened(draws: list[Draw], memory: Any) -> list[Draw]:
    """Draws of correlated noise as one of independent noise: prefix sums, less what their noise has in common."""
    rounds = len(draws)

    class Impulse:
        """Noise of one round alone."""

        def __init__(self, there):
            self.there = there

        def charge(self, cost):
            """Draw for nothing: only the shape of the noise is looked at."""

        def gaussian(self, value, _):
            return np.full(len(value), float(self.there))

    columns = []
    for place in range(rounds):
        mechanism = memory().mechanism
        columns.append([mechanism.release(np.zeros(2), Impulse(place == index))[0] for index in range(rounds)])
    values = np.cumsum([draw.value for draw in draws], axis=0)
    return [Draw("gaussian", np.linalg.solve(np.array(columns).T, values), draws[0].size, draws[0].outcome)]


def neighbours(name: str, monkeypatch: Any) -> tuple[UserLevelStrategy, Run, Run]:
    method = worst(name)
    removed, victim = method.plan.guarantee.relation == "add_or_remove", first_drawn(worst(name))
    one = run(method, data_of(name, other=False, removed=removed, victim=victim), monkeypatch)
    other = run(
        worst(name),
        data_of(name, other=True, removed=removed, victim=victim),
        monkeypatch,
        one.draws,
    )
    if name == "dp_ftrl":
        for each in (one, other):
            each.draws = whitened(each.draws, method.scheme.new_memory)
    return method, one, other


def first_drawn(method: UserLevelStrategy) -> int:
    """A user who takes part in the first round that its data can move, with its sample."""
    request = requested(method, int(method.name in MEASURED_FIRST))
    coins = request.computation.coins
    drawn = np.ones(USERS, dtype=bool) if coins is None else coins.draw(slice(0, USERS), np.ones(USERS, dtype=np.int64))
    return int(request.users[drawn[request.users]][0])


# --- What they see, and what it costs -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_what_is_seen_follows_from_what_was_released_and_costs_no_more_than_is_claimed(name, monkeypatch):
    method, one, other = neighbours(name, monkeypatch)
    guarantee = method.plan.guarantee
    views = {VIEWS[adversary] for adversary in named(guarantee.adversary)}
    assert one.draws
    assert len(one.draws) == len(other.draws)
    # Equal releases, equal views, to the bit: nothing else that depends on the victim is seen.
    assert one.released == other.released
    assert one.noted == other.noted
    if "asked" in views or "answered" in views:
        assert one.asked == other.asked
    losses = Losses()
    rate = max(one.rates) if name in SAMPLED_IN_SECRET else None
    pairs = list(zip(one.draws, other.draws, strict=True))
    if rate is not None:  # the victim may be drawn in any round: each is priced as the farthest
        farthest = max(pairs, key=lambda pair: float(np.linalg.norm(pair[0].value - pair[1].value)) / pair[0].size)
        pairs = [farthest] * len(pairs)
    for pair in pairs:
        losses.add(*pair, rate)
    assert any(not np.array_equal(one.value, other.value) for one, other in pairs)
    measured = losses.epsilon(guarantee.delta)
    if name not in WITHOUT_REPLACEMENT:
        assert measured <= guarantee.epsilon * (1 + DISCRETISED)
    if name in ATTAINED:
        assert measured >= 0.9 * guarantee.epsilon


@pytest.mark.slow
def test_less_noise_than_is_claimed_is_seen(monkeypatch):
    method, one, other = neighbours("dp_fed_sgd", monkeypatch)
    losses = Losses()
    for pair in zip(one.draws, other.draws, strict=True):
        losses.add(*(replace(draw, size=0.9 * draw.size) for draw in pair))
    assert losses.epsilon(1e-3) > 1.05 * method.plan.guarantee.epsilon


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
