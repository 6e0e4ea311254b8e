"""Rounds whose server sees noisy sums over all nodes alone: what it sees, what is released, what a lost node costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message, MessageType
from helpers import (
    MARK,
    ChangedNode,
    FaultyQuadratic,
    ShuffledGrid,
    content_of,
    federation_of,
    final,
    requested,
    run,
    strategy_of,
)
from helpers_adversaries import Overheard
from resumable import Kept
from scipy import stats

from simulations.engines.grids import LocalGrid, shards
from strategies import STRATEGIES, AdaptiveClipping, DPFedAvg, DPFedSGD, PublicFacts, model_vector
from strategies.auto.preparation import LearnCoordinates
from strategies.core.run_state import Resumed
from strategies.wire.questions import Reader, counts_wanted
from userdp.accounting import Cost, Privacy, epsilon_of
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Node
from userdp.problems import Quadratic

PRIVACY = Privacy(2.0, 1e-3, trust="sum")
PEOPLE = federation_of(np.random.default_rng(3).normal(size=(40, 3)))
LOSS = Quadratic(3, 9.0, 9.0)
KINDS = pytest.mark.parametrize("kind", [DPFedSGD, DPFedAvg, AdaptiveClipping])


def masked(kind=DPFedSGD, problem=LOSS, users=40, privacy=PRIVACY, seed=0, **options):
    options = {"rounds": 3, "clip_norm": 0.5} | options
    return strategy_of(kind, problem, PublicFacts(users), privacy, seed=seed, **options)


def begun(method):
    """The strategy as it is before its first round."""
    method.program.own.memory = method.scheme.new_memory()
    return method


def other_numbers(asked):
    """The same question for numbers of another kind or weight."""
    if asked.statistic is None:
        return []
    weighed = replace(asked.masked, weight=2 * asked.masked.weight)
    return [replace(asked, statistic="log_norm"), replace(asked, masked=weighed)]


def overheard(problem, people, users_per_node):
    return Overheard([Node(problem, people, users) for users in shards(people.users, users_per_node)])


def rounds_of(overheard):
    """Yield each message of a run, its request, and the residues in the reply to it."""
    answers = [reply for reply in overheard.answers if "answer" in reply.content]
    for message, reply in zip(overheard.trained, answers, strict=True):
        yield message, Reader().request(message), reply.content["answer"]["masked"].numpy()


# --- What is released ---------------------------------------------------------------------------------------------


def shares_of(computation, starts, length):
    """The noise of a round's sum, in units of the values."""
    return sum(computation.masked._share(length, user) for user in starts) * computation.masked.grid.step


@pytest.mark.parametrize("kind", [DPFedSGD, DPFedAvg])
def test_a_run_gives_the_model_of_an_unmasked_one_with_the_same_noise(kind):
    method, grid = masked(kind), overheard(LOSS, PEOPLE, 7)
    found = final(method.start(grid))
    x, plain = LOSS.initial(), masked(kind)
    everybody = Node(LOSS, PEOPLE, np.arange(40))
    messages = [Reader().request(message)[1] for message, *_ in rounds_of(grid)][::6]
    for index, computation in enumerate(messages):
        assert len(computation.masked.keys) == 6
        rows = everybody.compute(x, np.arange(40), replace(computation, masked=None, reduce="rows")).values
        mean = (rows.sum(axis=0) + shares_of(computation, range(0, 40, 7), 3)) / 40
        x = LOSS.domain.project(plain.memory.step(x, plain.scheme.gradient(0, mean), 0.0))
        assert computation.masked.round == index
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


def test_a_moving_clip_gives_the_model_of_an_unmasked_one_with_the_same_noise():
    grid, records, options = overheard(LOSS, PEOPLE, 7), [], {"clip_rate": 2.0, "count_noise": 8.0}
    found = final(masked(AdaptiveClipping, **options).start(grid, on_round=records.append))
    x, clip, everybody = LOSS.initial(), 0.5, Node(LOSS, PEOPLE, np.arange(40))
    for index, computation in enumerate([Reader().request(message)[1] for message, *_ in rounds_of(grid)][::6]):
        assert computation.clip_norm == pytest.approx(clip)
        plain = replace(computation, masked=None, reduce="rows")
        mean = everybody.compute(x, np.arange(40), plain).values.sum(axis=0) / 40
        noise = shares_of(computation, range(0, 40, 7), 4) / 40
        share = 0.5 + mean[-1] + noise[-1] / computation.masked.weight
        assert records[index].facts["unclipped_share"] == pytest.approx(share, rel=1e-9)
        x = LOSS.domain.project(x - masked(AdaptiveClipping).plan.numbers["learning_rate"] * (mean + noise)[:-1])
        clip *= math.exp(-2.0 * (share - 0.5))
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


