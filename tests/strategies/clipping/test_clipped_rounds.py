"""Clipped rounds under every sampling scheme, local training, and what the server does with a release."""

import math

import numpy as np
import pytest
from helpers import WILD, federation_of, final, gathered, make, requested, rows_of, run, with_scheme
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_fed_sgd import WildTrainer, share

from strategies import DPFTRL, AdaptiveClipping, DPFedAvg, DPFedSGD, ProjectedSGD, RecentredClipping
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from userdp.accounting import Ledger, RoundLedger, poisson_epsilon
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.mechanisms.toeplitz import FACTORISATIONS
from userdp.problems import Quadratic
from userdp.randomness import stream
from userdp.sampling import PoissonBatches

SCHEMES = ("disjoint", "cyclic", "poisson", "fixed_size")
STRATEGIES = (DPFedSGD, DPFedAvg)
every_scheme = pytest.mark.parametrize("sampling", SCHEMES)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
codes = st.integers(0, len(WILD) - 1)


def population(users=300, d=3, m=20):
    return SyntheticFederation(Gaussian(dimension=d), users=users, seed=1, samples_per_user=m)


# --- Formal guarantee -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=90)
@given(arrays(np.int64, (6, 3), elements=codes), st.integers(0, 5), st.sampled_from([*STRATEGIES, AdaptiveClipping]))
def test_adding_or_removing_one_user_moves_a_poisson_round_by_at_most_its_sensitivity(users, who, strategy):
    """The user's coin is its own: without it the cohort is what it was, less the user, and the divisor stays."""
    method = make(strategy, WildTrainer(3), 6, delta=1e-3, clip_norm=0.7, cohort=3, sampling="poisson", seed=5)
    index = next(index for index in range(20) if who in method.scheme.sampler.cohort(index))
    x, federation = np.array([0.1, -0.2, 5.0]), federation_of(users)
    whole = gathered(method, federation, index, x).values
    request = requested(method, index)
    others = request.users[request.users != who]
    rows = np.zeros((1, len(whole)))
    if len(others):
        rows, _ = rows_of(method.problem, x, method.problem.bound(federation.block(others))[0], request.computation)
    assert share(method, whole - rows.sum(axis=0)) <= 1 + 1e-9
    assert method.scheme.sampler.expected_batch == pytest.approx(3)
    longest = np.array([0.7, 0.0, 0.0] + [0.5] * (strategy is AdaptiveClipping))
    assert share(method, longest) == pytest.approx(1)


@pytest.mark.parametrize("asked", [{"sampling": "poisson", "cohort": 40}, {"sampling": "allocation"}])
@pytest.mark.parametrize("strategy", [DPFedSGD, AdaptiveClipping])
def test_secret_cohorts_have_the_relation_that_is_asked_for(strategy, asked):
    added, replaced = (
        make(strategy, Quadratic(3, 1.0, 1.0), 400, 1.0, 1e-5, rounds=10, relation=relation, **asked)
        for relation in ("add_or_remove", "replace_one")
    )
    for method in (added, replaced):
        assert 0.999 < method.plan.guarantee.epsilon <= 1.0
        assert method.plan.guarantee.relation == method.scheme.sampler.relation
    assert (added.plan.guarantee.relation, replaced.plan.guarantee.relation) == ("add_or_remove", "replace_one")
    assert 1.2 < replaced.plan.numbers["noise_deviation"] / added.plan.numbers["noise_deviation"] < 2.1
    assert added.plan.numbers["replace_one_epsilon"] > 1.0
    assert "replace_one_epsilon" not in replaced.plan.numbers
    longest = np.array([1.0, 0.0, 0.0] + [0.5] * (strategy is AdaptiveClipping))
    assert share(added, longest) == pytest.approx(1)
    assert share(replaced, 2 * longest) == pytest.approx(1)  # opposite rows


