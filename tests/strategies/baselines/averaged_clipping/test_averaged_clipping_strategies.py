"""Averaged clipping and its baselines in a federation: what a sample and a user can change, and what it costs."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import content_of, federation_of, final, gathered, make, noise_again, run, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import trapezoid
from scipy.stats import norm

from strategies import STRATEGIES, AveragedClipping, AveragedClippingRestarted, PoissonSampleSGD, SmoothedTruncationGD
from strategies.baselines.averaged_clipping.parameters import (
    TheoryConstants,
    average_clip,
    hoelder_step,
    non_smooth,
    plain_rounds,
    practical_step,
)
from strategies.baselines.averaged_clipping.reference.descent import averaged_clipping_sgd, smoothed_truncation_gd
from strategies.baselines.averaged_clipping.restarts import default_runs, rounds_per_run
from strategies.baselines.regressions import LpRegression
from strategies.baselines.samples.poisson_samples import (
    PoissonSamples,
    group_rate,
    grouped_poisson_epsilon,
    round_keys,
)
from strategies.baselines.samples.sample_options import SampleLevelOptions
from strategies.baselines.smoothed_truncation import LARGEST, truncation_sensitivity
from strategies.wire.questions import Reader
from strategies.wire.replies import Gathered
from userdp.accounting import delta_of
from userdp.accounting.amplified import poisson_epsilon
from userdp.accounting.costs import Cost
from userdp.data import Block
from userdp.errors import BadInput, PopulationTooSmall
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Linear, Quadratic
from userdp.randomness import stream
from userdp.sampling.coins import SampleCoins, philox, uniforms

SIZES = [3, 1, 4, 2]
FACTS = {"min_samples": 1, "max_samples": 4, "samples": 10}
WIDE = {"min_samples": 1, "max_samples": 5, "samples": 3000}
KINDS = [kind for kind in STRATEGIES.values() if issubclass(kind, SampleLevelOptions)]
values = st.floats(-100, 100, width=32)


def line(dimension=2):
    """A sample's gradient is minus the sample, wherever the model is."""
    return Linear(dimension, 1e9, radius=1e12)


def method_for(kind=AveragedClipping, unit="sample", problem=None, users=4, facts=None, **options):
    base = {"rounds": 3, "smoothness": 1.0, "radius": 1.0}
    if kind is SmoothedTruncationGD:
        base.pop("radius")
    if kind is AveragedClippingRestarted:
        base |= {"runs": 1, "strong_convexity": 1.0}
    options = base | options
    return make(kind, problem or line(), users, 1.0, 1e-2, unit=unit, facts=facts or FACTS, **options)


def clipped_mean(method, samples, sizes):
    total = gathered(method, federation_of(samples, sizes=sizes), 0, np.zeros(2)).values
    return method.scheme.mean(total)


# --- What one sample, and what one user, can change ------------------------------------------------------------------


@settings(max_examples=60)
@given(arrays(np.float32, (10, 2), elements=values), st.lists(st.tuples(values, values), min_size=1, max_size=9))
def test_replacing_a_user_of_any_size_moves_the_clipped_mean_by_at_most_twice_the_clip(samples, other):
    """Everybody in every round: no bound on a user's samples is needed, and no group privacy."""
    method = method_for(unit="user", batches="full", clip_norm=0.7)
    neighbour = np.concatenate([np.array(other, dtype=np.float32), samples[3:]])
    moved = clipped_mean(method, samples, SIZES) - clipped_mean(method, neighbour, [len(other), *SIZES[1:]])
    assert np.linalg.norm(moved) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-12)
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(1.4)


def hockey_stick(first, second, epsilon):
    return trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), GRID)


GRID = np.linspace(-30, 30, 60_001)


