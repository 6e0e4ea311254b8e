"""Faults found in other libraries, each tried here through what a user of userdp calls.

Tests are named ``test_<library>_<fault>``. They look at what leaves a run (models, records, messages, logs), at plans
and at samplers, so that they hold whatever the inside becomes. Noise is measured on many coordinates at once: with 4000
of them a standard deviation is known to 1.1%, and 5% is more than four standard errors.
"""

import logging
import math
import random
import time

import dp_accounting
import numpy as np
import pytest
from any_strategy import MEASURED_FIRST, options_of
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from helpers import ChangedNode, Wild, federation_of, final, make
from helpers_audits import epsilon_lower_bound
from helpers_flower import ClientGrid
from scipy import stats

from simulations.engines.grids import LocalGrid, shards
from strategies import (
    DPFTRL,
    STRATEGIES,
    AdaptiveClipping,
    DPFedAvg,
    DPFedSGD,
    DropInAdaptiveClipping,
    DropInFedAvg,
    DropInRecentredClipping,
    IterativeMeanSGD,
    LocalDP,
    SampleClippedSGD,
    SparseExponentialChoice,
    model_vector,
)
from strategies.wire.questions import Reader
from userdp.accounting import Privacy
from userdp.errors import RunFailed
from userdp.estimators import RampKernel
from userdp.mechanisms import AboveThreshold
from userdp.nodes.node import Node
from userdp.noise import SeededNoise
from userdp.problems import Linear, Quadratic
from userdp.sampling import CyclicBatches, DisjointBatches, FixedSizeBatches, PoissonBatches
from userdp.settings import choices

pytestmark = pytest.mark.slow

WIDE = 4000
"""Coordinates from which noise is measured, each an independent draw."""

USERS = 400
FACTS = {"min_samples": 1, "max_samples": 1, "samples": USERS}
OPTIONS = {
    "localized_robust_sgd": {"radius": 1.0},
    "robust_rounds": {"radius": 1.0, "rounds": 2},
    "outlier_removal": {"rounds": 2},
    "sample_clipped_sgd": {"rounds": 3},
    "iterative_mean_sgd": {"rounds": 3},
    "robust_frank_wolfe": {"rounds": 3},
    "private_hard_thresholding": {"rounds": 3, "sparsity": 2, "level": 20.0},
    "sparse_optimisation": {"rounds": 3, "sparsity": 2},
    "projected_sgd": {"rounds": 3, "sparsity": 2},
    # As many rounds as theory plans: in few of them nobody in particular is drawn.
    "averaged_clipping": {"rounds": None},
    "averaged_clipping_restarted": {"rounds": None, "runs": None},
    **{name: {"rounds": 3} for name in ("dp_fed_sgd", "dp_fed_avg", "adaptive_clipping", "recentred_clipping")},
}
"""The options that a strategy needs for so few users, with few rounds unless there is a reason for many."""

DROP_INS = [DropInFedAvg, DropInAdaptiveClipping, DropInRecentredClipping]
SCHEMES = ["disjoint", "cyclic", "poisson", "fixed_size"]
PRIVATE = [
    name
    for name, strategy in STRATEGIES.items()
    if name != "non_private" and strategy.about.example_problem["kind"] == "quadratic"
]
"""The private strategies for any loss; least squares over an l1 ball meets these faults in separate tests."""
SAMPLE_LEVEL = [name for name in PRIVATE if STRATEGIES[name].about.family == "sample-level"]
"""The strategies in which samples weigh the same, not users."""
BY_SAMPLES = {"sample_clipped_sgd", "iterative_mean_sgd", "poisson_sample_sgd", "smoothed_truncation_gd"}
"""The strategies that drop each sample that is not finite."""
RESTARTED = pytest.param("averaged_clipping_restarted", marks=pytest.mark.slow)
"""It plans dozens of rounds for so few users, and takes seconds; the strategy that it restarts is quick."""
every_strategy = pytest.mark.parametrize("name", [RESTARTED if name in RESTARTED.values else name for name in PRIVATE])
every_drop_in = pytest.mark.parametrize("kind", DROP_INS)


# --- Runs, and what is seen of them ----------------------------------------------------------------------------------


def method_of(name, problem=None, facts=None, **options):
    """A strategy of the registry for 400 users, with the options of its example and `OPTIONS`."""
    options = options_of(name) | OPTIONS.get(name, {}) | {"epsilon": 4.0, "delta": 1e-4} | options
    return make(STRATEGIES[name], problem or Quadratic(2, 1.0, 2.0), USERS, facts=facts or FACTS, **options)