@pytest.mark.parametrize("sampling", ["disjoint", "cyclic", "fixed_size"])
def test_cohorts_that_are_priced_for_replacing_promise_nothing_else(sampling):
    asked = {"sampling": sampling, "cohort": 40, "rounds": 3}
    with pytest.raises(BadInput, match="'add_or_remove' with sampling"):
        make(DPFedSGD, Quadratic(3, 1.0, 1.0), 400, relation="add_or_remove", **asked)
    make(DPFedSGD, Quadratic(3, 1.0, 1.0), 400, relation="replace_one", **asked)


@pytest.mark.sweep(2)
@every_strategy
@every_scheme
def test_the_plan_spends_the_budget_under_the_relation_of_its_sampler(strategy, sampling):
    method = make(strategy, Quadratic(3, 1.0, 1.0), 400, 1.0, 1e-5, sampling=sampling, cohort=40, rounds=25)
    guarantee, numbers = method.plan.guarantee, method.plan.numbers
    assert 0.999 < guarantee.epsilon <= 1.0
    assert guarantee.holds
    assert guarantee.relation == ("add_or_remove" if sampling == "poisson" else "replace_one")
    if sampling == "poisson":
        replaced = poisson_epsilon(numbers["noise_multiplier"] / 2, 0.1, 25, 1e-5, "replace_one")
        assert (numbers["replace_one_epsilon"], numbers["replace_one_delta"]) == (replaced, 1e-5)
    else:
        assert "replace_one_epsilon" not in numbers
    assert isinstance(method.program.own.ledger, Ledger if sampling in ("disjoint", "cyclic") else RoundLedger)
    factor = 1 if sampling == "poisson" else 2
    deviation = numbers["noise_multiplier"] * factor * 1.0 / 40
    assert method.scheme.mechanism.standard_deviation == pytest.approx(deviation) == numbers["noise_deviation"]


@pytest.mark.slow
def test_no_round_waits_for_the_accountant_and_each_epsilon_is_computed_once_when_read(monkeypatch):
    method, asked = make(DPFedSGD, Quadratic(3, 5.0, 2.0), 300, sampling="poisson", cohort=30, rounds=4), []
    epsilon = PoissonBatches.epsilon

    def counted(self, noise_multiplier, delta, rounds=None):
        asked.append(rounds)
        return epsilon(self, noise_multiplier, delta, rounds)

    monkeypatch.setattr(PoissonBatches, "epsilon", counted)
    rounds = run(method, population()).rounds
    assert asked == [4]  # of the whole, before the model is released
    assert 0 < rounds[1].spent_epsilon < rounds[3].spent_epsilon == rounds[3].spent_epsilon <= 1.0
    assert asked == [4, 2]


# --- Runs ------------------------------------------------------------------------------------------------------------

LEARNING = {
    **{
        f"{kind.about.name}, {sampling}": (kind, {"sampling": sampling, "cohort": 500, "rounds": 8}, 0.2)
        for kind in STRATEGIES
        for sampling in SCHEMES
    },
    **{
        f"dp_ftrl, {kind}, {cohort}": (
            DPFTRL,
            {"factorisation": kind, "cohort": cohort, "rounds": 8, "learning_rate": 0.5},
            0.2,
        )
        for kind in FACTORISATIONS
        for cohort in (None, 1000)
    },
    **{
        f"adaptive_clipping, {sampling}, {steps}": (
            AdaptiveClipping,
            {"sampling": sampling, "rounds": 16, "clip_norm": 0.2, "local_steps": steps}
            | ({"participations": 4} if sampling == "allocation" else {"cohort": 500}),
            0.5,
        )
        for sampling in (*SCHEMES, "allocation")
        for steps in (None, 3)
    },
    **{
        f"recentred_clipping, {rounds}, {cohort}": (RecentredClipping, {"rounds": rounds, "cohort": cohort}, 0.2)
        for rounds, cohort in ((1, None), (2, None), (4, None), (8, 500))
    },
}
"""Strategy, options, and the share of the start's excess risk that it gets below."""


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", LEARNING)
def test_it_learns_and_spends_its_budget(name):
    (strategy, options, least), problem, federation = LEARNING[name], Quadratic(3, 5.0, 4.0), population(users=2000)
    result = run(make(strategy, problem, 2000, 6.0, 1e-5, **{"clip_norm": 3.0} | options), federation)
    assert problem.excess_risk(final(result), federation) < least * problem.excess_risk(problem.initial(), federation)
    spent = [record.spent_epsilon for record in result.rounds]
    assert 0.999 * 6 < spent[-1] <= 6
    assert spent[0] < 0.9 * 6 or len(spent) == 1 or "allocation" in name  # all of a user's rounds are paid at once


