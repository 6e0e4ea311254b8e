"""Several stopped runs that share a budget, the choice among them, and recovery as the estimate of means."""

import math

import numpy as np
import pytest
from helpers import federation_of, gathered, local_grid, make, noise_again, requested
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import StoppedSGD
from strategies.baselines.sparse_gradients.bias_reduction import TruncatedGeometric, bias_reduced_gradient
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.recovery import RecoveredMean
from strategies.baselines.sparse_gradients.stopped_scheme import IterateAverage, RandomIterate
from strategies.baselines.sparse_gradients.stopping import StepBudget
from userdp.accounting import epsilon_of
from userdp.accounting.costs import Cost
from userdp.errors import BadInput
from userdp.nodes.node import Node
from userdp.noise import SeededNoise, in_units
from userdp.problems import Quadratic

USERS = 200


def method_for(users=USERS, epsilon=4.0, delta=1e-6, seed=0, dimension=2, **options):
    return make(StoppedSGD, Quadratic(dimension, 1.0, 2.0), users, epsilon, delta, seed=seed, **options)


# --- Several runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accounting", ["tight", "paper"])
@pytest.mark.parametrize("runs", [1, 2, 5])
def test_runs_together_pass_the_filter_of_one(accounting, runs):
    whole = StepBudget(300, 1.0, 1e-6, accounting)
    shared = StepBudget(300, 1.0, 1e-6, accounting, runs=runs)
    for seed in range(20):
        rng, limit = np.random.default_rng(seed), whole.filter()
        levels = np.concatenate([shared.draw_levels(rng) for _ in range(runs)])
        for level in levels:
            limit.charge(whole.step_epsilons[level], whole.step_deltas[level])  # refuses what does not fit
        assert shared.spent(levels) == pytest.approx(limit.epsilon, rel=1e-9)


def test_a_run_keeps_to_its_share_and_the_choice_is_added():
    method = method_for(runs=4, choice_share=0.2)
    sampler = method.scheme.rounds
    assert len(sampler.ends) == 4
    assert max(sampler.ends) == sampler.steps - 1
    assert method.plan.rounds == sampler.rounds == sampler.steps + 1
    assert sampler.epsilon(sampler.budget.noise_multiplier, 1e-6, sampler.steps) <= 0.8 * 4.0
    assert method.plan.guarantee.epsilon == sampler.budget.spent(sampler.levels) + 0.2 * 4.0 <= 4.0
    np.testing.assert_array_equal(sampler.cohort(sampler.steps), np.arange(USERS))
    for index in range(sampler.rounds):
        method.program.own.ledger.charge(sampler.cohort(index))
    assert method.program.own.ledger.epsilon() == pytest.approx(method.plan.guarantee.epsilon, rel=1e-12)


def test_every_run_starts_anew_and_the_model_is_the_one_that_was_chosen():
    method = method_for(runs=3, learning_rate=0.05)
    released, facts = [], []
    result = method.start(
        local_grid(Quadratic(2, 1.0, 2.0), federation_of(np.full((USERS, 2), 0.5)), 7),
        on_round=lambda record: facts.append(record.facts),
        evaluate_fn=lambda _, arrays: released.append(method.wire.vector(arrays)) or None,
    )
    ends = [released[end + 1] for end in sorted(method.scheme.rounds.ends)]
    chosen = int(facts[-1]["chosen_run"]) - 1
    np.testing.assert_array_equal(method.wire.vector(result.arrays), ends[chosen])
    for end in sorted(method.scheme.rounds.ends)[:-1]:
        step = method.scheme.rate * math.sqrt(2) * 10 * method.scheme.members.norm
        assert np.linalg.norm(released[end + 2]) <= step / method.scheme.rounds.budget.levels.chances.min()


@settings(max_examples=50)
@given(
    arrays(np.float64, (6, 3), elements=st.floats(-1e300, 1e300)),
    arrays(np.float64, (3,), elements=st.floats(-1e300, 1e300)),
    arrays(np.float64, (3, 2), elements=st.floats(-2, 2)),
)
def test_no_user_moves_a_score_by_more_than_the_choice_is_made_for(changes, other, models):
    heard = []

    class Listening(SeededNoise):
        def choose(self, scores, epsilon, *, flips=False):
            heard.append((in_units(scores), epsilon))
            return super().choose(scores, epsilon, flips=flips)

    scheme = method_for(runs=3).scheme
    _, reach = scheme.ends(IterateAverage(np.zeros(2), list(models)))
    neighbour = changes.copy()
    neighbour[0] = other
    for rows in (changes, neighbour):
        scheme.choose(rows, reach, Listening(np.random.default_rng(0)))
    if heard:
        (one, epsilon), (two, _) = heard
        assert np.abs(one - two).max() <= 1 + 1e-9  # in units of the sensitivity
        assert epsilon == scheme.rounds.choice_epsilon