class Recording(LocalGrid):
    """Remembers whom each round asked."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.cohorts: list[np.ndarray] = []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if all("cohort" in message.content for message in messages):  # a question about the model, not who is there
            asked = [Reader().request(message)[0] for message in messages]
            self.cohorts.append(np.concatenate([*asked, np.array([], dtype=np.int64)]))
        return super().send_and_receive(messages, timeout=timeout)


def played(method, federation, users_per_node=None, change=None, changed=()):
    """The result, the model before and after each round, and the cohorts; some nodes' answers go through ``change``."""
    nodes = [Node(method.problem, federation, users) for users in shards(federation.users, users_per_node)]
    nodes = [ChangedNode(node, change) if at in changed else node for at, node in enumerate(nodes)]
    models = []
    with Recording(nodes) as grid:
        result = method.start(grid, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
    return result, np.array(models), grid.cohorts


def linear(dimension=1):
    """Each user's gradient is minus its sample, whatever the model, and the model may go anywhere."""
    return Linear(dimension, 1e3, radius=1e9)


def failing(answer):
    raise OSError("this node is gone")


def answering(replies, metrics=None):
    """A client app that answers, at node i, with the arrays ``replies[i]`` or by raising it."""
    app = ClientApp()

    @app.train()
    def train(message: FlowerMessage, context: Context) -> FlowerMessage:
        user = context.node_config["partition-id"]
        reply = replies[user](message) if callable(replies[user]) else replies[user]
        if isinstance(reply, Exception):
            raise reply
        own = MetricRecord({"num-examples": 1, **(metrics[user] if metrics else {})})
        return FlowerMessage(RecordDict({"arrays": record(reply), "metrics": own}), reply_to=message)

    return app


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def dropped_in(kind, replies, initial, metrics=None, **options):
    """The result of a drop-in strategy on ordinary clients, and the grid."""
    method = kind(users=len(replies), **({"epsilon": 4.0, "delta": 1e-4, "rounds": 1, "seed": 3} | options))
    with ClientGrid(answering(replies, metrics), len(replies)) as grid:
        return method.start(grid, record(initial), roster_timeout=0), grid


# --- Flower: adaptive clipping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_flower_adaptive_clipping_moves_away_from_the_norms(start):
    """Everybody's norm is 1: there a clip of 0.1 falls to 4.5e-6 in 100 rounds, for CLIPPED users are counted."""
    method = make(AdaptiveClipping, linear(), 1000, 8.0, 1e-4, clip_norm=start, rounds=100)
    result, _, _ = played(method, federation_of(np.ones((1000, 1))))
    clips = np.array([round_.facts["clip_norm"] for round_ in result.rounds])
    assert np.all(np.diff(np.abs(np.log(clips[:15]))) < 0)
    assert 0.8 < np.median(clips[40:]) < 1.25
    assert 0.8 < clips[-1] < 1.25


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_flower_adaptive_clipping_of_ordinary_clients_moves_away_from_the_norms(start):
    def one_further(message):
        return {"w": next(iter(message.content.array_records.values()))["w"].numpy() + 1.0}

    options = {"epsilon": 200.0, "rounds": 30, "clip_norm": start, "clip_rate": 0.5}
    result, _ = dropped_in(DropInAdaptiveClipping, [one_further] * 30, {"w": np.zeros(1)}, **options)
    assert 0.7 < result.rounds[-1].facts["clip_norm"] < 1.4


def test_flower_adaptive_clipping_calibrates_noise_to_the_updated_clip():
    """Zero gradients: all are unclipped, so the clip falls by a tenth a round, and noise alone is released."""
    method = make(AdaptiveClipping, linear(WIDE), 50, 8.0, 1e-3, clip_norm=3.0, rounds=8, learning_rate=1.0)
    result, models, _ = played(method, federation_of(np.zeros((50, WIDE))))
    in_force = np.array([round_.facts["clip_norm"] for round_ in result.rounds])
    assert in_force[-1] < 0.8 * in_force[0]
    assert np.abs(np.diff(np.log(in_force))).mean() > 0.05  # or the wrong clip could not be told from the right one
    measured = np.diff(models, axis=0).std(axis=1)
    needed = method.plan.numbers["sum_multiplier"] * 2 * in_force / 50
    np.testing.assert_allclose(measured, needed, rtol=0.05)
    assert np.mean(measured / needed) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("sampling", "move"), [("disjoint", 2), ("poisson", 1)])
def test_flower_adaptive_clipping_has_no_accountant(sampling, move):
    """Both releases of a round, the sum and the count, are in what is spent."""
    method = make(AdaptiveClipping, linear(), 200, 3.0, 1e-4, sampling=sampling, rounds=12, cohort=200)
    result, _, _ = played(method, federation_of(np.ones((200, 1))))
    spent = [round_.spent_epsilon for round_ in result.rounds]
    assert np.all(np.diff(spent) > 0)
    accountant = dp_accounting.pld.PLDAccountant()
    for multiplier in (method.plan.numbers["sum_multiplier"], 2 * method.plan.numbers["count_noise"] / move):
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), 12)
    assert spent[-1] == pytest.approx(accountant.get_epsilon(1e-4), rel=0.01)
    assert spent[-1] <= 3.0


# --- Flower: weights, missing replies, updates that break the clip ---------------------------------------------------


def ten_users(last, copies):
    """Nine users of one sample 0.1, and one with so many copies of ``last``."""
    samples = np.concatenate([np.full((9, 1), 0.1), np.full((copies, 1), last)])
    return federation_of(samples, sizes=[1] * 9 + [copies])


