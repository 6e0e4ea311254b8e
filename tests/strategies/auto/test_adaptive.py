"""Zero tuning without a certificate: every release against brute-force neighbours, its price, and what it reaches."""

import math
from contextlib import suppress

import numpy as np
import pytest
from helpers import federation_of, final, gathered, make, requested, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_auto import Watched, people
from torch import nn
from torch.nn import functional

from strategies import Auto
from strategies.auto.progress import Progress
from strategies.auto.releases import Release
from strategies.auto.staged import AdaptiveStep, ClipScale, Pace
from userdp.accounting import calibrate_noise
from userdp.errors import RunFailed
from userdp.nodes.node import Node
from userdp.problems import Box, Linear, TorchProblem
from userdp.problems.base import Certificate
from userdp.sampling import MixedBatches

USERS, COLUMNS = 4, 3
cells = st.sampled_from([0.0, 1.0, -1.0, 1e-4, 0.3, -7.0, 1e4, -1e18, np.nan])
ROUNDS = pytest.mark.parametrize("index", [0, 1, 2, 9])


def perceptron():
    return nn.Sequential(nn.Linear(COLUMNS, 4), nn.Tanh(), nn.Linear(4, 2))


def a_hundredfold(outputs, targets):
    return 100 * functional.cross_entropy(outputs, targets.long().reshape(-1), reduction="none")


def module(loss="cross_entropy"):
    return TorchProblem(perceptron, loss, COLUMNS, precision="double", execution="grouped")


def uncertified(slope):
    """A loss whose gradients no model changes, of which nothing is known."""
    problem = Linear(1, slope, radius=1e6)
    problem.certificate = Certificate(reason="none")
    return problem


def at(index, **options):
    """The strategy before round ``index``, as it came there with some ordinary users."""
    method, rng = make(Auto, module(), USERS, delta=1e-3, **options), np.random.default_rng(7)
    ordinary = people(rng.normal(size=(2 * USERS, COLUMNS)), rng.integers(0, 2, 2 * USERS))
    for earlier in range(index):
        values = gathered(method, ordinary, earlier, method.memory.model).values
        method.scheme.stages[earlier].take(method.memory, values, Watched())
    return method


# --- Formal guarantee ------------------------------------------------------------------------------------------------


@ROUNDS
@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float64, (2 * USERS, COLUMNS), elements=cells),
    arrays(np.float64, 2 * USERS, elements=st.sampled_from([0.0, 1.0, 5.0, np.nan])),
    st.integers(0, USERS - 1),
)
def test_adding_or_removing_a_user_moves_every_release_by_at_most_what_is_stated(index, rows, targets, who):
    method = at(index)
    computation, stage = requested(method, index).computation, method.scheme.stages[index]
    node = Node(method.problem, people(rows, targets), np.arange(USERS))
    everybody, others = np.arange(USERS), np.delete(np.arange(USERS), who)
    moved = []
    for users in (everybody, others):
        watched = Watched()
        values = node.compute(method.memory.model, users, computation).values[0]
        with suppress(RunFailed):  # of whom nobody can be heard, which follows from what was released
            stage.take(replace_memory(method), values, watched)
        moved.append(watched.noted)
    assert moved[0]
    for (one, movement, _), (two, again, _) in zip(*moved, strict=True):
        assert movement == again
        assert np.linalg.norm(one - two) <= movement.added * (1 + 1e-9) + 1e-12


def replace_memory(method):
    """A memory of the same models and clips, to be changed."""
    memory = method.scheme.new_memory()
    memory.begin(method.memory.model)
    memory.radius = method.memory.radius
    memory.optimiser, memory.length = getattr(method.memory, "optimiser", FOLLOWER), 1.0
    return memory


class _Follower:
    def step(self, x, gradient, deviation=0.0):
        return x - gradient


FOLLOWER = _Follower()