@pytest.mark.slow
def test_a_round_that_drew_nobody_releases_noise_alone_and_is_charged():
    problem, federation = Quadratic(2, 1.0, 2.0), population(users=4, d=2)
    method = make(DPFedSGD, problem, 4, delta=1e-2, sampling="poisson", cohort=1, rounds=20, learning_rate=0.1)
    empty = [index for index in range(20) if not len(method.scheme.sampler.cohort(index))]
    assert empty
    models = []
    result = run(method, federation, evaluate_fn=lambda _, arrays: models.append(arrays["x"].numpy()))
    assert len(result.rounds) == 20
    index = empty[0]
    noise = stream(0, "noise", index, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=2)
    expected = problem.domain.project(models[index] - 0.1 * noise)
    np.testing.assert_allclose(models[index + 1], expected, rtol=1e-12)
    assert result.rounds[index].spent_epsilon == method.scheme.sampler.epsilon(
        method.scheme.mechanism.noise_multiplier, 1e-2, index + 1
    )


def test_a_round_of_federated_averaging_by_hand():
    problem, federation = Quadratic(3, 5.0, 2.0), population(users=20)
    options = {"clip_norm": 0.4, "rounds": 1, "local_steps": 3, "local_rate": 0.2, "learning_rate": 0.5}
    method = make(DPFedAvg, problem, 20, delta=1e-3, seed=9, **options)
    means = -problem.user_gradients(np.zeros(3), problem.bound(federation.block(np.arange(20)))[0])
    updates = means * (1 - 0.8**3)  # each step closes a fifth of the distance to the user's mean
    updates *= np.minimum(1, 0.4 / np.linalg.norm(updates, axis=1, keepdims=True))
    noise = stream(9, "noise", 0, 0).normal(scale=method.scheme.mechanism.standard_deviation, size=3)
    np.testing.assert_allclose(final(run(method, federation)), 0.5 * (updates.mean(axis=0) + noise), rtol=1e-9)


# --- The server's optimiser -----------------------------------------------------------------------------------------


def _path(kind, gradients, **options):
    optimiser, x = ServerOptimiser(ServerOptions(server_optimiser=kind, **options), 0.1, 2), np.zeros(2)
    path = []
    for gradient in gradients:
        x = optimiser.step(x, gradient)
        path.append(x)
    return np.array(path)


GRADIENTS = np.array([[1.0, -2.0], [0.5, 0.0], [-3.0, 1.0]])


def test_sgd_and_momentum_by_hand():
    np.testing.assert_allclose(_path("sgd", GRADIENTS), -0.1 * np.cumsum(GRADIENTS, axis=0))
    velocity = np.array([GRADIENTS[0], 0.5 * GRADIENTS[0] + GRADIENTS[1], [-2.5, 0.5]])
    np.testing.assert_allclose(_path("momentum", GRADIENTS, momentum=0.5), -0.1 * np.cumsum(velocity, axis=0))
    np.testing.assert_allclose(_path("momentum", GRADIENTS, momentum=0.0), _path("sgd", GRADIENTS))


def test_adam_by_hand_and_against_torch():
    import torch

    first = _path("adam", GRADIENTS[:1], adaptivity=1e-3)[0]
    np.testing.assert_allclose(first, [-0.1 / 1.001, 0.1 * 2 / 2.001])
    parameter = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    for gradient, mine in zip(GRADIENTS, _path("adam", GRADIENTS), strict=True):
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        np.testing.assert_allclose(parameter.detach().numpy(), mine, rtol=1e-12)