@pytest.mark.parametrize("strategy", [DPFedSGD, DPFedAvg, AdaptiveClipping, DPFTRL])
def test_flower_weighted_averaging_lets_one_user_outweigh_the_noise(strategy):
    """Replacing the user with 1000 of 1009 samples moves the mean by 2C/n = 0.2, as noise is for; there by 1.98."""
    ends = []
    for last in (50.0, -50.0):
        method = make(strategy, linear(), 10, 1.0, 1e-3, clip_norm=1.0, rounds=1, cohort=10, learning_rate=1.0)
        ends.append(final(played(method, ten_users(last, 1000))[0])[0])
    assert abs(ends[0] - ends[1]) == pytest.approx(0.2)
    assert method.plan.guarantee.relation == "replace_one"


@pytest.mark.parametrize("name", [name for name in PRIVATE if name not in SAMPLE_LEVEL])
def test_flower_weighted_averaging_by_number_of_examples(name):
    """A user with 1000 copies of a sample counts as much as a user with one, bit for bit."""
    rest = np.full((USERS - 1, 2), 0.25)
    once = federation_of(np.vstack([rest, [[0.75, -0.5]]]))
    often = federation_of(np.vstack([rest, [[0.75, -0.5]] * 1000]), sizes=[1] * (USERS - 1) + [1000])
    facts = {"min_samples": 1, "max_samples": 1000, "samples": USERS + 999}
    ends = [final(played(method_of(name, facts=facts), federation)[0]) for federation in (once, often)]
    np.testing.assert_array_equal(ends[0], ends[1])


def test_flower_weighted_averaging_where_a_user_has_the_weight_of_its_samples_is_in_the_sensitivity():
    """A user with 1000 of N samples of equal weight moves the mean by 2 * 1000 C / N, and the noise is for this."""
    facts = {"max_samples": 1000, "samples": 1009}
    ends = []
    for last in (50.0, -50.0):
        options = {"rounds": 2, "clip_norm": 1.0, "learning_rate": 1.0, "facts": facts}
        method = make(SampleClippedSGD, linear(), 10, 1.0, 1e-3, **options)
        _, models, _ = played(method, ten_users(last, 1000))
        ends.append(models[-1][0])
    # The release is the mean of the points before each of two steps: half of the first step.
    assert abs(ends[0] - ends[1]) == pytest.approx(0.5 * 2 * 1000 / 1009)
    numbers = method.plan.numbers
    assert numbers["noise_deviation"] == pytest.approx(numbers["noise_multiplier"] * 2 * 1000 / 1009)


@every_drop_in
def test_flower_weighted_averaging_by_the_num_examples_that_clients_report(kind):
    replies, initial = [{"w": np.full(3, 0.1)}] * 9 + [{"w": np.full(3, -50.0)}], {"w": np.zeros(3)}
    honest, boasting = ([{"num-examples": weight}] * 10 for weight in (1, 1))
    boasting = [*boasting[:9], {"num-examples": 10**6}]
    ends = [dropped_in(kind, replies, initial, metrics)[0].arrays["w"].numpy() for metrics in (honest, boasting)]
    np.testing.assert_array_equal(ends[0], ends[1])


def test_flower_too_few_replies_are_only_a_warning():
    """2 of 100 users answer: the run stops before anything is released; whoever was asked is charged."""
    method = make(DPFedSGD, linear(), 100, 1.0, 1e-3, rounds=3)
    with pytest.raises(RunFailed, match=r"too many users of a cohort did not answer .*max_missing = 0.2"):
        played(method, federation_of(np.ones((100, 1))), 1, failing, range(2, 100))
    assert method.result.rounds == []
    assert 0 < method.spent_epsilon < method.plan.guarantee.epsilon


@pytest.mark.parametrize("answering_users", [100, 50, 2])
def test_flower_too_few_replies_leave_noise_too_small(answering_users):
    """Each user that answers counts for 1/100 even if many may be missing, and the noise is for C/100 as before."""
    options = {"rounds": 1, "clip_norm": 1.0, "learning_rate": 1.0, "max_missing": 0.99}
    method = make(DPFedSGD, linear(WIDE), 100, 1.0, 1e-3, **options)
    data = np.zeros((100, WIDE))
    data[:, 0] = 900.0
    result, models, _ = played(method, federation_of(data), 1, failing, range(answering_users, 100))
    assert result.missing_users == 100 - answering_users
    needed = method.plan.numbers["noise_multiplier"] * 2 * 1.0 / 100
    assert models[1, 1:].std() == pytest.approx(needed, rel=0.05)
    assert abs(models[1, 0] - answering_users / 100) < 5 * needed


@every_drop_in
def test_flower_an_error_reply_discards_the_round(kind):
    replies = [{"w": np.full(2, 0.25)}] * 9 + [ValueError("no disk")]
    result, _ = dropped_in(kind, replies, {"w": np.zeros(2)}, epsilon=1e7, clip_norm=1.0)
    assert result.missing_users == 1
    np.testing.assert_allclose(result.arrays["w"].numpy(), 0.25 * 9 / 10, atol=0.01)