def test_the_best_of_runs_is_chosen_when_the_budget_allows_it():
    scheme = method_for(users=USERS, epsilon=1e3, delta=1e-3, runs=2).scheme
    models = np.array([[1.0, 0.0], [0.0, 1.0]])
    changes = np.tile([0.1, -0.1], (USERS, 1))
    noise = SeededNoise(np.random.default_rng(0))
    _, reach = scheme.ends(IterateAverage(np.zeros(2), list(models)))
    assert {scheme.choose(changes, reach, noise) for _ in range(50)} == {1}
    assert scheme.choose(changes, np.zeros(2), noise) == 0


def test_runs_are_at_least_one():
    with pytest.raises(BadInput, match="runs = 0"):
        StepBudget(10, 1.0, 1e-6, runs=0)


# --- Several runs for losses that are not convex ---------------------------------------------------------------------

FAR = np.array([0.0, 1e6, -1e6, 0.5, -0.5])


def test_of_runs_for_a_stationary_point_one_with_a_short_gradient_is_chosen_among_their_random_iterates():
    values = np.full((USERS, 2), 0.5)
    method = method_for(runs=3, output="random", gap=1.0, learning_rate=0.05)
    sampler, released, facts = method.scheme.rounds, [], []
    result = method.start(
        local_grid(Quadratic(2, 1.0, 2.0), federation_of(values), 7),
        on_round=lambda record: facts.append(record.facts),
        evaluate_fn=lambda _, arrays: released.append(method.wire.vector(arrays)) or None,
    )
    ends = [released[end + 1] for end in sorted(sampler.ends)]
    chosen = int(facts[-1]["chosen_run"]) - 1
    np.testing.assert_array_equal(method.wire.vector(result.arrays), ends[chosen])
    assert method.program.own.ledger.epsilon() <= 4.0
    sure = method_for(epsilon=1e3, delta=1e-3, runs=2, output="random", gap=1.0).scheme
    totals, noise = np.array([[300, 400.0], [-490.0, 0.0], [0.0, 510.0]]), SeededNoise(np.random.default_rng(0))
    assert {sure.choose_by_gradient(totals, noise) for _ in range(50)} == {1}
    kept = method.scheme.new_memory().kept_at
    assert len(kept) == 3
    assert all(0 <= at <= steps for at, steps in zip(kept, sampler.lengths, strict=True))
    assert len(set(kept)) > 1


@pytest.mark.sweep(1)
def test_no_user_moves_the_length_of_a_gradient_by_more_than_the_choice_is_made_for():
    """Through nodes and their clips, of the worst users there can be, to what the choice hears."""
    method = make(StoppedSGD, Quadratic(2, 1e7, 2.0), 60, 4.0, 1e-6, runs=2, output="random", gap=1, clip_norm=0.5)
    scheme, rng, worst = method.scheme, np.random.default_rng(0), 0.0
    models = [np.zeros(2), np.array([1.0, -1.0]), np.array([0.3, 0.7])]
    memory = RandomIterate(np.zeros(2), models, kept_at=(0, 0, 0))
    asked = scheme.ask(scheme.rounds.steps, memory)
    for _ in range(300):
        rows = rng.choice(FAR, (60, 2))
        other = rows.copy()
        other[0] = rng.choice(FAR, 2)
        heard = []

        class Listening(SeededNoise):
            def choose(self, scores, epsilon, *, flips=False, heard=heard):
                assert epsilon == scheme.rounds.choice_epsilon
                heard.append(in_units(scores))
                return super().choose(scores, epsilon, flips=flips)

        for data in (rows, other):
            node = Node(method.original, federation_of(data), np.arange(60))
            total = node.compute(np.zeros(2), np.arange(60), asked.computation).values[0]
            scheme.choose_by_gradient(total.reshape(3, 2), Listening(np.random.default_rng(0)))
        worst = max(worst, float(np.abs(heard[0] - heard[1]).max()))
    assert 0.9 < worst <= 1 + 1e-9


# --- Recovery --------------------------------------------------------------------------------------------------------

