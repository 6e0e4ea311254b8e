"""Localised robust SGD: its proof step by step on real neighbours, and how a run behaves."""

import numpy as np
import pytest
from helpers import afresh, federation_of, final, gathered, make, run, taken
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import LocalizedRobustSGD, model_record
from userdp.data import Gaussian, SyntheticFederation
from userdp.estimators import replacement_bound
from userdp.problems import Bernoulli, Linear, Logistic, Quadratic
from userdp.randomness import stream

PROBLEMS = {
    "linear": Linear(2, 1.0),
    "quadratic": Quadratic(2, 1.0, 1.0),
    "bernoulli": Bernoulli(2, 2.0),
    "ridge": Logistic(2, 1.0, 2.0, ridge=0.04),
}
VARIANTS = {
    "ours": {"estimate": "winsorized", "kernel": "ramp"},
    "paper": {"estimate": "debiased", "statistic": "median", "kernel": "exp"},
    "mixed": {"estimate": "debiased", "statistic": "trimmed_mean", "kernel": "ramp"},
}
BATCH, STEPS = 13, 5
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def tiny(problem, variant, rate, radius=0.2, users=BATCH * STEPS, **options):
    """A budget so large that thirteen users a step are enough: sensitivities do not depend on it."""
    step = rate * 2 / problem.certificate.smoothness if problem.certificate.smoothness else rate
    options = {"radius": radius, "batch": BATCH, "phases": 1, "learning_rate": step} | variant | options
    return make(LocalizedRobustSGD, problem, users, epsilon=1e5, delta=1e-3, **options)


def people(problem, rng, count):
    """Users of one to three samples: two thirds much alike, the others anywhere within the declared bounds."""
    sizes = rng.integers(1, 4, count)
    odd = np.repeat(rng.random(count) < 0.3, sizes)
    near = rng.uniform(-0.3, 0.3, 2) + rng.uniform(-0.15, 0.15, (sizes.sum(), 2))
    far = rng.choice([-5.0, -1.0, 0.0, 1.0, 5.0], (sizes.sum(), 2))
    samples = np.where(odd[:, None], far, near)
    targets = np.where(odd, rng.integers(0, 2, len(odd)), 1) if problem.has_targets else None
    return samples, sizes, targets


def replaced(data, user, other):
    """The federation with one whole user replaced by another, who may hold more or fewer samples."""
    samples, sizes, targets = data
    first = sizes[:user].sum()
    last = first + sizes[user]
    new_samples, new_sizes, new_targets = other
    return (
        np.concatenate([samples[:first], new_samples, samples[last:]]),
        np.concatenate([sizes[:user], new_sizes, sizes[user + 1 :]]),
        None if targets is None else np.concatenate([targets[:first], new_targets, targets[last:]]),
    )


def phase(method, data):
    """Noise-free inside of a phase, by the strategy's own steps: average iterate, scores, rows of each step."""
    samples, sizes, targets = data
    federation = federation_of(samples, sizes=list(sizes), targets=targets)
    x, scores, rows = afresh(method).problem.initial(), [], []
    for index in range(method.plan.rounds):
        replies = gathered(method, federation, index, x)
        rows.append(replies.values)
        step = taken(method, index, x, replies)
        x = step.following
        scores.append(step.facts["score_private"])
    return method.memory.average.value, np.array(scores), rows


def aligned(rows, radius):
    """True if some user's row, as a centre, shows that the batch is aligned."""
    distances = np.abs(rows[:, None] - rows).max(axis=2)
    return bool(((distances <= radius).sum(axis=1) >= 2 * len(rows) / 3).any())


# --- Formal guarantee ----------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@each_problem
@each_variant
@settings(max_examples=40)
@given(
    st.integers(0, 2**32), st.integers(0, STEPS - 1), st.integers(0, BATCH - 1), st.sampled_from([0.01, 0.1, 0.5, 1.0])
)
def test_one_user_moves_the_average_iterate_and_all_scores_by_at_most_what_is_stated(
    problem, variant, seed, step, place, rate
):
    """A1 to A4 at work: what the user's own step does is never enlarged by the steps after it."""
    rng = np.random.default_rng(seed)
    method = tiny(problem, variant, rate, seed=int(rng.integers(1000)))
    data = people(problem, rng, BATCH * STEPS)
    user = int(method.scheme.sampler.cohort(step)[place])
    neighbour = replaced(data, user, people(problem, rng, 1))
    (average, scores, rows), (other, other_scores, other_rows) = phase(method, data), phase(method, neighbour)
    assert np.array_equal(scores[:step], other_scores[:step])
    part = method.scheme.phases[0]
    if not any(aligned(values[step], part.gradient.radius) for values in (rows, other_rows)):
        return
    bound = part.learning_rate * part.gradient.sup_sensitivity(BATCH)
    assert np.abs(average - other).max() <= bound * (1 + 1e-9)
    assert np.linalg.norm(average - other) <= part.mechanism.l2_sensitivity * (1 + 1e-9)
    assert abs(scores[step] - other_scores[step]) <= replacement_bound(BATCH) + 1e-9
    assert np.abs(scores - other_scores).max() <= part.test.sensitivity + 1e-9