@settings(max_examples=8)
@given(st.lists(st.floats(-6, 6), min_size=1, max_size=3), st.lists(st.floats(-6, 6), min_size=1, max_size=4))
def test_a_user_drawn_sample_by_sample_is_dominated_by_the_larger_rate_at_the_same_sensitivity(others, own):
    """One round, enumerated over ALL coins: the densities of what is released with and without a user."""
    rate, clip, multiplier = 0.3, 1.0, 0.8
    deviation = 2 * clip * multiplier

    def density(values):
        total = np.zeros_like(GRID)
        for number in range(2 ** len(values)):
            drawn = [value for bit, value in enumerate(values) if number >> bit & 1]
            chance = rate ** len(drawn) * (1 - rate) ** (len(values) - len(drawn))
            total += chance * norm.pdf(GRID, average_clip(np.array([sum(drawn) / 2]), clip)[0], deviation)
        return total

    without, present = density(others), density([*others, *own])
    user = group_rate(rate, len(own))
    base = norm.pdf(GRID, 0, multiplier)
    mixture = (1 - user) * base + user * norm.pdf(GRID, 1, multiplier)
    for epsilon in (0.0, 0.2, 0.7):
        assert hockey_stick(present, without, epsilon) <= hockey_stick(mixture, base, epsilon) + 1e-9
        assert hockey_stick(without, present, epsilon) <= hockey_stick(base, mixture, epsilon) + 1e-9


@pytest.mark.parametrize(("unit", "replaced", "group"), [("sample", slice(4, 5), 1), ("user", slice(4, 8), 4)])
def test_truncation_has_the_sensitivity_stated_for_samples_and_users(unit, replaced, group):
    method = method_for(SmoothedTruncationGD, unit=unit, scale=0.5)
    samples, ends = np.zeros((10, 2)), []
    for sign in (1e8, -1e8):
        samples[replaced] = sign
        ends.append(gathered(method, federation_of(samples, sizes=SIZES), 0, np.zeros(2)).values * 0.5 / 10)
    distance = np.linalg.norm(ends[0] - ends[1])
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(group * math.sqrt(2) * 4 * math.sqrt(2) * 0.5 / 30)
    assert 0.85 * method.scheme.mechanism.l2_sensitivity < distance <= method.scheme.mechanism.l2_sensitivity
    # A user with more samples than declared is held to what was declared.
    total = gathered(method, federation_of(np.full((20, 2), 1e9), sizes=[17, 1, 1, 1]), 0, np.zeros(2)).values
    assert np.linalg.norm(total) <= LARGEST * math.sqrt(2) * 7 * (1 + 1e-9)


# --- Smoothed truncation ---------------------------------------------------------------------------------------------


def test_truncated_descent_follows_the_mean_and_adds_calibrated_noise():
    rows = np.random.default_rng(0).normal(size=(500, 2000)) * 0.1 + 1
    rng = np.random.default_rng(1)
    common = {"step": 1.0, "scale": 50.0, "inverse_variance": 3.0, "rng": rng}
    quiet = smoothed_truncation_gd(lambda x: x - rows, np.zeros(2000), 1, noise_multiplier=0.0, **common)
    np.testing.assert_allclose(quiet.last, rows.mean(axis=0), atol=1e-3)
    loud = smoothed_truncation_gd(lambda x: x - rows, np.zeros(2000), 1, noise_multiplier=2.0, **common)
    noise = (loud.gradients - quiet.gradients).std()
    assert noise == pytest.approx(2 * truncation_sensitivity(50.0, 500, 2000), rel=0.1)


# --- Coins -----------------------------------------------------------------------------------------------------------