def test_the_noise_of_a_cohort_is_for_the_users_that_are_expected():
    method = make(Auto, uncertified(5.0), 2000, 2.0, 1e-5)
    scheme, step = (
        method.scheme,
        next(index for index, stage in enumerate(method.scheme.stages) if isinstance(stage, AdaptiveStep)),
    )
    assert isinstance(scheme.sampler, MixedBatches)
    expected = scheme.sampler.expected(step)
    assert expected < 1000
    method.memory.radius, stage = 3.0, scheme.stages[step]
    release = Release(scheme, step, lambda purpose: method._noise(step, purpose), stage.computation(method.memory))
    watched = Watched()
    method.memory.optimiser, method.memory.length = FOLLOWER, 1.0
    stage.take(method.memory, np.zeros(2), watched)
    _, movement, part = watched.noted[0]
    _, deviation = release.mean(np.zeros(1), movement, part)
    multiplier = scheme.sampler.multiplier(step, scheme.noise_multiplier)
    assert deviation == pytest.approx(3.0 / expected * multiplier / math.sqrt(part))
    assert release.mean(np.full(1, 5 * expected), movement, part)[0][0] == pytest.approx(5, abs=6 * deviation)


# --- What becomes of releases ----------------------------------------------------------------------------------------


def test_the_clip_starts_above_the_typical_length_and_leaves_seven_in_ten_as_they_are():
    method = make(Auto, uncertified(5.0), USERS, delta=1e-3)
    memory: Progress = method.memory
    ClipScale().take(memory, np.array([0.0, 4 * math.log(2.0)]), Watched())
    assert memory.radius == pytest.approx(1.5 * 2.0)
    step = AdaptiveStep(0.02, Box(np.zeros(1), math.inf))
    for unclipped, grows in ((0.5, False), (-0.5, True)):  # of everybody: as they are, shortened
        before = memory.radius
        step.take(memory, np.array([0.0, USERS * unclipped]), Watched())
        assert (memory.radius > before) == grows
    before = memory.radius
    step.take(memory, np.array([0.0, USERS * 0.2]), Watched())
    assert memory.radius == pytest.approx(before)


def test_rates_fall_to_none_and_a_first_step_moves_each_parameter_by_the_rate():
    method = make(Auto, uncertified(5.0), USERS, delta=1e-3)
    steps = [stage for stage in method.scheme.stages if isinstance(stage, AdaptiveStep)]
    np.testing.assert_allclose([step.rate for step in steps], 0.02 * np.arange(len(steps), 0, -1) / len(steps))
    memory = method.memory
    ClipScale().take(memory, np.array([0.0, 0.0]), Watched())
    steps[0].take(memory, np.array([USERS * 0.7, 0.0]), Watched())
    assert memory.model[0] == pytest.approx(-0.02, rel=0.01)


def test_gradients_are_followed_in_units_of_the_first_ones():
    """Far below a thousandth, beside which Adam would take them for nothing."""
    ends = []
    for size in (1.0, 1e-4):
        memory = make(Auto, uncertified(5.0), USERS, delta=1e-3).memory
        ClipScale().take(memory, np.array([0.0, USERS * math.log(size)]), Watched())
        memory.start = memory.start + 0.02 * memory.directed(np.array([-size]), 0.1 * size)
        ends.append([memory.model[0], memory.radius / size])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)
    assert ends[0][0] > 0.015


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.floats(0.1, 100), st.booleans())
def test_steps_and_cohorts_keep_to_their_bounds(users, dimension, multiplier, drawn):
    pace = Pace.of(users, dimension, multiplier, drawn=drawn)
    assert 20 <= pace.steps <= 100
    assert 0 < pace.chance <= 1
    if drawn:
        assert users * pace.chance * pace.steps <= 100_000 * (1 + 1e-9)
    else:
        assert pace.chance == 1


def test_fewer_steps_where_noise_is_louder():
    steps = [Pace.of(users, 6000, 1.0, drawn=True).steps for users in (200, 500, 2000, 20_000)]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1] == 100


# --- What its defaults reach -----------------------------------------------------------------------------------------


def classes(users, scale=1.0, shift=0.0, seed=0):
    """Two classes that no linear model tells apart: opposite corners of a square; 4 samples per user."""
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 2, (4 * users, 2))
    rows = np.column_stack([corners * 2.0 - 1.0, np.zeros(4 * users)]) + 0.3 * rng.normal(size=(4 * users, COLUMNS))
    return federation_of(rows * scale + shift, [4] * users, (corners[:, 0] ^ corners[:, 1]).astype(float))