def _moments(signal, deviations, seed=0):
    """Adam's averages after noisy gradients in many coordinates, all of the same signal."""
    rng, options = np.random.default_rng(seed), ServerOptions(server_optimiser="adam", noise_corrected=True)
    optimiser, x = ServerOptimiser(options, 0.1, 50_000), np.zeros(50_000)
    for deviation in deviations:
        x = optimiser.step(x, signal + deviation * rng.normal(size=50_000), deviation)
    return optimiser


@pytest.mark.parametrize("deviations", [[2.0], [2.0] * 30, [4.0, 0.5, 1.0, 3.0] * 5], ids=["one", "many", "moving"])
@pytest.mark.parametrize("signal", [0.0, 0.7])
def test_squares_corrected_for_noise_are_those_of_the_signal_on_average(signal, deviations):
    optimiser = _moments(signal, deviations)
    error = 6 * optimiser.signal.std() / math.sqrt(50_000)
    assert optimiser.signal.mean() == pytest.approx(signal**2, abs=error)
    assert optimiser.squares.mean() > signal**2 + 10 * error


def test_corrected_squares_are_held_above_their_deviation_under_noise_alone():
    optimiser = _moments(0.0, [2.0] * 30)
    assert optimiser._least == pytest.approx(optimiser.signal.std(), rel=0.02)
    gradient, memory = np.array([1e-6, -1e-6]), 0.9
    options = ServerOptions(server_optimiser="adam", noise_corrected=True, second_moment=memory, adaptivity=1e-9)
    single = ServerOptimiser(options, 0.1, 2)
    # After one round the average is one square, whose deviation is root two times the variance.
    moved = single.step(np.zeros(2), gradient, 3.0)
    np.testing.assert_allclose(moved, -0.1 * gradient / (3 * 2**0.25), rtol=1e-6)


def test_a_correction_for_no_noise_changes_nothing():
    for options in ({}, {"noise_corrected": True}):
        np.testing.assert_array_equal(_path("adam", GRADIENTS, **options), _path("adam", GRADIENTS))


@pytest.mark.parametrize("strategy", [*STRATEGIES, AdaptiveClipping])
def test_strategies_tell_the_optimiser_how_loud_the_noise_of_a_round_is(strategy, monkeypatch):
    problem, federation, told = Quadratic(3, 5.0, 4.0), population(users=200), []
    options = {"rounds": 3, "clip_norm": 3.0, "server_optimiser": "adam", "noise_corrected": True}
    method, step = make(strategy, problem, 200, 4.0, 1e-3, **options), ServerOptimiser.step
    monkeypatch.setattr(ServerOptimiser, "step", lambda *arguments: told.append(arguments[-1]) or step(*arguments))
    result = run(method, federation)
    assert told == [record.facts["noise_deviation"] for record in result.rounds]
    assert min(told) > 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@every_strategy
def test_optimisers_run_within_a_strategy_and_cost_no_privacy(strategy, kind):
    problem, federation = Quadratic(3, 5.0, 4.0), population(users=2000)
    options = {"rounds": 15, "clip_norm": 3.0, "server_optimiser": kind, "learning_rate": 0.3}
    method = make(strategy, problem, 2000, 4.0, 1e-5, **options)
    plain = make(strategy, problem, 2000, 4.0, 1e-5, rounds=15, clip_norm=3.0)
    assert method.plan.guarantee == plain.plan.guarantee
    reached = problem.excess_risk(final(run(method, federation)), federation)
    assert reached < 0.5 * problem.excess_risk(problem.initial(), federation)
    assert math.isfinite(reached)


# --- What is refused --------------------------------------------------------------------------------------------------