def test_philox_gives_the_published_numbers():
    zeros = np.zeros(1, np.uint64)
    assert [int(word[0]) for word in philox(zeros, zeros)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_coins_are_uniform_and_independent():
    keys = round_keys(1, 2000, 0)
    draws = uniforms(np.repeat(keys, 50), np.tile(np.arange(50, dtype=np.uint64), 2000)).reshape(2000, 50)
    # 100,000 draws: six standard errors.
    assert draws.mean() == pytest.approx(0.5, abs=6 * math.sqrt(1 / 12 / 1e5))
    assert draws.min() >= 0
    assert draws.max() < 1
    centred = draws - 0.5
    for neighbours in ((centred[1:] * centred[:-1]), (centred[:, 1:] * centred[:, :-1])):
        assert abs(neighbours.mean()) < 6 / 12 / math.sqrt(98_000)
    assert not np.array_equal(keys, round_keys(1, 2000, 1))


def test_a_node_gets_the_keys_of_its_own_users_only():
    coins = SampleCoins(0.25, round_keys(0, 6, 0), most=3)
    computation = Computation("sample_sum", reduce="sum", coins=coins)
    content = content_of(np.zeros(2), np.array([1, 4]), computation)
    users, read = Reader().request(SimpleNamespace(content=content))
    np.testing.assert_array_equal(users, [1, 4])
    np.testing.assert_array_equal(read.coins.keys, coins.keys[[1, 4]])
    assert (read.coins.rate, read.coins.most) == (0.25, 3)


def test_samples_beyond_the_declared_number_are_never_drawn():
    coins = SampleCoins(1.0, round_keys(0, 2, 0), most=2)
    np.testing.assert_array_equal(coins.draw(slice(0, 2), np.array([3, 1])), [True, True, False, True])
    with pytest.raises(BadInput, match="2 keys are given for the coins of 3 users"):
        coins.draw(slice(0, 3), np.array([1, 1, 1]))
    with pytest.raises(BadInput, match="rate = 0"):
        SampleCoins(0.0, coins.keys)
    with pytest.raises(BadInput, match="most = 0"):
        SampleCoins(0.5, coins.keys, most=0)
    with pytest.raises(BadInput, match="exclude a centre and a statistic"):
        Computation(coins=coins, centre=np.zeros(2))


def test_a_round_that_draws_nobody_is_a_sum_of_zero():
    node = Node(line(), federation_of(np.ones((4, 2))), np.arange(4))
    computation = Computation("sample_sum", reduce="sum", coins=SampleCoins(1e-9, round_keys(0, 4, 0)))
    np.testing.assert_array_equal(node.compute(np.zeros(2), np.arange(4), computation).values, np.zeros((1, 2)))


def test_a_thinned_block_keeps_users_samples_and_targets_together():
    block = Block(np.arange(6.0, dtype=np.float32)[:, None], np.array([0, 2, 3, 6]), np.arange(6, dtype=np.float32))
    users, thin = block.thinned(np.array([False, True, False, True, False, True]))
    np.testing.assert_array_equal(users, [0, 2])
    np.testing.assert_array_equal(thin.features[:, 0], [1, 3, 5])
    np.testing.assert_array_equal(thin.offsets, [0, 1, 3])
    np.testing.assert_array_equal(thin.targets, [1, 3, 5])
    assert block.thinned(np.zeros(6, dtype=bool))[1] is None


# --- Plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize("unit", ["sample", "user"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(AveragedClipping, {"batches": way}) for way in ("poisson_samples", "poisson_users", "disjoint", "full")]
    + [(AveragedClipping, {"case": "unconstrained"}), (AveragedClipping, {"case": "non_smooth"})]
    + [(AveragedClippingRestarted, {"runs": 3, "rounds": 12}), (AveragedClippingRestarted, {"batches": "full"})]
    + [(PoissonSampleSGD, {}), (SmoothedTruncationGD, {}), (SmoothedTruncationGD, {"accounting": "paper"})],
    ids=str,
)
def test_a_plan_spends_the_budget_and_not_more_and_prints_both_units(unit, kind, options):
    method = make(kind, Quadratic(2, 1.0, 1.0), 600, 1.5, 1e-5, unit=unit, facts=WIDE, **({"rounds": 20} | options))
    guarantee, numbers = method.plan.guarantee, method.plan.numbers
    assert guarantee.holds
    assert guarantee.unit == unit
    assert guarantee.epsilon <= 1.5
    assert guarantee.epsilon > (0.95 if options.get("accounting") != "paper" else 0.6) * 1.5
    assert numbers[f"{unit}_level_epsilon"] == pytest.approx(guarantee.epsilon, rel=1e-6)
    assert numbers["sample_level_epsilon"] <= numbers["user_level_epsilon"] * (1 + 1e-9)
    if options.get("batches") in ("poisson_users", "disjoint", "full"):  # users are drawn whole
        assert numbers["user_level_epsilon"] == numbers["sample_level_epsilon"]