def shares_right(problem, federation, **options):
    method = make(Auto, problem, federation.users, 4.0, 1e-5, **options)
    x = final(run(method, federation))
    block, _ = problem.bound(federation.block(np.arange(federation.users)))
    return float(problem.metrics(x, block)["accuracy"].mean()), x, method


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (4.0, 8.0), (0.3, 0.0)])
def test_a_module_is_trained_whatever_its_inputs_are_measured_in(scale, shift):
    right, _, _ = shares_right(module(), classes(2000, scale, shift))
    assert right > 0.85


@pytest.mark.slow
def test_losses_a_hundred_times_as_large_lead_to_the_same_model():
    _, one, _ = shares_right(module(), classes(1000))
    large = module(a_hundredfold)
    x = final(run(make(Auto, large, 1000, 4.0, 1e-5), classes(1000)))
    np.testing.assert_allclose(x, one, rtol=0, atol=0.02 * np.abs(one).max())


def test_engines_agree_whatever_shares_a_node():
    federation = classes(60)
    results = [final(run(make(Auto, module(), 60, 8.0, 1e-3), federation, size)) for size in (None, 7)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9)


def nothing():
    """A linear model that starts at zero."""
    layer = nn.Linear(COLUMNS, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def test_a_model_that_serves_nobody_is_taken_back():
    problem = TorchProblem(nothing, "mse", COLUMNS)
    federation = federation_of(np.random.default_rng(4).normal(size=(200, COLUMNS)), targets=np.zeros(200))
    result = run(make(Auto, problem, 200, 2.0, 1e-3), federation)
    assert result.rounds[-1].facts["went_back"] == 1.0
    np.testing.assert_array_equal(final(result), problem.initial())


# --- The plan --------------------------------------------------------------------------------------------------------


def test_a_module_is_promised_add_or_remove_unless_replace_one_is_asked_for():
    found = {}
    for relation in (None, "add_or_remove", "replace_one"):
        method = make(Auto, module(), 20_000, 2.0, 1e-6, relation=relation)
        found[relation] = method.plan
        assert method.plan.guarantee.relation == (relation or "add_or_remove")
    assert found[None].numbers == found["add_or_remove"].numbers
    assert found[None].numbers["gradient_users"] < 20_000
    assert 2.0 < found[None].numbers["replace_one_epsilon"] < 4.0
    assert found[None].numbers["replace_one_delta"] == 1e-6


@pytest.mark.parametrize(("users", "cohorts"), [(20_000, True), (200_000, False)])
def test_replacing_a_user_takes_cohorts_where_they_need_hardly_more_noise_than_all_users(users, cohorts):
    method = make(Auto, module(), users, 2.0, 1e-7, relation="replace_one")
    numbers = method.plan.numbers
    assert (numbers["gradient_rounds"], numbers["gradient_users"] < users) == ((100, True) if cohorts else (20, False))
    assert isinstance(method.scheme.sampler, MixedBatches) == cohorts
    assert numbers["noise_multiplier"] <= 1.05 * calibrate_noise(2.0, 1e-7, 1)


def test_a_cohort_costs_little_noise_against_all_users():
    method = make(Auto, module(), 3000, 2.0, 1e-6)
    whole = make(Auto, uncertified(1.0), 3000, 2.0, 1e-6, relation="replace_one").scheme.noise_multiplier
    assert 1.0 < method.scheme.noise_multiplier / whole < 1.2


def test_a_plan_for_too_few_users_says_so():
    assert make(Auto, module(), 20_000, 2.0, 1e-6).plan.warnings == ()
    plan = make(Auto, module(), 12, 0.5, 1e-3).plan
    assert any("as long as a typical user's gradient: bring more users" in each for each in plan.warnings)
    assert any("no model would be taken back" in each for each in plan.warnings)


def test_no_matrix_is_as_wide_as_a_module():
    method = make(Auto, TorchProblem(lambda: nn.Linear(20_000, 2), "cross_entropy", 20_000), 100, 1.0, 1e-4)
    assert method.memory.coordinates.size == 0