MEMBERS = SparseVectors(1, 1.0)


def oracle_of(dimension=3000, epsilon=1.0, delta=1e-3, seed=0):
    return RecoveredMean(dimension, MEMBERS, epsilon, delta, seed)


class Silent(SeededNoise):
    """Adds nothing, and keeps the size of what it would have added."""

    def __init__(self):
        super().__init__(np.random.default_rng(0))
        self.deviations, self.exact = [], []

    def gaussian(self, value, deviation):
        self.deviations.append(deviation)
        self.exact.append(np.array(value))
        return np.array(value, dtype=np.float64)


@pytest.mark.parametrize("size", [1, 4, 16, 64, 256])
def test_replacing_a_record_moves_measurements_by_less_than_their_noise_hides(size):
    oracle, rng, noise = oracle_of(), np.random.default_rng(size), Silent()
    rows = np.zeros((2, 3000))
    rows[[0, 1], rng.integers(3000, size=2)] = [1.0, -1.0]  # the farthest apart that two records can be
    base = rng.normal(size=3000) * 1e-3
    for row in rows:
        oracle(base + row / size, size, noise)
    if noise.exact:
        moved = np.linalg.norm(noise.exact[0] - noise.exact[1])
        multiplier = noise.deviations[0] / moved
        assert epsilon_of(Cost(multiplier), 1, oracle.delta) <= oracle.epsilon * (1 + 1e-9)
    else:
        assert oracle.squared_error(size) >= 1.0


def test_at_some_size_there_are_measurements_at_a_smaller_nothing_and_at_a_larger_a_projection():
    oracle, told = oracle_of(), []
    for size in (1, 64, 4096):
        noise = Silent()
        found = oracle(np.eye(3000)[5], size, noise)
        told.append([len(exact) for exact in noise.exact])
        assert np.linalg.norm(found - np.eye(3000)[5]) ** 2 <= oracle.squared_error(size) * (1 + 1e-9)
    assert told[0] == []
    assert told[1][0] < 3000
    assert told[2] == [3000]


def test_recovery_telescopes_like_any_other_oracle():
    oracle, levels = oracle_of(dimension=40), TruncatedGeometric(2)
    rows, total = np.zeros((8, 40)), np.zeros(40)
    rows[:, 3] = 1.0
    for level, chance in enumerate(levels.chances):
        batch = rows[: 2 << level]
        total += chance * bias_reduced_gradient(batch, rows[:1], chance, oracle, Silent())
    largest = oracle(rows[0], 8, Silent())
    np.testing.assert_allclose(total, largest, atol=1e-9)


def test_rows_for_recovery_are_clipped_in_both_norms_by_the_server():
    method = method_for(dimension=50, oracle="recovery", sparsity=2, clip_norm=0.5, learning_rate=0.1)
    answers = gathered(method, federation_of(np.full((USERS, 50), 0.5)), 0, np.zeros(50))
    answers.values[:] = 1e6
    seen = []

    class Recorder(RecoveredMean):
        def __call__(self, mean, size, noise):
            seen.append(mean)
            return mean

    scheme = method.scheme
    recorder = Recorder(50, scheme.members, scheme.oracle.epsilon, scheme.oracle.delta, 0)
    object.__setattr__(scheme, "oracle", recorder)
    scheme.estimate(scheme.rounds.draw(0), answers.values, noise_again(method, 0))
    assert len(seen) == 4
    assert all(np.abs(mean).sum() <= 0.5 * math.sqrt(2) * (1 + 1e-12) for mean in seen)
    assert requested(method, 0).computation.l1_norm == pytest.approx(0.5 * math.sqrt(2))


def test_a_run_with_recovery_ends_in_the_domain_and_promises_the_same():
    method = method_for(dimension=20, oracle="recovery", sparsity=1, learning_rate=0.05)
    other = method_for(dimension=20, sparsity=1, learning_rate=0.05)
    assert method.plan.guarantee.epsilon == other.plan.guarantee.epsilon
    result = method.start(local_grid(Quadratic(20, 1.0, 2.0), federation_of(np.full((USERS, 20), 0.2)), 50))
    model = method.wire.vector(result.arrays)
    assert np.isfinite(model).all()
    assert np.abs(model).max() <= 2.0


def test_recovery_is_refused_where_the_sparsity_fills_the_dimension():
    with pytest.raises(BadInput, match="must exceed the sparsity"):
        method_for(oracle="recovery")