@every_strategy
def test_flower_a_zero_update_divides_by_zero(name):
    method = method_of(name)
    result, models, _ = played(method, federation_of(np.zeros((USERS, 2))))
    assert len(result.rounds) == method.plan.rounds
    assert result.missing_users == result.non_finite_users == 0
    assert np.isfinite(models).all()


@every_drop_in
def test_flower_a_zero_update_of_an_ordinary_client_divides_by_zero(kind):
    result, _ = dropped_in(kind, [{"w": np.ones(3)}] * 5, {"w": np.ones(3)}, rounds=3)
    assert (len(result.rounds), result.missing_users, result.non_finite_users) == (3, 0, 0)
    assert np.isfinite(result.arrays["w"].numpy()).all()


@pytest.mark.parametrize("code", [7, 8, 9], ids=["nan", "inf", "minus_inf"])
@every_strategy
def test_flower_nan_passes_the_clip(name, code):
    """A user whose gradient is not finite in one coordinate is like one whose gradient is zero, and is counted."""
    # Local steps to infinity end at the edge of the domain, which is finite, and clipped.
    finite = name == DPFedAvg.about.name and code != 7
    # Samples are dropped one by one, and only users are counted; nobody tells a server that is not trusted.
    counted = not finite and name not in BY_SAMPLES and STRATEGIES[name].about.server_trusted

    def ends_of(user):
        found = []
        for own in ([code, 1], [0, 0]):
            data = np.full((USERS, 2), 3)
            data[user] = own
            result, models, cohorts = played(method_of(name, Wild(2)), federation_of(data))
            assert np.isfinite(models).all()
            assert (result.non_finite_users > 0) == (counted and own[0] == code)
            found.append(models)
        return found, cohorts

    ends, cohorts = ends_of(5)
    if name in MEASURED_FIRST and 5 in cohorts[0]:
        ends, _ = ends_of(int(cohorts[-1][0]))
    if finite:
        assert np.linalg.norm(ends[0][1] - ends[1][1]) <= 1.0 / USERS * (1 + 1e-9)  # its clip, which is 1
    else:
        np.testing.assert_array_equal(ends[0], ends[1])


@every_drop_in
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_flower_nan_of_an_ordinary_client_passes_the_clip(kind, bad):
    others, initial = [{"w": np.full(2, 0.1)}] * 5, {"w": np.zeros(2)}
    result, _ = dropped_in(kind, [*others, {"w": np.array([0.1, bad])}], initial)
    zero, _ = dropped_in(kind, [*others, initial], initial)
    assert (result.non_finite_users, result.missing_users) == (1, 0)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), zero.arrays["w"].numpy())


@every_drop_in
def test_flower_integer_buffers_crash_the_clip(kind):
    """Counters of batch normalisation are not trained: whatever clients do to them, they come back as they were."""
    initial = {"w": np.zeros(2, np.float32), "batches": np.array(7), "mask": np.array([True, False])}
    reply = {"w": np.full(2, 5.0, np.float32), "batches": np.array(10**12), "mask": np.array([False, False])}
    result, _ = dropped_in(kind, [reply] * 5, initial, rounds=2)
    assert result.missing_users == 0
    assert result.arrays["batches"].numpy() == 7
    np.testing.assert_array_equal(result.arrays["mask"].numpy(), initial["mask"])
    assert [array.numpy().dtype for array in result.arrays.values()] == [np.float32, np.int64, np.bool_]
    assert np.isfinite(result.arrays["w"].numpy()).all()


# --- Flower: noise ---------------------------------------------------------------------------------------------------


@every_strategy
def test_flower_noise_and_cohorts_come_from_the_global_generators(name):
    federation, ends = federation_of(np.full((USERS, 2), 0.25)), []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 -- the global state is what this test is about
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        ends.append(played(method_of(name, seed=9), federation)[1])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    np.testing.assert_array_equal(ends[0], ends[1])
    # Where noise is all there is, seeds lead elsewhere: not every one, if steps have few directions.
    nobody_moves = federation_of(np.zeros((USERS, 2)))
    assert len({played(method_of(name, seed=seed), nobody_moves)[1].tobytes() for seed in range(10, 14)}) > 1


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != SparseExponentialChoice.about.name])
def test_flower_noise_is_rounded_to_single_precision(name):
    """Not of a choice alone: it adds no noise to a model, and among so many columns it may stay at the start."""
    problem = Quadratic(200, 1.0, 50.0)
    _, models, _ = played(method_of(name, problem), federation_of(np.zeros((USERS, 200))))
    assert models.dtype == np.float64
    moved = models[np.any(models != 0, axis=1)]
    assert len(moved)
    # The edge of the domain is a round number, and so is zero: what no vertex of a ball has moved, what a sparse model
    # leaves out.
    inside = (np.abs(moved) < 50.0) & (moved != 0)
    assert np.mean(moved[inside] == moved[inside].astype(np.float32)) < 0.01


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 16.0, 64.0])
def test_flower_local_dp_mod_uses_the_classical_formula_above_epsilon_one(epsilon):
    """Noise is what the exact condition of the Gaussian mechanism asks for; at epsilon 64 the formula gives less."""
    options = {"clip_norm": 0.5, "learning_rate": 1.0}
    method = make(LocalDP, linear(WIDE), 4, epsilon, 1e-5, **options)
    exact = 2 * 0.5 * dp_accounting.get_sigma_gaussian(epsilon, 1e-5)
    assert exact * (1 - 1e-9) <= method.plan.numbers["noise_per_user"] <= exact * (1 + 1e-6)
    _, models, _ = played(method, federation_of(np.zeros((4, WIDE))))
    assert models[1].std() * 2 == pytest.approx(exact, rel=0.05)  # the mean of four
    if epsilon == 64.0:
        assert 2 * 0.5 * math.sqrt(2 * math.log(1.25e5)) / epsilon < 0.9 * exact


