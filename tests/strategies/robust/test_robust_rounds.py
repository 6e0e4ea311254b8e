"""Robust rounds: one round's release as a mechanism, its plan, and its behaviour."""

from pathlib import Path

import numpy as np
import pytest
from examples import write_clinic
from helpers import WILD, Wild, federation_of, final, gathered, make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulations.config.run_config import load_config
from simulations.runs.run import run as run_config
from strategies import RobustRounds
from userdp.accounting import Cost, epsilon_of
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import PopulationTooSmall
from userdp.estimators import concentration_score, replacement_bound
from userdp.problems import Linear, Quadratic, TorchProblem
from userdp.randomness import stream

codes = st.integers(0, len(WILD) - 1)
VARIANTS = [
    {"estimate": "winsorized", "kernel": "ramp"},
    {"estimate": "debiased", "statistic": "median", "kernel": "exp"},
    {"estimate": "debiased", "statistic": "trimmed_mean", "kernel": "ramp"},
]
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=["ours", "paper", "mixed"])


def tiny(batch=40, **options):
    options = {"rounds": 1, "radius": 1.0, "estimate": "winsorized"} | options
    return make(RobustRounds, Wild(2), batch, epsilon=20.0, delta=0.01, **options)


def aligned(method, rows):
    """True if the row of some user, as a centre, shows that the batch is aligned (sufficient, not necessary)."""
    distances = np.abs(rows[:, None] - rows).max(axis=2)
    return ((distances <= method.scheme.agreement.estimator.radius).sum(axis=1) >= 2 * len(rows) / 3).any()


# --- Formal guarantee: sensitivities of one whole round -------------------------------------------------------------


@pytest.mark.sweep(1)
@each_variant
@settings(max_examples=60)
@given(
    arrays(np.int64, (13, 2), elements=codes),
    arrays(np.int64, (2,), elements=codes),
    st.integers(0, 39),
    st.integers(0, 10**6),
)
def test_replacing_one_user_moves_the_estimate_and_the_score_by_at_most_what_is_stated(
    variant, outliers, other, who, seed
):
    """Two thirds of the users agree within rho, a third and the replaced one answer anything at all."""
    method = tiny(**variant)
    rng = np.random.default_rng(seed)
    data = np.concatenate([rng.choice([0, 1, 3], size=(27, 2), p=[0.3, 0.3, 0.4]), outliers])
    data = data[rng.permutation(40)]
    neighbour = data.copy()
    neighbour[who] = other
    test, estimator = method.scheme.agreement.test, method.scheme.agreement.estimator
    rows = [gathered(method, federation_of(users), 0, np.zeros(2)).values for users in (data, neighbour)]
    scores = [concentration_score(values, test.kernel) for values in rows]
    assert abs(scores[0] - scores[1]) <= replacement_bound(40) + 1e-9
    assert test.sensitivity == pytest.approx(replacement_bound(40))
    if not any(aligned(method, values) for values in rows):
        assert min(scores) <= test.kernel.unaligned_bound(40) + 1e-9
        return
    with np.errstate(over="ignore"):
        moved = np.linalg.norm(estimator(rows[0]) - estimator(rows[1]))
    assert moved <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-9)


@pytest.mark.parametrize(("variant", "share"), list(zip(VARIANTS, [0.6, 0.65, 0.9], strict=True)))
def test_the_stated_sensitivity_is_nearly_attained_by_one_user_far_out(variant, share):
    """The batch passes its test, one user goes from one end of the world to the other."""
    method = tiny(**variant)
    data = np.zeros((40, 2), dtype=int)
    data[7] = 4
    opposite = data.copy()
    opposite[7] = 5
    rows = [gathered(method, federation_of(users), 0, np.zeros(2)).values for users in (data, opposite)]
    test, estimator = method.scheme.agreement.test, method.scheme.agreement.estimator
    assert concentration_score(rows[0], test.kernel) > test.threshold
    moved = np.linalg.norm(estimator(rows[0]) - estimator(rows[1]))
    assert share * method.scheme.mechanism.l2_sensitivity <= moved <= method.scheme.mechanism.l2_sensitivity


def test_winsorised_sensitivity_falls_with_the_cohort_and_the_papers_does_not():
    def noise(users, **options):
        method = make(RobustRounds, Linear(2, 1.0), users, epsilon=2.0, delta=1e-6, rounds=1, radius=1.0, **options)
        return method.scheme.agreement.estimator.sup_sensitivity(users)

    assert noise(4000) < noise(1000) / 3.9
    assert noise(4000, estimate="debiased", statistic="median") >= 2.0


@each_variant
def test_four_users_of_two_hundred_at_the_largest_floats_do_not_fail_a_charged_round(variant):
    """Their sum overflows, their mean does not: the run goes on, and the model is moved by what the others say."""
    data = np.full((200, 2), 3)
    data[:2], data[2:4] = 0, 1
    largest = np.array([1.7e308, -1.7e308, 0.0, 0.3])

    class Largest(Wild):
        def user_gradients(self, x, block):
            return largest[block.features.astype(np.int64)]

    for codes_of_four in ([0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]):
        data[:4] = np.array(codes_of_four)[:, None]
        method = make(RobustRounds, Largest(2), 200, 20.0, 1e-3, rounds=1, radius=1.0, learning_rate=1.0, **variant)
        result = run(method, federation_of(data))
        assert result.rounds[0].facts["passed"] == 1.0
        assert np.abs(final(result)).max() < 0.3 + 1.0 + 6 * method.scheme.mechanism.standard_deviation


