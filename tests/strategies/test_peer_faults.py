"""Faults found in other libraries, each tried here through what a user of userdp calls.

Tests are named ``test_<library>_<fault>``. They look at what leaves a run (models, records, messages, logs), at plans
and at samplers, so that they hold whatever the inside becomes. Noise is measured on many coordinates at once: with 4000
of them a standard deviation is known to 1.1%, and 5% is more than four standard errors.
"""

import logging
import time

import any_strategy
import numpy as np
import pytest
from any_strategy import MEASURED_FIRST, USERS
from helpers import Wild, federation_of, final, make
from scipy import stats

from simulations.engines.grids import LocalGrid, shards
from strategies import (
    STRATEGIES,
    AdaptiveClipping,
    DPFedAvg,
    DPFedSGD,
    IterativeMeanSGD,
    SampleClippedSGD,
    SparseExponentialChoice,
    model_vector,
)
from strategies.wire.questions import Reader
from userdp.accounting import Privacy
from userdp.nodes.node import Node
from userdp.problems import Linear, Quadratic
from userdp.sampling import PoissonBatches

pytestmark = pytest.mark.slow

WIDE = 4000
"""Coordinates from which noise is measured, each an independent draw."""

OPTIONS = {
    "private_hard_thresholding": {"sparsity": 2, "level": 20.0},
    "sparse_optimisation": {"sparsity": 2},
    # As many rounds as theory plans: in few of them nobody in particular is drawn.
    "averaged_clipping": {"rounds": None},
    "averaged_clipping_restarted": {"rounds": None, "runs": None},
}
"""Options beside those of the example."""

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
every_strategy = pytest.mark.parametrize("name", PRIVATE)


# --- Runs, and what is seen of them ----------------------------------------------------------------------------------


def method_of(name, problem=None, **options):
    return any_strategy.method_of(name, problem or Quadratic(2, 1.0, 2.0), **OPTIONS.get(name, {}) | options)


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


def played(method, federation, users_per_node=None):
    """The result, the model before and after each round, and the cohorts."""
    nodes = [Node(method.problem, federation, users) for users in shards(federation.users, users_per_node)]
    models = []
    with Recording(nodes) as grid:
        result = method.start(grid, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
    return result, np.array(models), grid.cohorts


def linear(dimension=1):
    """Each user's gradient is minus its sample, whatever the model, and the model may go anywhere."""
    return Linear(dimension, 1e3, radius=1e9)


# --- Flower: adaptive clipping ---------------------------------------------------------------------------------------


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


# --- Flower: weights, and updates that break the clip -----------------------------------------------------------------


def ten_users(last, copies):
    """Nine users of one sample 0.1, and one with so many copies of ``last``."""
    samples = np.concatenate([np.full((9, 1), 0.1), np.full((copies, 1), last)])
    return federation_of(samples, sizes=[1] * 9 + [copies])


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


# --- Flower: noise ---------------------------------------------------------------------------------------------------


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


# --- Flower: accounting ----------------------------------------------------------------------------------------------


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


# --- Flower: what else leaves ----------------------------------------------------------------------------------------


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
    ends = []
    for sizes in (even, uneven):
        method = method_of(name, facts=facts, **everybody)
        result, models, _ = played(method, federation_of(np.zeros((2 * USERS, 2)), sizes=sizes))
        assert len(result.rounds) == method.plan.rounds
        assert result.missing_users == result.non_finite_users == 0
        assert np.isfinite(models).all()  # a zero update is divided by no length
        ends.append(models)
    if name == IterativeMeanSGD.about.name:
        # Once the model has moved, gradients are no longer zero, and which samples share a group differs.
        ends = [models[:3] for models in ends]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


@every_strategy
def test_opacus_secure_mode_claims_safety_that_seeded_floating_point_noise_does_not_have(name):
    """Noise from a seed can be taken off by whoever knows it: nothing printed with a guarantee may call it secure."""
    federation = federation_of(np.full((USERS, 2), 0.25))
    first, again = (played(method_of(name, seed=5), federation) for _ in range(2))
    np.testing.assert_array_equal(first[1], again[1])
    printed = str(first[0].guarantee.as_dict()) + first[0].guarantee.sentence()
    for word in ("secure", "cryptographic", "hardened"):
        assert word not in printed.lower()


# --- NVIDIA FLARE ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 100])
@every_strategy
def test_nvflare_a_default_round_costs_more_with_every_weight(name, dimension):
    """There one round with the defaults, epsilon 0.1, cost 70,333: each weight that was sent paid anew."""
    problem = Quadratic(dimension, 1.0, 2.0)
    guarantee = method_of(name, problem).plan.guarantee
    assert 0.5 * 4.0 < guarantee.epsilon <= 4.0
    assert guarantee == method_of(name, Quadratic(2, 1.0, 2.0)).plan.guarantee