@pytest.mark.parametrize("clip", [0.01, 3.0])
def test_flower_local_dp_mod_takes_a_sensitivity_that_is_not_the_clips(clip):
    """Replacing a user moves what it sends by 2C, and that is the sensitivity, for any C."""
    ends = []
    for own in (900.0, -900.0):
        method = make(LocalDP, linear(), 4, 1.0, 1e-5, clip_norm=clip, learning_rate=1.0)
        ends.append(final(played(method, federation_of([[own], [0.0], [0.0], [0.0]]))[0])[0])
    moved = 4 * abs(ends[0] - ends[1])
    assert moved == pytest.approx(2 * clip)
    exact = dp_accounting.get_sigma_gaussian(1.0, 1e-5)
    assert method.plan.numbers["noise_per_user"] == pytest.approx(moved * exact, rel=1e-6)


# --- Flower: accounting ----------------------------------------------------------------------------------------------


def test_flower_fixed_clipping_accounts_no_amplification():
    """z = 1, 100 rounds of 100 of 10,000 users: 96.1 there, 1.21 and 1.48 for the schemes that really draw so."""
    assert 0.65 < PoissonBatches(10_000, 0.01, 100).epsilon(1.0, 1e-5) <= 1.21
    assert 1.2 < FixedSizeBatches(10_000, 100, 100).epsilon(1.0, 1e-5) <= 1.49
    assert DisjointBatches(10_000, 10_000, 100).epsilon(1.0, 1e-5) > 50  # everybody in every round
    spent = {}
    for sampling in ("poisson", "fixed_size"):
        options = {"sampling": sampling, "cohort": 4, "rounds": 20}
        method = make(DPFedSGD, linear(), USERS, 1.0, 1e-4, **options)
        spent[sampling] = played(method, federation_of(np.zeros((USERS, 1))))[0].rounds[-1].spent_epsilon
        everybody = make(DPFedSGD, linear(), USERS, 1.0, 1e-4, rounds=20).plan.numbers["noise_multiplier"]
        assert method.plan.numbers["noise_multiplier"] < 0.5 * everybody
    assert all(0.999 < epsilon <= 1.0 for epsilon in spent.values())


def test_flower_the_accountant_knows_renyi_privacy_only():
    """q = 1e-3, z = 1, 2000 rounds, delta = 1e-6: 0.88 there, 0.25 by the privacy loss distribution."""
    assert 0.24 < PoissonBatches(10**6, 1e-3, 2000).epsilon(1.0, 1e-6) <= 0.26


def test_flower_would_exceed_replays_the_whole_ledger():
    """A query of the spent budget costs no 45 times as much after 500 Poisson rounds as after 10 (10.9, 0.24 s there).

    In processor time, which does not depend on what else runs.
    """
    sampler = PoissonBatches(1000, 0.01, 520)
    ledger = sampler.ledger(sampler.calibrate(1.0, 1e-5), Privacy(1.0, 1e-5))

    def seconds(first):
        """The least of four queries, each after a round of its own: no query is answered from memory."""
        taken = []
        while ledger.rounds < first + 4:
            ledger.charge(sampler.cohort(ledger.rounds))
            if ledger.rounds > first:
                started = time.process_time()
                assert 0 < ledger.epsilon() < 1
                taken.append(time.process_time() - started)
        return min(taken)

    early, late = seconds(10), seconds(500)
    assert late < 10 * early + 0.05


def test_flower_a_sample_of_fixed_size_stands_in_for_poisson_sampling():
    """Under a Poisson account every user has its own coin: sizes vary as those of coins do."""
    method = make(DPFedSGD, linear(), USERS, 4.0, 1e-4, sampling="poisson", cohort=100, rounds=40)
    _, _, cohorts = played(method, federation_of(np.zeros((USERS, 1))))
    assert method.plan.guarantee.relation == "add_or_remove"
    sizes = np.array([len(cohort) for cohort in cohorts])
    spread = ((sizes - 100) ** 2).sum() / 75  # chi-square of 40 degrees of freedom, once in 10^6 outside
    assert stats.chi2.ppf(5e-7, 40) < spread < stats.chi2.ppf(1 - 5e-7, 40)


