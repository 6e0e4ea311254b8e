"""The first round finds the clip: rows of octaves, lengths of any scale, silent nodes, and its cost in accuracy."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from helpers_flower import ClientGrid
from hypothesis import given
from hypothesis import strategies as st

from strategies import AdaptiveClipping, DropInAdaptiveClipping, DropInAuto, DropInFedAvg, PublicFacts, private_updates
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.masking.sums import SUM_SLACK, MaskedSum, most_loudness
from userdp.nodes.statistics import OCTAVES, median_length, octaves
from userdp.noise import SeededNoise
from userdp.problems import Quadratic

numbers = st.floats(-1e300, 1e300) | st.sampled_from([0.0, 5e-324, 2.0**-20, 2.0**20, math.inf, math.nan])


@given(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=2, max_size=6))
def test_rows_of_octaves_are_one_long_and_at_most_the_root_of_two_apart(rows):
    told = octaves(np.array(rows))
    finite = np.isfinite(rows).all(axis=1)
    assert np.isnan(told[~finite]).all()
    assert all(np.linalg.norm(row) == 1 for row in told[finite])
    pairs = combinations(told[finite], 2)
    assert all(np.linalg.norm(one - other) <= math.sqrt(2) for one, other in pairs)


@pytest.mark.parametrize("length", [2.0**-20, 1e-3, 1.0, 1000.0, 0.99 * 2.0**20])
def test_the_median_of_lengths_of_any_scale_is_found_within_an_octave(length):
    spread = np.exp(0.5 * np.random.default_rng(0).normal(size=3001))
    lengths = np.clip(length * spread / np.median(spread), 2.0**-20, 0.99 * 2.0**20)
    found = median_length(octaves(lengths[:, None] * [[0.6, -0.8]]).mean(axis=0))
    assert 0.5 < found / np.median(lengths) < 2
    assert median_length(octaves(np.full((5, 1), length)).mean(axis=0)) / length == pytest.approx(1, rel=1)


@pytest.mark.parametrize("shares", [np.zeros(OCTAVES), -np.ones(OCTAVES), np.full(OCTAVES, 0.1)])
def test_a_length_is_found_in_noise_too(shares):
    assert 2.0**-20 <= median_length(shares) <= 2.0**20


def searched(counts, multiplier, seed):
    """Return the clip that a search finds for (OCTAVES,) users in each octave; 0, and what is said, if none."""
    scheme = strategy_of_recipe(AdaptiveClipping(find_clip=True, local_steps=1, rounds=3)).scheme
    memory = scheme.new_memory()
    try:
        quiet = replace(scheme, multiplier=multiplier)
        quiet.take(
            0, np.ones(3), Gathered(counts, 0, 0), memory, lambda purpose: SeededNoise(np.random.default_rng(seed))
        )
    except RunFailed as error:
        return memory.clip, str(error)
    return memory.clip, ""


@pytest.mark.parametrize(("length", "told"), [(3e6, "longer"), (1e300, "longer"), (1e-7, "shorter"), (0, "shorter")])
def test_where_most_updates_are_outside_the_octaves_the_run_ends(length, told):
    most = octaves(np.full((24, 1), length)).sum(axis=0) + octaves(np.ones((16, 1))).sum(axis=0)
    clip, said = searched(most, 1e-2, 0)
    assert clip == 0
    assert f"most updates are {told} than" in said


@pytest.mark.parametrize("multiplier", [0.5, 5.0, 50.0])
def test_where_updates_are_inside_the_octaves_no_noise_ends_a_run(multiplier):
    """One seed in 30,000 at most; here none of 100."""
    for seed in range(100):
        clip, said = searched(octaves(np.full((40, 1), 2.0 ** (seed % 40 - 19.5))).sum(axis=0), multiplier, seed)
        assert (2.0**-20 <= clip <= 2.0**20, said) == (True, "")


def test_whether_updates_are_outside_is_told_by_the_noisy_shares_alone():
    """Noise of 1/7 on each share lets the same users end about half of the runs; exact shares would end all of them."""
    outside = octaves(np.full((40, 1), 1e9)).sum(axis=0)
    ended = np.mean([bool(searched(outside, 40 / 7 / math.sqrt(2), seed)[1]) for seed in range(200)])
    assert 0.2 < ended < 0.8


def test_a_run_whose_clients_diverge_ends_in_its_first_round():
    wanted = wishes(400)
    with pytest.raises(RunFailed, match="most updates are longer than"):
        trained(DropInAuto, clients(wanted, scale=1e9), len(wanted))


def wishes(n=100, seed=0):
    """Return (n, 3) the models that users would like."""
    return np.random.default_rng(seed).normal([2.0, -1.0, 0.5], 1.0, (n, 3))


def clients(wanted, scale=1.0, rate=0.3, mods=(), silent=lambda user, number: False):
    """Clients who move a model measured in units of ``scale`` part of the way to where they want it."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message, context):
        user = context.node_config["partition-id"]
        if silent(user, message.content["config"]["server-round"]):
            raise ConnectionError
        x = message.content["arrays"]["x"].numpy()
        moved = x + rate * scale * (wanted[user] - x / scale)
        return Message(RecordDict({"arrays": record(moved)}), reply_to=message)

    return app