@KINDS
def test_the_order_of_replies_changes_no_bit(kind):
    one = final(run(masked(kind), PEOPLE, 7))
    with ShuffledGrid([Node(LOSS, PEOPLE, users) for users in shards(40, 7)]) as grid:
        np.testing.assert_array_equal(one, final(masked(kind).start(grid)))
    assert not np.array_equal(one, final(run(masked(kind, seed=1), PEOPLE, 7)))


def test_every_seed_of_a_strategy_has_noise_of_its_own():
    method = masked()
    method.noise_seed = 9  # as an audit does with copies
    found = final(run(method, PEOPLE, 7))
    np.testing.assert_array_equal(found, final(run(masked(seed=9), PEOPLE, 7)))
    assert not np.array_equal(found, final(run(masked(), PEOPLE, 7)))


def test_secret_noise_is_drawn_anew_and_has_the_planned_size():
    privacy = Privacy(2.0, 1e-3, noise="secure", trust="sum")
    zeros = federation_of(np.zeros((4, 2000)))
    wide = Quadratic(2000, 9.0, 1e4)
    steps = [final(run(masked(problem=wide, users=4, privacy=privacy, rounds=1, learning_rate=1.0), zeros, 2))]
    steps.append(final(run(masked(problem=wide, users=4, privacy=privacy, rounds=1, learning_rate=1.0), zeros, 2)))
    assert not np.array_equal(*steps)
    deviation = masked(problem=wide, users=4, privacy=privacy, rounds=1).plan.numbers["noise_deviation"]
    assert stats.kstest(steps[0] / deviation, "norm").pvalue > 1e-9  # no seed: a false alarm in 1e9 runs


# --- What the server sees -------------------------------------------------------------------------------------------


@KINDS
def test_the_server_gets_masked_vectors_no_counts_and_no_lengths(kind):
    wide = Quadratic(5000, 9.0, 9.0)
    people = federation_of(np.random.default_rng(0).normal(size=(6, 5000)))
    grid = overheard(wide, people, 2)
    masked(kind, problem=wide, users=6, rounds=1).start(grid)
    for reply in grid.answers:
        assert dict(reply.content["facts"]).keys() <= {"protocol"}
    for _, _, residues in rounds_of(grid):
        assert stats.kstest(residues / 2.0**64, "uniform").pvalue > 1e-9  # keys have no seed


def test_the_same_question_in_two_rounds_is_masked_anew():
    # At a step of almost nothing the model stays where it is, to the bit.
    grid = overheard(LOSS, federation_of(np.zeros((4, 3))), 2)
    masked(users=4, rounds=2, learning_rate=1e-300).start(grid)
    parts = [residues for *_, residues in rounds_of(grid)]
    assert not np.any(parts[0] == parts[2])


@pytest.mark.parametrize("kind", [DPFedSGD, AdaptiveClipping])
def test_a_node_that_is_asked_about_another_model_gives_nothing_away(kind):
    wide, people = Quadratic(5000, 9.0, 9.0), federation_of(np.zeros((4, 5000)))
    nodes = [Node(wide, people, users) for users in shards(4, 2)]
    method = masked(kind, problem=wide, users=4)
    asked = requested(begun(method), 0).computation
    asked = replace(asked, masked=replace(asked.masked, keys=tuple(node.key.public for node in nodes)))
    x = np.zeros(5000)
    parts = [node.compute(x, node.users, asked).masked for node in nodes]
    assert np.abs((parts[0] + parts[1]).view(np.int64)).max() < 2.0**62

    def answer(x, asked):
        nodes[1].key.answered = -1  # as if it had not been asked before
        return nodes[1].compute(x, nodes[1].users, asked).masked

    for other in (
        answer(x + 1, asked),
        answer(x, replace(asked, clip_norm=0.6)),
        answer(x, replace(asked, masked=replace(asked.masked, round=1))),
        *(answer(x, other) for other in other_numbers(asked)),
    ):
        assert stats.kstest((parts[0] + other) / 2.0**64, "uniform").pvalue > 1e-9  # keys have no seed