# --- The plan -------------------------------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize(("epsilon", "epochs", "radius"), [(1.0, 1, None), (1.0, 1, 0.5), (3.0, 3, None)])
def test_the_plan_spends_the_budget_and_not_more(variant, epsilon, epochs, radius):
    options = {"rounds": 6, "epochs": epochs, "radius": radius} | variant
    method = make(RobustRounds, Linear(3, 1.0), 30_000, epsilon, 1e-6, facts={"min_samples": 100}, **options)
    plan, scheme, test = method.plan, method.scheme, method.scheme.agreement.test
    assert 0.99 * epsilon < plan.guarantee.epsilon <= epsilon
    cost = Cost(scheme.mechanism.noise_multiplier, test.epsilon, test.delta)
    assert plan.guarantee.epsilon == epsilon_of(cost, epochs, 1e-6)
    assert method.program.own.ledger.cost == cost
    assert plan.cohort == 30_000 * epochs // 6
    assert (plan.pass_probability is None) == (radius is not None)
    if radius is None:
        assert plan.pass_probability > 0.9


def test_users_that_differ_get_a_wider_radius():
    def radius(**options):
        facts = {"min_samples": 100}
        return make(RobustRounds, Linear(2, 1.0), 9000, 1.0, 1e-5, facts=facts, **options).plan.numbers["radius"]

    assert radius(heterogeneity=0.5) > 2 * radius() > 2 * radius(deviation=0.1)


# --- Behaviour ------------------------------------------------------------------------------------------------------


def test_a_round_by_hand():
    problem, federation = Quadratic(3, 5.0, 2.0), SyntheticFederation(Gaussian(dimension=3), 2000, 1)
    method = make(RobustRounds, problem, 2000, 2.0, 1e-4, seed=3, rounds=4, radius=4.0, learning_rate=0.25)
    after = []
    with_each = {"evaluate_fn": lambda number, arrays: after.append(arrays["x"].numpy()) or None}
    result = run(method, federation, **with_each)
    cohort = method.scheme.sampler.cohort(0)
    rows = problem.user_gradients(np.zeros(3), problem.bound(federation.block(cohort))[0])
    noise = stream(3, "noise", 0, 2).normal(scale=method.scheme.mechanism.standard_deviation, size=3)
    np.testing.assert_allclose(after[1], -0.25 * (method.scheme.agreement.estimator(rows) + noise), rtol=1e-9)
    assert [record.facts["passed"] for record in result.rounds] == [1.0] * 4
    assert "score_private" in result.rounds[0].facts


def test_outliers_up_to_their_last_float_do_not_steer_the_model():
    """A tenth of the users collude: the model ends within its noise of what honest users say alone."""
    data = np.full((1000, 2), 3)
    data[:100] = 4
    method = make(RobustRounds, Wild(2), 1000, 8.0, 1e-4, rounds=1, radius=0.5, learning_rate=1.0)
    result = run(method, federation_of(data))
    assert result.rounds[0].facts["passed"] == 1.0
    # The trimmed mean is honest, winsorised outliers count as 2 rho each: a tenth of them move it by 0.1.
    np.testing.assert_allclose(final(result), -0.3 - 0.1, atol=6 * method.scheme.mechanism.standard_deviation)


def test_a_torch_module_trains_without_a_certificate():
    from torch import nn

    problem = TorchProblem(lambda: nn.Linear(2, 1), "mse", 2, precision="double")
    rng = np.random.default_rng(1)
    federation = federation_of(rng.normal(size=(1500, 8, 2)), targets=rng.normal(size=1500 * 8))
    method = make(RobustRounds, problem, 1500, 8.0, 1e-4, rounds=3, radius=8.0, learning_rate=0.1)
    result = run(method, federation)
    assert result.guarantee.holds
    assert [record.facts["passed"] for record in result.rounds] == [1.0] * 3


@pytest.mark.parametrize("users", [60_000, 400_000])
def test_rounds_are_chosen_among_those_whose_rounding_secure_noise_covers(users):
    def chosen(noise):
        method = make(RobustRounds, Quadratic(2, 1.0, 1.0), users, 2.0, 1e-7, facts={"min_samples": 50}, noise=noise)
        return method.plan.rounds

    assert chosen("seeded") == 1
    assert chosen("secure") == {60_000: 2, 400_000: 10}[users]


def test_too_few_users_are_told_what_would_make_cohorts_larger():
    for options, told in (
        ({"epochs": 2}, "fewer strategy.epochs"),
        ({"rounds": 4}, "fewer strategy.rounds"),
        ({}, "use more"),
    ):
        with pytest.raises(PopulationTooSmall, match=told):
            make(RobustRounds, Quadratic(2, 1.0, 1.0), 100, 2.0, 1e-6, facts={"min_samples": 50}, **options)


def test_the_shipped_table_is_learnt_from_with_secure_noise(tmp_path):
    """Noise has no seed; with this budget, pressure's coordinate lies ten of its deviations and more from zero."""
    path = Path(__file__).parents[3] / "simulations" / "configs" / "robust-table.toml"
    table = write_clinic(tmp_path / "clinic.csv")
    outcome = run_config(
        load_config(path, [f'data.path="{table}"', "privacy.epsilon=20"]), directory=tmp_path / "run", report=False
    )
    assert outcome.result["guarantee"]["holds"]
    assert outcome.model[0] > 0.0  # pressure