@pytest.mark.parametrize("sampling", SCHEMES)
def test_flower_sampler_and_accountant_are_two_objects(sampling):
    """The cohort that a ledger is charged with must be the one drawn: any other stops the run."""
    method = make(DPFedSGD, linear(), USERS, 4.0, 1e-4, sampling=sampling, cohort=40, rounds=20)
    result, _, cohorts = played(method, federation_of(np.zeros((USERS, 1))))
    sampler = {
        "disjoint": DisjointBatches(USERS, 40, 2),
        "cyclic": CyclicBatches(USERS, 40, 2),
        "poisson": PoissonBatches(USERS, 0.1, 20),
        "fixed_size": FixedSizeBatches(USERS, 40, 20),
    }[sampling]
    for index, cohort in enumerate(cohorts):
        np.testing.assert_array_equal(np.sort(cohort), sampler.cohort(index))
    noise = method.plan.numbers["noise_multiplier"]
    assert result.rounds[-1].spent_epsilon == sampler.epsilon(noise, 1e-4)
    ledger = sampler.ledger(noise, Privacy(4.0, 1e-4))
    for _ in range({"disjoint": 2, "cyclic": 2}.get(sampling, 1)):
        ledger.charge(sampler.cohort(0))
    with pytest.raises(RunFailed):  # the first round's cohort once more than it is drawn
        ledger.charge(sampler.cohort(0))


# --- Flower: who is protected, and what else leaves ------------------------------------------------------------------


@every_drop_in
def test_flower_metrics_of_clients_are_published_without_noise(kind):
    metrics = [{"loss": 41.0 + user} for user in range(5)]
    result, grid = dropped_in(kind, [{"w": np.ones(2)}] * 5, {"w": np.zeros(2)}, metrics, rounds=2)
    seen = {at: dict(values) for at, values in result.train_metrics_clientapp.items()}
    nobody = {"missing_users_private": 0, "non_finite_users_private": 0}
    assert seen == {1: nobody, 2: nobody}
    assert not result.evaluate_metrics_clientapp
    assert {message.metadata.message_type for message in grid.sent} == {"train"}


def test_flower_one_line_is_logged_for_each_reply(caplog):
    counts = []
    for users in (20, 200):
        caplog.clear()
        method = make(DPFedSGD, linear(), users, 1.0, 1e-3, rounds=3)
        with caplog.at_level(logging.DEBUG, logger="userdp"), caplog.at_level(logging.DEBUG, logger="flwr"):
            played(method, federation_of(np.zeros((users, 1))), users_per_node=1)
        counts.append(len(caplog.records))
    assert 0 < counts[0] == counts[1] < 10


# --- pfl -------------------------------------------------------------------------------------------------------------


@every_strategy
def test_pfl_the_random_user_sampler_draws_a_user_twice_into_a_cohort(name):
    field = STRATEGIES[name].model_fields.get("sampling")
    for sampling in [None] if field is None else [one for one in (*SCHEMES, "amplified") if one in choices(field)]:
        options = {} if sampling is None else {"sampling": sampling}
        if "cohort" in STRATEGIES[name].model_fields:
            options["cohort"] = 380 if name != "winsorized_rotation" else USERS
        method = method_of(name, **options)
        _, _, cohorts = played(method, federation_of(np.zeros((USERS, 2))), users_per_node=30)
        assert len(cohorts) == method.plan.rounds
        for cohort in cohorts:
            assert len(np.unique(cohort)) == len(cohort)


@pytest.mark.parametrize("scale", [1.0, 1e300])
def test_pfl_nan_passes_the_clip(scale):
    """Not even from a node that does not sanitise: what comes with a NaN is not added, and costs nobody the round."""

    def poisoned(answer):
        values = answer.values * 0 + scale
        values[0, 0] = np.nan
        return type(answer)(answer.users, values, 0)

    method = make(DPFedSGD, linear(3), 100, 1.0, 1e-3, rounds=4, learning_rate=1.0)
    result, models, _ = played(method, federation_of(np.ones((100, 3))), 10, poisoned, [4])
    clean = make(DPFedSGD, linear(3), 100, 1.0, 1e-3, rounds=4, learning_rate=1.0)
    missing, others, _ = played(clean, federation_of(np.ones((100, 3))), 10, failing, [4])
    assert result.missing_users == missing.missing_users == 40
    np.testing.assert_array_equal(models, others)


@pytest.mark.parametrize("epsilon", [1e-2, 1e-3])
@pytest.mark.parametrize("sampling", SCHEMES)
def test_pfl_noise_above_one_hundred_cannot_be_calibrated(sampling, epsilon):
    method = make(DPFedSGD, linear(), 1000, epsilon, 1e-9, sampling=sampling, cohort=100, rounds=30)
    assert method.plan.numbers["noise_multiplier"] > 100
    assert epsilon * (1 - 1e-3) <= method.plan.guarantee.epsilon <= epsilon