def record(x):
    return ArrayRecord({"x": Array(np.asarray(x))})


def trained(kind, app, users, seed=0, **options):
    given = {"epsilon": 4.0, "delta": 1e-4, "rounds": 10, "seed": seed} | options
    with ClientGrid(app, users) as grid:
        result = kind(users=users, **given).start(grid, record(np.zeros(3)), roster_timeout=5)
    return result.arrays["x"].numpy(), [one.facts for one in result.rounds]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_without_a_clip_to_choose_a_run_ends_near_the_best_model_whatever_the_scale(scale):
    """It errs at most twice as much as the better of two clips near the users' lengths, but for a tenth of the way."""
    wanted, best = wishes(), wishes().mean(axis=0)

    def error(kind, **options):
        ends = [trained(kind, clients(wanted, scale), len(wanted), seed, **options) for seed in range(2)]
        return np.mean([np.linalg.norm(x / scale - best) for x, _ in ends])

    found = error(DropInAuto)
    fixed = [error(DropInFedAvg, clip_norm=scale * clip) for clip in (0.3, 1.0)]
    assert found < 2 * min(fixed) + 0.1 * np.linalg.norm(best)
    _, facts = trained(DropInAuto, clients(wanted, scale), len(wanted))
    assert facts[0]["clip_norm"] / (0.3 * scale * np.median(np.linalg.norm(wanted, axis=1))) == pytest.approx(
        1, abs=0.5
    )


def test_the_first_round_moves_no_model_and_costs_as_much_as_any_other():
    _, facts = trained(DropInAuto, clients(wishes(40)), 40, rounds=2, epsilon=1.0)
    assert "unclipped_share" not in facts[0]
    assert "unclipped_share" in facts[1]
    method = DropInAuto(users=40, epsilon=1.0, delta=1e-4, rounds=2, seed=0)
    seen = []
    with ClientGrid(clients(wishes(40)), 40) as grid:
        first = {"evaluate_fn": lambda number, arrays: seen.append(arrays["x"].numpy())}
        spent = [one.spent_epsilon for one in method.start(grid, record(np.zeros(3)), **first).rounds]
    np.testing.assert_array_equal(seen[0], seen[1])
    assert 0 < spent[0] < spent[1] == pytest.approx(1.0, rel=1e-3)
    assert method.inner.memory.clip > 0


@pytest.mark.parametrize(
    "options", [{}, *({"sampling": name, "cohort": 10} for name in ("poisson", "fixed_size", "cyclic"))], ids=str
)
def test_a_row_is_within_what_the_noise_of_the_search_is_made_for(options):
    """Half of the sensitivity at most where cohorts are secret: a coin also decides whether a user is there at all."""
    scheme = AdaptiveClipping(find_clip=True, local_steps=1, rounds=4, **options)
    method = strategy_of_recipe(scheme)
    asked = method.scheme.ask(0, method.scheme.new_memory()).computation
    sampler, mechanism = method.scheme.sampler, method.scheme.found_by
    moved = mechanism.l2_sensitivity * sampler.expected_batch
    assert mechanism.standard_deviation == pytest.approx(mechanism.l2_sensitivity * method.scheme.multiplier)
    assert method.scheme.multiplier == method.plan.numbers["noise_multiplier"]
    assert moved >= asked.sensitivity(sampler.relation) * (1 - 1e-12)
    if sampler.secret:
        assert moved == pytest.approx(sampler.sensitivity_factor)


def test_a_round_that_a_killed_process_may_have_released_finds_no_clip_in_noise_alone():
    scheme = strategy_of_recipe(AdaptiveClipping(find_clip=True, local_steps=1, rounds=3)).scheme
    memory, x = scheme.new_memory(), np.ones(3)
    nothing = Gathered(np.zeros(OCTAVES), 40, 0, skipped=True)
    step = scheme.take(0, x, nothing, memory, lambda purpose: pytest.fail("noise is drawn"))
    assert (memory.clip, step.facts) == (0.0, {"lost": 1.0})
    assert scheme.ask(1, memory).computation.name == "update_octaves"