@pytest.mark.slow
def test_where_samples_are_drawn_a_user_has_a_larger_rate_and_the_same_sensitivity():
    options = {"facts": WIDE, "rounds": 20, "batch": 60, "clip_norm": 1.0}
    plans = [make(AveragedClipping, line(), 600, 1.0, 1e-5, unit=u, radius=1.0, smoothness=1.0, **options).plan
             for u in ("sample", "user")]  # fmt: skip
    assert plans[0].numbers["l2_sensitivity"] == plans[1].numbers["l2_sensitivity"] == 2.0
    multiplier = plans[1].numbers["noise_multiplier"]
    assert poisson_epsilon(multiplier, 1 - 0.98**5, 20, 1e-5) == pytest.approx(plans[1].guarantee.epsilon)
    assert plans[0].numbers["noise_multiplier"] < multiplier < 5 * plans[0].numbers["noise_multiplier"]
    assert any("'poisson_users' or 'full'" in warning for warning in plans[1].warnings)
    assert plans[1].guarantee.relation == "add_or_remove"
    assert "any is drawn with probability 0.09608" in plans[1].guarantee.accountant


@pytest.mark.slow
def test_the_plans_noise_is_2m_times_that_of_clipped_samples_t15():
    options = {"facts": WIDE, "rounds": 20, "batch": 60, "clip_norm": 0.7, "unit": "sample"}
    ours = make(AveragedClipping, line(), 600, 1.0, 1e-5, radius=1.0, smoothness=1.0, **options).plan.numbers
    theirs = make(PoissonSampleSGD, line(), 600, 1.0, 1e-5, **options).plan.numbers
    assert ours["noise_deviation"] == pytest.approx(2 * 60 * theirs["noise_deviation"])


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(AveragedClipping, {}), (AveragedClipping, {"case": "unconstrained"}), (PoissonSampleSGD, {}),
     (AveragedClippingRestarted, {"runs": 2, "rounds": 10}), (AveragedClippingRestarted, {"batches": "full"})],
    ids=str,
)  # fmt: skip
def test_noise_by_the_papers_formula_is_not_certified_t16(kind, options):
    federation = federation_of(np.full((600, 2), 0.3))
    facts = {"max_samples": 1, "samples": 600}
    options = {"rounds": 10, "calibration": "paper"} | options
    method = make(kind, Quadratic(2, 1.0, 1.0), 600, 1.0, 1e-5, facts=facts, **options)
    assert not method.plan.guarantee.holds
    assert math.isinf(method.plan.guarantee.epsilon)
    assert "not certified; the accountant finds epsilon" in method.plan.guarantee.sentence()
    assert method.plan.numbers["accounted_epsilon"] > 1.0
    result = run(method, federation)
    assert method.spent_epsilon is None
    assert not result.guarantee.holds


@pytest.mark.slow
def test_samples_of_a_user_count_one_by_one_where_samples_are_clipped():
    single = PoissonSamples(10, 0.02, 50, joint=False)
    group = PoissonSamples(10, 0.02, 50, most=4, joint=False)
    joint = PoissonSamples(10, 0.02, 50, most=4)
    epsilons = [scheme.epsilon(3.0, 1e-5) for scheme in (single, joint, group)]
    assert epsilons == sorted(epsilons)
    assert "group privacy for 4 samples" in group.accountant
    multiplier = group.calibrate(1.0, 1e-5)
    assert 0.99 < group.epsilon(multiplier, 1e-5) <= 1.0
    assert grouped_poisson_epsilon(3.0, 0.02, 1, 50, 1e-5) == pytest.approx(epsilons[0], rel=0.01)
    assert grouped_poisson_epsilon(3.0, 1.0, 4, 1, 1e-5) == pytest.approx(poisson_epsilon(0.75, 1.0, 1, 1e-5))
    with pytest.raises(BadInput, match="group = 0"):
        grouped_poisson_epsilon(3.0, 0.5, 0, 1, 1e-5)
    with pytest.raises(BadInput, match="rate = 0"):
        PoissonSamples(10, 0.0, 1)
    with pytest.raises(BadInput, match="most = 0"):
        PoissonSamples(10, 0.5, 1, most=0)