def test_the_property_above_meets_aligned_batches_most_of_the_time():
    """Otherwise it would say nothing."""
    count = 0
    for seed in range(50):
        method = tiny(PROBLEMS["quadratic"], VARIANTS["ours"], 0.5)
        _, _, rows = phase(method, people(method.problem, np.random.default_rng(seed), BATCH * STEPS))
        count += sum(aligned(values, method.scheme.phases[0].gradient.radius) for values in rows)
    assert count > 100


@pytest.mark.parametrize(("variant", "share"), list(zip(VARIANTS.values(), [0.6, 0.49, 0.74], strict=True)))
def test_the_stated_bound_is_nearly_attained_on_a_linear_loss(variant, share):
    """The user of the FIRST step goes from one side to the other; a linear loss keeps the difference to the end."""
    problem = Linear(2, 50.0, radius=1000.0)
    method = tiny(problem, variant, 1.0)
    samples = np.zeros((BATCH * STEPS, 2))
    user = method.scheme.sampler.cohort(0)[0]
    averages = []
    for side in (50.0, -50.0):
        samples[user] = side
        averages.append(phase(method, (samples, np.ones(BATCH * STEPS, dtype=int), None))[0])
    bound = method.scheme.phases[0].mechanism.l2_sensitivity
    assert share * bound <= np.linalg.norm(averages[0] - averages[1]) <= bound * (1 + 1e-9)


# --- Behaviour -----------------------------------------------------------------------------------------------------


def trainable(**options):
    """Six thousand users of twenty samples, in two phases of three and two steps."""
    federation = SyntheticFederation(Gaussian(dimension=3), 6000, 2, samples_per_user=20)
    options = {"batch": 1000, "phases": 2, "learning_rate": 0.5, "radius": 4.0} | options
    method = make(LocalizedRobustSGD, Quadratic(3, 5.0, 2.0), 6000, 2.0, 1e-5, **options)
    return method, federation


def test_a_run_by_hand():
    """Two phases: steps on estimates of fresh users, averages, noise of the phase's own stream, projection."""
    method, federation = trainable(seed=7)
    result = run(method, federation)
    x, index = np.zeros(3), 0
    for number, part in enumerate(method.scheme.phases):
        points = []
        for _ in range(part.steps):
            block = method.problem.bound(federation.block(method.scheme.sampler.cohort(index)))[0]
            gradient = part.gradient(method.problem.user_gradients(x, block))
            x = method.problem.domain.project(x - part.learning_rate * gradient)
            points.append(x)
            index += 1
        noise = stream(7, "noise", number, 2).normal(scale=part.mechanism.standard_deviation, size=3)
        x = method.problem.domain.project(np.mean(points, axis=0) + noise)
    np.testing.assert_allclose(final(result), x, rtol=1e-9)
    assert [record.facts["phase"] for record in result.rounds] == [1, 1, 1, 2, 2, 2]
    assert [record.facts.get("passed") for record in result.rounds] == [None, None, 1, None, None, 1]
    assert method.scheme.phases[1].learning_rate == pytest.approx(0.5 / 4)


@pytest.mark.parametrize("test", ["min_score", "above_threshold"])
def test_users_that_disagree_fail_the_test_and_the_model_stays_where_it_was(test):
    method, federation = trainable(radius=0.001, test=test, learning_rate=0.05)
    start = np.array([0.5, -0.5, 0.25])
    result = run(method, federation, initial_arrays=model_record(start))
    np.testing.assert_array_equal(final(result), start)
    rounds = [record.round for record in result.rounds]
    # AboveThreshold halts at the first step and asks nobody else of the phase; the minimum is known at the end.
    assert rounds == ([1, 4] if test == "above_threshold" else [1, 2, 3, 4, 5, 6])
    assert result.rounds[-1].facts["passed"] == 0.0
    assert int(method.program.own.ledger.state()["participated"].sum()) == 1000 * len(rounds)


@pytest.mark.parametrize("test", ["min_score", "above_threshold"])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_phase_that_fails_costs_the_next_neither_its_start_nor_its_test(failing, test):
    """Users of one phase agree, those of the other do not: it costs the released model nothing, nor the next test."""
    method, _ = trainable(seed=3, radius=0.1, test=test, learning_rate=0.05)
    agreeing = np.concatenate([method.scheme.sampler.cohort(3 * (1 - failing) + step) for step in range(3)])
    samples = np.random.default_rng(0).uniform(-5, 5, (6000, 3))
    samples[agreeing] = 1.0
    start, models = np.array([0.5, -0.5, 0.25]), []
    configure = method.configure_train
    method.configure_train = lambda number, arrays, *more: (
        models.append(arrays["x"].numpy()) or configure(number, arrays, *more)
    )
    result = run(method, federation_of(samples), initial_arrays=model_record(start))
    passed = [record.facts["passed"] for record in result.rounds if "passed" in record.facts]
    assert passed == [failing, 1 - failing]
    np.testing.assert_array_equal(models[3], final(result) if failing else start)
    assert np.any(final(result) != start)