def strategy_of_recipe(recipe):
    return recipe.strategy(Quadratic(3, 9.0, 9.0), PublicFacts(40), Privacy(4.0, 1e-4), seed=0)


def test_a_masked_sum_finds_the_clip_too_and_a_round_that_a_silent_node_loses_is_asked_again(monkeypatch):
    monkeypatch.setattr(MaskedSum, "_share", lambda self, length, first_user: np.zeros(length, dtype=np.int64))
    given = {"trust": "sum", "noise": "seeded", "rounds": 3, "max_missing": 0.5, "lost_nodes": 1}
    app = clients(wishes(8), mods=[private_updates()], silent=lambda user, number: user < 2 and number == 1)
    x, facts = trained(DropInAuto, app, 8, **given)
    clip = facts[1]["clip_norm"]
    assert facts[0] == {"lost": 1.0}
    assert 0.5 < clip / (0.3 * np.median(np.linalg.norm(wishes(8)[2:], axis=1))) < 2
    assert facts[2]["clip_norm"] == clip
    assert np.any(x != 0)


MASKED = {"trust": "sum", "noise": "seeded"}


@pytest.mark.parametrize("kind", [DropInFedAvg, DropInAdaptiveClipping, DropInAuto])
def test_a_masked_sum_of_replies_most_of_which_are_not_finite_ends_the_run(kind):
    """But for a run whose noise on the count could be all of 16 users."""
    app, given = clients(np.full((16, 3), np.nan), mods=[private_updates()]), MASKED | {"rounds": 2}
    with pytest.raises(RunFailed, match="most clients' replies count as zero, by a count with noise"):
        trained(kind, app, 16, epsilon=40.0, **given)
    trained(kind, app, 16, epsilon=1.0, **given)


@pytest.mark.parametrize("kind", [DropInFedAvg, DropInAdaptiveClipping])
def test_a_few_replies_that_are_not_finite_are_zeros_of_a_masked_sum(kind, monkeypatch):
    """The number beside such a reply is zero, too: neither clipped nor not."""
    monkeypatch.setattr(MaskedSum, "_share", lambda self, length, first_user: np.zeros(length, dtype=np.int64))
    wanted = wishes(16)
    broken, still = wanted.copy(), wanted.copy()
    broken[:3], still[:3] = np.nan, 0.0
    (x, (facts,)), (zero, _) = (
        trained(kind, clients(each, mods=[private_updates()]), 16, rounds=1, **MASKED) for each in (broken, still)
    )
    np.testing.assert_array_equal(x, zero)
    if kind is DropInAdaptiveClipping:
        unclipped = 0.3 * np.linalg.norm(wanted[3:], axis=1) <= facts["clip_norm"]
        assert facts["unclipped_share"] == pytest.approx(0.5 + np.sum(unclipped - 0.5) / 16)


def test_counted_users_cost_no_noise():
    given = {"users": 200, "epsilon": 4.0, "delta": 1e-4, "clip_norm": 0.5}
    masked = DropInFedAvg(trust="sum", **given).plan_for(record(np.zeros(5))).numbers
    open_to_the_server = DropInFedAvg(**given).plan_for(record(np.zeros(5))).numbers
    louder = (1 + SUM_SLACK) * most_loudness(0.0)
    assert masked["noise_deviation"] / open_to_the_server["noise_deviation"] == pytest.approx(louder, rel=1e-3)


REFUSED = {
    "a clip": ({"clip_norm": 0.5}, "strategy.clip_norm = 0.5 is given, and strategy.find_clip = true finds one"),
    "no range": ({"clip_low": 2.0, "clip_high": 1.0}, "strategy.clip_low = 2 is above strategy.clip_high = 1"),
    "one round": ({"rounds": 1}, "strategy.rounds = 1 with strategy.find_clip = true: .* give at least 2"),
    "no training": ({"local_steps": None}, "users here send gradients: give strategy.local_steps"),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_a_search_without_room_for_it_is_refused(options, said):
    with pytest.raises(BadInput, match=said):
        strategy_of_recipe(AdaptiveClipping(**{"find_clip": True, "local_steps": 1} | options))


def test_a_plan_states_nothing_in_proportion_to_a_clip_that_is_not_known():
    plan = DropInAuto(users=200, epsilon=4.0, delta=1e-4).plan_for(record(np.zeros(50)))
    assert not {"clip_norm", "noise_deviation", "l2_sensitivity"} & plan.numbers.keys()
    assert (plan.signal, plan.forecast) == (1.0, None)
    assert 0 < plan.noise < 1