# --- What it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "more"), [(DPFedSGD, {}), (AdaptiveClipping, {"count_noise": 4.0})])
def test_a_user_moves_what_is_summed_by_at_most_the_sensitivity_that_is_priced(kind, more):
    """The clipped sum, and where the clip moves, the count with it."""
    rng, most, loss = np.random.default_rng(0), 0.0, Quadratic(2, 1e3, 1e3)
    method = begun(masked(kind, problem=loss, users=4, **more))
    asked = replace(requested(method, 0).computation, separate=True)
    weight = asked.masked.weight or 0.0
    assert (weight > 0.1) == (kind is AdaptiveClipping)
    sensitivity = 2 * math.hypot(0.5, weight / 2)
    if kind is AdaptiveClipping:
        assert asked.masked.deviation >= method.scheme.masked.multiplier * sensitivity

    def total(data):
        nodes = [Node(loss, federation_of(data), users) for users in (np.arange(2), np.arange(2, 4))]
        keyed = replace(asked, masked=asked.masked.among(tuple(node.key.public for node in nodes)))
        return np.sum([node.compute(np.zeros(2), node.users, keyed).masked for node in nodes], axis=0, dtype=np.uint64)

    for _ in range(200):
        data = rng.normal(size=(4, 2)) * 10.0 ** rng.integers(-3, 3)
        neighbour = data.copy()
        # The worst is as long as the clip and in the other direction far beyond it: sum and count move at once.
        edge = 0.49999 * data[1] / np.linalg.norm(data[1])
        neighbour[1] = rng.choice([rng.normal(size=2) * 100, -100 * data[1], np.full(2, np.nan), edge], axis=0)
        data[1] = rng.choice([data[1], -100 * neighbour[1]], axis=0)
        # Seeded shares are the same: what is left is what the data moved.
        moved = (total(data) - total(neighbour)).view(np.int64).astype(object)
        most = max(most, math.sqrt(int((moved**2).sum())) * asked.masked.grid.step)
    assert 0.99 * sensitivity < most <= sensitivity * (1 + 2.0**-22)


@pytest.mark.parametrize("colluding", [0.0, 0.3])
def test_the_noise_of_a_moving_clip_is_split_as_without_masks(colluding):
    privacy = replace(PRIVACY, colluding=colluding)
    method, plain = (
        begun(masked(AdaptiveClipping, privacy=one)) for one in (privacy, replace(PRIVACY, trust="server"))
    )
    for clip in (1e-3, 0.5, 7.0):
        asked = method.scheme.masked_sum(clip)
        # A thousandth of delta is set aside, for which the noise grows a little.
        assert asked.deviation / 40 == pytest.approx(plain.scheme.mechanism(clip).standard_deviation, rel=1e-3)
        assert asked.deviation / asked.weight == pytest.approx(plain.scheme.count_noise, rel=1e-3)
        # The plan has the most noise that any number of nodes adds: that of two.
        loudest = asked.among((b"one", b"two"), colluding).deviation
        assert loudest / 40 == pytest.approx(method.scheme.mechanism(clip).standard_deviation, rel=1e-9)
        assert loudest / asked.weight == pytest.approx(method.scheme.count_noise, rel=1e-9)
    honest = asked.deviation / (2 * math.hypot(clip, asked.weight / 2))
    assert 0.99 < epsilon_of(Cost(noise_multiplier=honest), 3, 1e-3) / 2.0 < 1
    assert method.plan.guarantee.epsilon <= 2.0
    assert method.plan.guarantee.delta == 1e-3
    # What is set aside of delta covers that noise is discrete, wherever the clip goes.
    assert 3 * asked.excess(4, 2.0) < 1e-3 / 1024


@pytest.mark.parametrize("colluding", [0.0, 0.3])
@pytest.mark.parametrize(("rounds", "cohort", "takes_part"), [(4, None, 4), (4, 10, 1)])
def test_the_noise_of_honest_nodes_spends_the_budget(colluding, rounds, cohort, takes_part):
    method = masked(privacy=replace(PRIVACY, colluding=colluding), rounds=rounds, cohort=cohort)
    asked = method.scheme.query(0).masked
    honest = asked.deviation / (2 * method.recipe.clip_norm)
    spent = epsilon_of(Cost(noise_multiplier=honest), takes_part, 1e-3)
    assert 0.99 < spent / 2.0 < 1
    guarantee = method.plan.guarantee
    assert spent <= guarantee.epsilon <= 2.0
    assert guarantee.delta == 1e-3
    assert "the server, which sees the noisy sum" in guarantee.sentence()
    assert ("or at most 0.3 of the nodes of a sum together" in guarantee.sentence()) == (colluding > 0)
    # What is set aside of delta covers that the noise is discrete.
    assert rounds * asked.excess(3, 2.0) < 1e-3 / 1024
    assert epsilon_of(Cost(noise_multiplier=honest), takes_part, 1e-3 * (1 - 1 / 1024)) <= guarantee.epsilon
    loudest = asked.among((b"one", b"two"), colluding).deviation
    assert method.plan.numbers["noise_deviation"] == pytest.approx(loudest / (cohort or 40))