# --- FL4Health and Opacus --------------------------------------------------------------------------------------------


@every_strategy
def test_fl4health_noise_is_scaled_by_the_cohorts_largest_weight(name):
    """Zero data of equal and of most unequal sizes, with the same public facts: the same noise."""
    facts = {"min_samples": 1, "max_samples": 401, "samples": 2 * USERS}
    # Random batches depend on who holds how many; everybody in every round does not.
    everybody = {"batches": "full"} if "batches" in STRATEGIES[name].model_fields else {}
    everybody |= {"batch": 2 * USERS} if name == "poisson_sample_sgd" else {}
    even, uneven = [2] * USERS, [1] * (USERS - 1) + [USERS + 1]
    ends = [
        played(method_of(name, facts=facts, **everybody), federation_of(np.zeros((2 * USERS, 2)), sizes=sizes))[1]
        for sizes in (even, uneven)
    ]
    if name == IterativeMeanSGD.about.name:
        # Once the model has moved, gradients are no longer zero, and which samples share a group differs.
        ends = [models[:3] for models in ends]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


@pytest.mark.parametrize("strategy", [DPFedSGD, DPFedAvg, AdaptiveClipping, DPFTRL])
def test_fl4health_noise_is_scaled_by_what_users_of_the_cohort_hold(strategy):
    """The noise is the same whatever users hold: a release less the mean of the users, which is known here."""
    noise = []
    for held, samples in ((0.0, 1), (0.25, 3), (-0.5, 40)):
        options = {"rounds": 1, "cohort": 20, "clip_norm": 1.0, "learning_rate": 1.0}
        options |= {"local_steps": 1, "local_rate": 1.0} if strategy is DPFedAvg else {}
        method = make(strategy, linear(3), 20, 1.0, 1e-3, **options)
        data = np.zeros((20, samples, 3))
        data[:, :, 0] = held
        noise.append(final(played(method, federation_of(data))[0]) - [held, 0.0, 0.0])
    np.testing.assert_allclose(noise[1:], [noise[0]] * 2, rtol=1e-9)


@pytest.mark.parametrize("cohort", [50, 1])
def test_opacus_divides_by_the_batch_size_that_was_drawn(cohort):
    """Everybody's gradient is -1 and clips are 1: a step is the number drawn over the PUBLIC number expected."""
    options = {"sampling": "poisson", "cohort": cohort, "rounds": 12, "learning_rate": 1.0, "clip_norm": 1.0}
    method = make(DPFedSGD, linear(), USERS, 50.0, 1e-4, **options)
    _, models, cohorts = played(method, federation_of(np.ones((USERS, 1))))
    drawn = np.array([len(asked) for asked in cohorts])
    assert len(set(drawn)) > 2
    assert (0 in drawn) == (cohort == 1)
    deviation = method.plan.numbers["noise_deviation"] * cohort
    assert deviation < 0.3
    np.testing.assert_allclose(np.diff(models[:, 0]) * cohort, drawn, atol=5 * deviation)