def test_disjoint_rounds_cost_one_gaussian_and_refuse_more_rounds_than_users():
    many = {"unit": "user", "users": 12, "facts": {"samples": 30}}
    method, once = method_for(batches="disjoint", rounds=4, **many), method_for(batches="full", rounds=1, **many)
    multiplier = method.scheme.mechanism.noise_multiplier
    assert multiplier == pytest.approx(once.scheme.mechanism.noise_multiplier)
    assert delta_of(Cost(multiplier), 1, 1.0) <= 1e-2
    assert method.scheme.divisor == 3 * 30 / 12
    assert method.plan.guarantee.relation == "replace_one"
    with pytest.raises(PopulationTooSmall):
        method_for(users=4, batches="disjoint", rounds=5)


@pytest.mark.parametrize(
    ("kind", "problem", "facts", "options", "declare"),
    [(AveragedClipping, Quadratic(2, 1.0, math.inf), WIDE, {}, r"strategy\.radius must be declared"),
     (AveragedClipping, Linear(2, 1.0, radius=1.0), WIDE, {}, r"strategy\.smoothness must be declared"),
     (AveragedClippingRestarted, Linear(2, 1.0, radius=1.0), WIDE, {"smoothness": 1.0, "rounds": 40},
      r"strategy\.strong_convexity must be declared"),
     (AveragedClippingRestarted, Quadratic(2, 1.0, 1.0), WIDE, {"rounds": 3, "runs": 9}, r"runs = 9: 3 rounds"),
     *((kind, Quadratic(2, 1.0, 1.0), {known: 600}, {}, rf"data\.{missing} must be declared") for kind in KINDS
       for known, missing in (("samples", "max_samples"), ("max_samples", "samples")))],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_what_must_be_declared_is_asked_for(kind, problem, facts, options, declare):
    with pytest.raises(BadInput, match=declare):
        make(kind, problem, 600, 1.0, 1e-5, facts=facts, **options)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", ["constrained", "unconstrained", "non_smooth"])
@pytest.mark.parametrize("batches", ["poisson_samples", "full"])
def test_defaults_are_the_theorems(case, batches):
    method = make(AveragedClipping, Quadratic(2, 1.0, 1.0), 600, 1.0, 1e-5, facts=WIDE, case=case, batches=batches)
    reach = math.sqrt(2) * (2 if case == "constrained" else 1)
    expected = {"constrained": 2 * reach, "unconstrained": 4 * reach, "non_smooth": 14 * reach}[case]
    assert method.plan.numbers["clip_norm"] == pytest.approx(expected)
    assert method.plan.numbers["sample_batch"] == (3000 if batches == "full" else 55)
    assert 1 <= method.plan.rounds <= 200


# --- Losses that are not smooth --------------------------------------------------------------------------------------


def rough_for(radius=1.0, feature_norm=2.0, order=1.5, **options):
    """A plan for the power of the absolute error, by default all from its certificate."""
    problem = LpRegression(2, feature_norm, radius, order=order, low=-1.0, high=1.0)
    return make(AveragedClipping, problem, 600, 1.0, 1e-5, facts=WIDE, **({"case": "non_smooth"} | options))


@pytest.mark.parametrize("calibration", ["accountant", "paper"])
def test_exponent_and_constant_come_from_the_certificate(calibration):
    method = rough_for(calibration=calibration, noise_constant=3000.0)  # little noise takes long to account
    exponent, constant = method.problem.certificate.hoelder
    assert exponent == pytest.approx(0.5)
    assert method.plan.numbers["clip_norm"] == pytest.approx(2 * constant * (7 * math.sqrt(2)) ** 0.5)
    constants = TheoryConstants(3000, 2, 1.0, 1e-5, math.sqrt(2), constant)
    rounds, rate = method.plan.rounds, method.plan.numbers["learning_rate"]
    if calibration == "paper":
        expected = non_smooth(constants, exponent, rounds)
        assert rounds == plain_rounds(constants)
        assert (method.scheme.divisor, rate) == (expected.batch, pytest.approx(expected.step))
    else:
        clip, noise = method.plan.numbers["clip_norm"], method.scheme.mechanism.standard_deviation
        longest = hoelder_step(constants, exponent, rounds)
        assert rate == pytest.approx(practical_step(constants, clip, rounds, noise, longest))


def test_little_noise_steps_as_far_as_the_theorem_lets_it():
    """The certificate knows a power of ||f'||: 1 / (2 M) has no meaning there, and no unit."""
    problem = LpRegression(2, 2.0, 1.0, order=1.5, low=-1.0, high=1.0)
    options = {"case": "non_smooth", "rounds": 4, "clip_norm": 1e-3, "batches": "full"}
    method = make(AveragedClipping, problem, 600, 1e4, 1e-5, facts=WIDE, **options)
    exponent, constant = problem.certificate.hoelder
    constants = TheoryConstants(3000, 2, 1.0, 1e-5, math.sqrt(2), constant)
    assert method.plan.numbers["learning_rate"] == pytest.approx(hoelder_step(constants, exponent, 4))


def test_what_is_declared_goes_before_what_is_certified():
    assert rough_for(smoothness=3.0).plan.numbers["clip_norm"] == pytest.approx(6 * (7 * math.sqrt(2)) ** 0.5)
    assert rough_for(smoothness=3.0, exponent=0.0).plan.numbers["clip_norm"] == pytest.approx(6.0)
    heavy = rough_for(feature_norm=math.inf, smoothness=3.0, exponent=0.25, radius=2.0)
    assert heavy.plan.numbers["clip_norm"] == pytest.approx(6 * (14 * math.sqrt(2)) ** 0.25)
    smooth = rough_for(order=2.0)
    assert smooth.plan.numbers["clip_norm"] == pytest.approx(
        2 * smooth.problem.certificate.smoothness * 7 * math.sqrt(2)
    )


def test_what_the_certificate_does_not_say_is_asked_for():
    with pytest.raises(BadInput, match=r"strategy\.case = 'constrained'.*set strategy\.case = 'non_smooth'"):
        rough_for(case="constrained")
    with pytest.raises(BadInput, match=r"strategy\.smoothness must be declared.*of exponent 0\.25"):
        rough_for(exponent=0.25)  # a constant of 0.5 is none of 0.25
    with pytest.raises(BadInput, match=r"strategy\.exponent must be declared"):
        rough_for(feature_norm=math.inf, smoothness=3.0)
    assert rough_for(case="constrained", smoothness=3.0).plan.numbers["clip_norm"] == pytest.approx(
        6 * 2 * math.sqrt(2)
    )


# --- Rounds ----------------------------------------------------------------------------------------------------------


def test_rounds_of_the_theorem_are_never_capped_in_silence():
    problem = Quadratic(2, 1.0, 1.0)

    def warnings(kind, **options):
        made = make(kind, problem, 600, 1.0, 1e-5, facts=WIDE, **options).plan.warnings
        return [warning for warning in made if "strategy.max_rounds caps" in warning]

    for case in ("constrained", "unconstrained", "non_smooth"):
        (capped,) = warnings(AveragedClipping, case=case, batches="full", max_rounds=2)
        assert "caps them at 2" in capped
        assert not warnings(AveragedClipping, case=case, batches="full")
        assert not warnings(AveragedClipping, case=case, batches="full", rounds=2)
    # All runs that the theory asks for, though a plan of 200 rounds has fewer.
    wanted = default_runs(3000) * rounds_per_run(TheoryConstants(3000, 2, 1.0, 1e-5, math.sqrt(2)), 1.0)
    (capped,) = warnings(AveragedClippingRestarted)
    assert f"theory asks for {wanted:,} rounds, and strategy.max_rounds caps them at 200" in capped
    assert not warnings(AveragedClippingRestarted, rounds=40)


# --- Behaviour -------------------------------------------------------------------------------------------------------


def test_with_everybody_in_every_round_it_is_the_plain_optimiser():
    rows = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    problem = Quadratic(2, 50.0, 50.0)
    method = method_for(problem=problem, batches="full", clip_norm=1.0, learning_rate=0.3, output="last")
    mean = rows.astype(np.float64).mean(axis=0)
    end = final(run(method, federation_of(rows, sizes=SIZES)))

    class Noise:
        """The strategy's own streams, round after round."""

        rounds = iter(range(3))

        def normal(self, **arguments):
            return noise_again(method, next(self.rounds)).generator.normal(**arguments)

    same = averaged_clipping_sgd(
        lambda _, x: x - mean,
        np.zeros(2),
        3,
        step=0.3,
        clip=1.0,
        noise_multiplier=method.scheme.mechanism.noise_multiplier,
        rng=Noise(),
        project=problem.domain.project,
    )
    np.testing.assert_allclose(end, same.last, rtol=1e-9)


@pytest.mark.slow
def test_no_gradient_of_a_single_sample_is_computed_t21():
    class Batched(Quadratic):
        def sample_gradients(self, x, block):
            raise AssertionError("a per-sample gradient was asked for")

    result = run(method_for(problem=Batched(2, 1.0, 1.0)), federation_of(np.ones((10, 2)), sizes=SIZES))
    assert len(result.rounds) == 3


def test_every_run_clips_to_its_own_clip_and_gets_noise_for_it():
    """A mean far beyond every clip, this way and that: the steps differ by the sensitivity, about noise by hand."""
    options = {"rounds": 4, "runs": 2, "batches": "full", "clip_norm": 0.8, "learning_rate": 0.5, "seed": 5}
    steps = []
    for index, clip in ((0, 0.8), (2, method_for(AveragedClippingRestarted, **options).plan.numbers["clip_low"])):
        ends = []
        for sign in (1.0, -1.0):
            method = method_for(AveragedClippingRestarted, **options)
            for earlier in range(index):
                taken(method, earlier, np.zeros(2), Gathered(np.zeros(2), 0, 0))
            ends.append(taken(method, index, np.zeros(2), Gathered(np.array([sign * 1e6, 0.0]), 0, 0)).following)
        np.testing.assert_allclose(ends[1] - ends[0], [0.5 * 2 * clip, 0.0], atol=1e-9)
        deviation = 2 * clip * method.plan.numbers["noise_multiplier"]
        noise = stream(5, "noise", index, 0).normal(scale=deviation, size=2)
        np.testing.assert_allclose((ends[0] + ends[1]) / 2, -0.5 * noise, rtol=1e-6)
        steps.append(clip)
    assert steps[1] < steps[0]


@pytest.mark.slow
def test_restarts_shrink_clip_noise_and_distance_together():
    method = method_for(AveragedClippingRestarted, runs=3, rounds=12, problem=Quadratic(2, 1.0, 1.0))
    runs = method.scheme.runs
    clips = [np.linalg.norm(run.mean(np.full(2, 1e9))) for run in runs]
    np.testing.assert_allclose(np.array(clips[1:]) / clips[:-1], 1 / math.sqrt(2))
    noises = [run.mechanism.standard_deviation / clip for run, clip in zip(runs, clips, strict=True)]
    np.testing.assert_allclose(noises, noises[0])
    result = run(method, federation_of(np.ones((10, 2)), sizes=SIZES))
    assert [record.facts["clip_norm"] for record in result.rounds] == pytest.approx(np.repeat(clips, 4))