CORRECTED = {"server_optimiser": "adam", "noise_corrected": True}
REFUSED = [
    *((DPFedSGD, {"cohort": 31, "sampling": each}, "a batch takes 31 users and there are 30") for each in SCHEMES),
    (DPFedSGD, {"sampling": "random"}, r"strategy.sampling = 'random'"),
    *(
        (DPFedSGD, CORRECTED | {"server_optimiser": each}, "only adam has squares to correct")
        for each in ("sgd", "momentum")
    ),
    (AdaptiveClipping, {"count_noise": 0.5}, "strategy.count_noise = 0.5 alone spends the budget: it must exceed"),
    *(
        (AdaptiveClipping, {"clip_norm": 1.0, **bound}, "lies outside")
        for bound in ({"clip_low": 2.0}, {"clip_high": 0.5})
    ),
    (ProjectedSGD, CORRECTED | {"sparsity": 2}, "how much noise a projection leaves is not known"),
    (ProjectedSGD, {}, "strategy.sparsity is not set, and quadratic certifies none: set it"),
    (ProjectedSGD, {"sparsity": 0}, "strategy.sparsity = 0"),
    (ProjectedSGD, {"sparsity": 1, "projection": "l2"}, "strategy.projection = 'l2'"),
    *(
        (
            ProjectedSGD,
            {"sparsity": 1, "sampling": each, "cohort": 10, "delta": 0.0},
            f"strategy.sampling = '{each}' with privacy.delta = 0",
        )
        for each in SCHEMES[1:]
    ),
    *(
        (
            each,
            {"local_epochs": 2, "local_steps": 3},
            "strategy.local_epochs = 2 and strategy.local_steps = 3 are both given",
        )
        for each in (DPFedAvg, AdaptiveClipping)
    ),
    *(
        (AdaptiveClipping, {each: value}, rf"strategy.{each} = .*: users send their gradient and do not train")
        for each, value in (
            *(("local_batch", 4), ("local_optimiser", "adam")),
            *(("proximal", 0.1), ("local_schedule", "linear")),
        )
    ),
]


@pytest.mark.parametrize(("strategy", "options", "words"), REFUSED)
def test_settings_that_do_not_go_together_are_refused(strategy, options, words):
    with pytest.raises(BadInput, match=words) as refused:
        make(strategy, Quadratic(3, 5.0, 2.0), 30, **{"delta": 1e-3} | options)
    assert isinstance(refused.value, PopulationTooSmall) == ("cohort" in options and options["cohort"] > 30)


def test_projections_take_what_is_refused_beside_other_settings():
    options = {"delta": 1e-3, "sparsity": 4}
    make(ProjectedSGD, Quadratic(3, 1.0, 1.0), 50, projection="none", **CORRECTED, **options)
    method = make(ProjectedSGD, Quadratic(3, 1.0, 1.0), 50, sampling="poisson", cohort=10, **options)
    assert method.plan.numbers["sparsity"] == 3
    assert method.plan.guarantee.holds


UNCOVERED = r"a user can move the mean of \w+ by .*, and its noise is made for"


@pytest.mark.parametrize("strategy", [DPFedSGD, DPFedAvg, DPFTRL, ProjectedSGD])
def test_a_divisor_that_its_noise_is_not_made_for_is_refused_before_users_are_asked(strategy):
    sparse = {"sparsity": 2} if strategy is ProjectedSGD else {}
    method = make(strategy, Quadratic(2, 1.0, 2.0), 400, 2.0, 1e-5, rounds=4, **sparse)
    assert requested(method, 0) is not None
    # Noise of prefix sums is made for all rounds together, which is more than one.
    with_scheme(method, divisor=method.scheme.divisor / (4 if strategy is DPFTRL else 1.01))
    with pytest.raises(RunFailed, match=UNCOVERED):
        requested(method, 0)


@pytest.mark.parametrize(
    ("strategy", "name"), [(AdaptiveClipping, "mechanism"), (RecentredClipping, "gradient_mechanism")]
)
def test_noise_for_another_clip_than_is_asked_is_refused(strategy, name, monkeypatch):
    method = make(strategy, Quadratic(2, 1.0, 2.0), 400, 2.0, 1e-5, rounds=4)
    assert requested(method, 0) is not None
    of_clip = getattr(type(method.scheme), name)
    monkeypatch.setattr(type(method.scheme), name, lambda scheme, clip, *more: of_clip(scheme, clip / 1.01, *more))
    with pytest.raises(RunFailed, match=UNCOVERED):
        requested(method, 0)