def test_opacus_divides_samples_by_how_many_there_are():
    """A mean over samples is their sum over the public number that was declared, for any number that came."""
    options = {"rounds": 2, "clip_norm": 1.0, "learning_rate": 1.0, "facts": {"samples": 1000}, "unit": "sample"}
    for came in (10, 500):
        method = make(SampleClippedSGD, linear(), 10, 1e4, 1e-4, **options)
        _, models, _ = played(method, federation_of(np.ones((10, came // 10, 1))))
        # The release is the mean of the points before each of two steps: half of the first step.
        assert models[-1, 0] == pytest.approx(0.5 * came / 1000, abs=1e-3)


@every_strategy
def test_opacus_secure_mode_claims_safety_that_seeded_floating_point_noise_does_not_have(name):
    """Noise from a seed can be taken off by whoever knows it: nothing printed with a guarantee may call it secure."""
    federation = federation_of(np.full((USERS, 2), 0.25))
    first, again = (played(method_of(name, seed=5), federation) for _ in range(2))
    np.testing.assert_array_equal(first[1], again[1])
    printed = str(first[0].guarantee.as_dict()) + first[0].guarantee.sentence()
    for word in ("secure", "cryptographic", "hardened"):
        assert word not in printed.lower()


# --- NVIDIA FLARE, and the sparse vector technique -------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 100])
@every_strategy
def test_nvflare_a_default_round_costs_more_with_every_weight(name, dimension):
    """There one round with the defaults, epsilon 0.1, cost 70,333: each weight that was sent paid anew."""
    problem = Quadratic(dimension, 1.0, 2.0)
    guarantee = method_of(name, problem).plan.guarantee
    assert 0.5 * 4.0 < guarantee.epsilon <= 4.0
    assert guarantee == method_of(name, Quadratic(2, 1.0, 2.0)).plan.guarantee


RUNS = 40_000
STOPPED = -1.0
"""The answer to further queries once a technique has stopped."""


def sparse_vector(share, *, noise_of_query, limit=None, numbers=False):
    """A variant of the sparse vector technique for queries of sensitivity 1 against the threshold 0.

    It claims epsilon = 1.

    Args:
        share: of epsilon, for the threshold: its noise is Lap(1 / share).
        noise_of_query: scale of the noise of each query; 0 for none.
        limit: answers "above" after which it stops; never if not given.
        numbers: above the threshold the noisy query itself is the answer.

    Returns:
        A function (queries, runs, rng) -> (runs, queries) answers: 1 for above (or 2 and more for numbers), 0 for
        below.
    """

    def answers(queries, runs, rng):
        shape = (runs, len(queries))
        threshold = rng.laplace(scale=1 / share, size=(runs, 1))
        noisy = queries + (rng.laplace(scale=noise_of_query, size=shape) if noise_of_query else np.zeros(shape))
        above = noisy >= threshold
        said = np.where(above, 6 + np.clip(np.floor(noisy), -4, 4), 0.0) if numbers else above.astype(float)
        stopped = limit is not None and np.cumsum(above, axis=1) - above >= limit
        return np.where(stopped, STOPPED, said)

    return answers


def ours(queries, runs, rng):
    """`AboveThreshold`, which stops at the first score BELOW its threshold: scores fall where queries rise."""
    test = AboveThreshold(batch=100, kernel=RampKernel(1.0), epsilon=1.0, delta=0.01)
    scores = test.threshold - test.sensitivity * np.asarray(queries)
    said = np.empty((runs, len(queries)))
    for answers in said:
        session = test.session(SeededNoise(rng))
        for at, score in enumerate(scores):
            answers[at] = not session.observe(test.scored(score, 100))  # once it has stopped, always True
    return said


# Variants of Lyu, Su, Li, "Understanding the sparse vector technique for differential privacy" (2017), Figure 1, by its
# numbers, all of sensitivity 1 and claiming epsilon = 1, with the largest number of answers "above" that is allowed.
PRIVATE_VARIANTS = {
    "1": sparse_vector(1 / 2, noise_of_query=2 * 2 / 0.5, limit=2),
    "2, of one answer": sparse_vector(1 / 2, noise_of_query=2 / 0.5, limit=1),
}
BROKEN_VARIANTS = {
    "variant_3": sparse_vector(1 / 2, noise_of_query=1 / 0.5, limit=1, numbers=True),
    "variant_4": sparse_vector(1 / 4, noise_of_query=1 / 0.75, limit=3),
    "variant_5": sparse_vector(1 / 2, noise_of_query=0.0),
    "variant_6": sparse_vector(1 / 2, noise_of_query=1 / 0.5),
}
NEIGHBOURS = {
    "low, then one alike": ([0] * 6 + [0], [1] * 6 + [0]),
    "all higher": ([-1.5] * 10, [-0.5] * 10),
    "crossing, once": ([0, 1], [1, 0]),
    "crossing, three times": ([0] * 3 + [1] * 3, [1] * 3 + [0] * 3),
    "crossing, five times": ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5),
}
"""Answers to the same queries on two neighbouring data sets, each within 1 of the other's."""


def audited(technique, runs=RUNS):
    """The largest lower bound on epsilon, over the neighbours, each with confidence 99.9%.

    The audit knows nothing of the technique. A transcript's score is how much oftener it was seen on the one data set
    than on the other in ``runs`` runs of its own; the bound is from as many further runs.
    """
    bounds = []
    for seed, (one, other) in enumerate(NEIGHBOURS.values()):
        rng = np.random.default_rng(seed)
        said = np.vstack([technique(np.asarray(queries, float), 2 * runs, rng) for queries in (one, other)])
        codes = (said + 2) @ (13.0 ** np.arange(said.shape[1]))  # a transcript as one number, exact below 2^53
        _, transcript = np.unique(codes, return_inverse=True)
        first, second = transcript[: 2 * runs], transcript[2 * runs :]
        seen = [np.bincount(part[:runs], minlength=transcript.max() + 1) + 1 for part in (first, second)]
        score = np.log(seen[0] / seen[1])
        bounds.append(epsilon_lower_bound(score[first[runs:]], score[second[runs:]], confidence=0.999))
    return max(bounds)


@pytest.mark.parametrize("variant", BROKEN_VARIANTS)
def test_lyu_su_li_broken_variants_of_the_sparse_vector_technique_are_rejected(variant):
    """Variant 3 gives the noisy query away, 4 and 6 do not pay for each answer, 5 adds no noise to queries."""
    assert audited(BROKEN_VARIANTS[variant]) > 1.0


@pytest.mark.parametrize("variant", PRIVATE_VARIANTS)
def test_lyu_su_li_private_variants_of_the_sparse_vector_technique_pass_the_same_audit(variant):
    assert audited(PRIVATE_VARIANTS[variant]) <= 1.0


@pytest.mark.long
def test_lyu_su_li_above_threshold_passes_the_same_audit():
    assert 0.2 < audited(ours, runs=15_000) <= 1.0