@pytest.mark.parametrize("kind", [DPFedSGD, AdaptiveClipping])
@pytest.mark.parametrize(("each", "of_the_most"), [(3, 1.0), (2, math.sqrt(3 / 4)), (1, math.sqrt(6 / 8))])
def test_the_noise_released_has_the_noted_size_and_at_most_the_planned_one(kind, each, of_the_most):
    zeros, wide = federation_of(np.zeros((6, 4000))), Quadratic(4000, 9.0, 1e4)
    method, records = masked(kind, wide, 6, replace(PRIVACY, colluding=0.4), rounds=1, learning_rate=1.0), []
    found = final(run(method, zeros, each, on_round=records.append))
    noted = records[0].facts["noise_deviation"]
    assert stats.kstest(found / noted, "norm").pvalue > 1e-4  # seeded
    assert noted == pytest.approx(of_the_most * method.plan.numbers["noise_deviation"], rel=1e-9)


# --- Who falls silent ------------------------------------------------------------------------------------------------


def marked(user):
    values = np.random.default_rng(3).normal(size=(40, 3))
    values[user, 0] = MARK
    return federation_of(values)


@KINDS
def test_a_round_whose_node_falls_silent_is_lost_and_charged_and_the_run_goes_on(kind, tmp_path):
    problem, people = FaultyQuadratic(3, "raise", tmp_path / "once"), marked(39)
    method = masked(kind, problem=problem, max_missing=0.3)
    records, models = [], []
    run(method, people, 10, on_round=records.append, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
    np.testing.assert_array_equal(models[0], models[1])  # nothing is released
    assert not np.array_equal(models[1], models[2])
    assert [record.facts.get("lost", 0.0) for record in records] == [1.0, 0.0, 0.0]
    assert [record.missing_users for record in records] == [40, 10, 10]
    if kind is AdaptiveClipping:
        assert records[1].facts["clip_norm"] == 0.5  # nothing was learnt of it
    assert method.spent_epsilon == pytest.approx(method.plan.guarantee.epsilon)


def test_too_many_silent_nodes_end_the_run(tmp_path):
    problem = FaultyQuadratic(3, "raise", tmp_path / "once")
    with pytest.raises(RunFailed, match="max_missing"):
        run(masked(problem=problem, max_missing=0.2), marked(39), 10)


def test_users_without_a_node_lose_no_round():
    nodes = [Node(LOSS, PEOPLE, users) for users in shards(40, 7)[:-1]]
    records = []
    with LocalGrid(nodes) as grid:
        masked().start(grid, roster_timeout=0.1, on_round=records.append)
    assert [record.missing_users for record in records] == [5, 5, 5]
    assert not any("lost" in record.facts for record in records)


def test_a_node_with_the_key_of_another_counts_as_absent():
    class Copying(Node):
        """Says the key of another, whatever key it is given."""

        key = property(lambda _: nodes[0].key, lambda *_: None)

    nodes = [Node(LOSS, PEOPLE, users) for users in shards(40, 10)]
    nodes[2] = Copying(LOSS, PEOPLE, nodes[2].users)
    records = []
    with LocalGrid(nodes) as grid:
        masked(max_missing=0.3).start(grid, roster_timeout=0.1, on_round=records.append)
    assert [record.missing_users for record in records] == [10, 10, 10]


@pytest.mark.parametrize("fault", ["short", "float", "twice"])
def test_an_answer_that_is_no_masked_sum_counts_as_silent(fault):
    def change(answer):
        residues = {"short": answer.masked[:2], "float": answer.masked / 2.0, "twice": answer.masked}[fault]
        return replace(answer, masked=residues)

    class Doubled(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = list(super().send_and_receive(messages, timeout=timeout))
            return replies + replies[-1:] if fault == "twice" and "answer" in replies[0].content else replies

    nodes = [Node(LOSS, PEOPLE, users) for users in shards(40, 10)]
    records, method = [], masked(max_missing=0.3, rounds=2)
    if fault != "twice":
        nodes[3] = ChangedNode(nodes[3], change)
    with Doubled(nodes) as grid:
        result = method.start(grid, on_round=records.append)
    assert records[0].facts.get("lost", 0.0) == float(fault != "twice")
    if fault == "twice":
        np.testing.assert_array_equal(final(result), final(run(masked(rounds=2), PEOPLE, 10)))


@KINDS
def test_a_killed_run_goes_on_to_the_bit_though_keys_are_new(kind):
    keeper = Kept()
    whole = final(run(masked(kind), PEOPLE, 7, keeper=keeper))
    assert not keeper.asked  # seeded rounds are never lost
    for state in keeper.kept:
        np.testing.assert_array_equal(final(run(masked(kind), PEOPLE, 7, resumed=Resumed(state))), whole)


# --- What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in STRATEGIES.items() if not kind.about.masked and name != "non_private")
)
def test_a_strategy_that_does_not_work_on_masked_sums_refuses_by_name(name):
    with pytest.raises(BadInput, match=f"privacy.trust = 'sum': {name} does not work on"):
        STRATEGIES[name]().strategy(
            LOSS, PublicFacts(40), replace(PRIVACY, unit=STRATEGIES[name].about.units[0]), seed=0
        )


REFUSED = {
    **{
        f"cohorts by {each}": ({"sampling": each}, "cohorts cannot stay secret")
        for each in ("poisson", "fixed_size", "allocation")
    },
    "a comparison": ({"compare_with_initial": True}, "compare_with_initial and preparation"),
    "a preparation": ({"preparation": LearnCoordinates}, "compare_with_initial and preparation"),
    "a budget": ({"privacy": replace(PRIVACY, epsilon=200.0)}, "discrete noise would add"),
}


@pytest.mark.parametrize("what", REFUSED)
@KINDS
def test_what_masked_sums_cannot_serve_is_refused(kind, what):
    options, words = REFUSED[what]
    with pytest.raises(BadInput, match=words):
        masked(kind, **options)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"trust": "nobody"}, "privacy.trust"),
        ({"colluding": 1.0}, "privacy.colluding"),
        ({"colluding": math.nan}, "privacy.colluding"),
        ({"trust": "server", "colluding": 0.1}, "set privacy.trust = 'sum'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        replace(PRIVACY, **changes)


@pytest.mark.parametrize(
    "changes",
    [{"reduce": "rows"}, {"clip_norm": None}, {"l1_norm": 1.0}, {"statistic": "unclipped"}, {"lengths": True}],
)
def test_nothing_but_plain_sums_is_masked(changes):
    with pytest.raises(BadInput, match="cannot be masked"):
        replace(masked().scheme.query(0), **changes)


def test_a_number_is_masked_with_its_weight_where_the_clip_has_a_grid():
    with pytest.raises(BadInput, match="out of range"):
        masked(AdaptiveClipping, clip_low=1e-290)
    asked = requested(begun(masked(AdaptiveClipping)), 0).computation
    for changes in ({"statistic": None}, {"masked": replace(asked.masked, weight=None)}):
        with pytest.raises(BadInput, match="needs a weight"):
            replace(asked, **changes)


def test_what_a_node_is_told_travels_in_the_message():
    asked = requested(masked(privacy=replace(PRIVACY, noise="secure")), 0).computation
    assert asked.masked.seed is None
    weighted = requested(begun(masked(AdaptiveClipping)), 0).computation
    assert weighted.masked.weight > 0
    LocalGrid([])  # Flower's messages ask for an identity, which a grid sees to
    for one in (asked, requested(masked(seed=5), 0).computation, weighted):
        keyed = replace(one, masked=replace(one.masked, round=4, keys=(bytes(range(32)), bytes(32))))
        message = Message(content_of(np.zeros(3), np.arange(2), keyed), 1, MessageType.TRAIN)
        assert Reader().request(message)[1] == keyed
        assert not counts_wanted(message)


def test_the_price_of_whole_numbers_is_that_of_all_rounds():
    """Cohorts of two: of two users that is one round, of four hundred 200, each with its part of delta."""

    def taken(epsilon, users):
        privacy = Privacy(epsilon, 1e-3, trust="sum")
        try:
            DPFedSGD(rounds=1, cohort=2, clip_norm=0.5).strategy(
                Quadratic(3, 9.0, 9.0), PublicFacts(users), privacy, seed=0
            )
        except BadInput as error:
            if "discrete noise would add" not in str(error):
                raise
            return False
        return True

    low, high = 1.0, 200.0
    while high - low > 0.1:
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle, 2) else (low, middle)
    assert taken(low, 2)
    assert not taken(low, 400)
    assert taken(low - 6, 400)  # e^6 > 200
