"""Coordinates, clips and steps found privately before a strategy's own rounds: budget, sensitivity, worth."""

import tomllib
from copy import deepcopy
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from flwr.app import Message
from helpers import content_of, federation_of, final, make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulations.comparison.config import parse_comparison
from simulations.config.run_config import parse_config
from simulations.runs.build import build_problem, make_strategy, public_facts
from strategies import PublicFacts
from strategies.auto import preparation
from strategies.auto.preparation import LearnCoordinates
from strategies.auto.releases import Release
from strategies.core.options import PreparedOptions
from strategies.registry import STRATEGIES
from strategies.wire.questions import Reader
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.noise import SeededNoise, rounding_slack
from userdp.problems import Certificate, Logistic, Quadratic, Softmax, Squared
from userdp.problems.base import MeasuredCurvature
from userdp.problems.in_coordinates import Coordinates, InCoordinates

PREPARED = sorted(name for name, kind in STRATEGIES.items() if issubclass(kind, PreparedOptions))
WELL_OFF = {"robust_rounds": {"rounds": 2}}
"""Options with which a few hundred users are enough."""
USERS = 1500
CONFIG = {
    "name": "prepared",
    "problem": {"kind": "squared", "radius": 5.0, "target_range": [-3.0, 3.0]},
    "data": {"kind": "synthetic", "population": "linear_regression", "users": 3000, "dimension": 4},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "strategy": {"kind": "dp_fed_sgd"},
}


def ill_scaled(users, seed=0):
    """Three samples each of four columns whose sizes span two decades, and an intercept."""
    rng = np.random.default_rng(seed)
    standard = rng.normal(size=(3 * users, 4))
    targets = np.clip(standard @ [0.3, -0.3, 0.3, 0.2] + 0.2 + 0.2 * rng.normal(size=3 * users), -2, 2)
    return federation_of(0.3 * standard * [1.0, 0.2, 0.05, 0.01], [3] * users, targets)


def squares():
    return Squared(4, np.inf, 200.0, low=-2.0, high=2.0, intercept=True, feature_bound=2.0)


def prepared(name, problem=None, users=USERS, epsilon=4.0, **options):
    return make(
        STRATEGIES[name],
        problem or squares(),
        users,
        epsilon,
        1e-5,
        preparation=LearnCoordinates,
        **WELL_OFF.get(name, {}) | options,
    )


def risk(problem, x, users):
    block = users.block(np.arange(users.users))
    return float(problem.metrics(x, block)["test_loss"].mean())


# --- Formal guarantee ------------------------------------------------------------------------------------------------


def test_those_that_can_be_prepared_promise_for_any_loss():
    assert [
        *("adaptive_clipping", "dp_fed_avg", "dp_fed_sgd", "dp_ftrl", "localized_weighting", "recentred_clipping"),
        "robust_rounds",
    ] == PREPARED
    for name in PREPARED:
        # Convex losses are so in any coordinates, in which each user bounds its curvature anew.
        assert name == "localized_weighting" or STRATEGIES[name].about.needs == "any loss"
        assert STRATEGIES[name].about.units == ("user",)


@pytest.mark.parametrize("name", PREPARED)
def test_strategy_and_preparation_together_keep_to_the_budget_and_the_ledgers_say_so(name):
    method = prepared(name)
    guarantee, part = method.plan.guarantee, method.program.before
    assert guarantee.epsilon == pytest.approx(4.0, rel=1e-6)
    assert guarantee.epsilon <= 4.0
    assert guarantee.delta == pytest.approx(1e-5, rel=1e-12)
    assert method.privacy.epsilon + part.epsilon == pytest.approx(4.0)
    assert method.privacy.delta + part.delta == pytest.approx(1e-5)
    result = run(method, ill_scaled(USERS))
    spent = [one.spent() for one in result.rounds]
    assert len(spent) == method.plan.rounds
    # Ledgers of several epochs say what has been spent so far; that of the preparation is whole after its rounds.
    assert 0 < spent[0] < spent[part.rounds - 1] <= part.epsilon * (1 + 1e-9)
    assert spent[part.rounds - 1] == pytest.approx(part.epsilon, rel=1e-6)
    assert spent[part.rounds - 1] < spent[part.rounds] <= spent[-1] <= 4.0
    assert spent[-1] == pytest.approx(4.0, rel=1e-6)


cells = st.sampled_from([0.0, 1.0, -1.0, 1e-4, 0.3, -7.0, 1e4, -1e18])


@settings(max_examples=25)
@given(
    arrays(np.float64, (8, 2), elements=cells),
    arrays(np.float64, 8, elements=cells),
    arrays(np.float64, (2, 2), elements=cells),
    arrays(np.float64, 2, elements=cells),
    st.sampled_from(["squared", "logistic", "quadratic", "softmax"]),
)
def test_one_user_moves_every_release_by_at_most_what_its_noise_is_for(rows, targets, other, target, name):
    """The user may also be added or removed, for which the noise is more than needed."""
    problem = {
        "squared": Squared(2, np.inf, 5.0, low=-2.0, high=2.0, intercept=True),
        "logistic": Logistic(2, np.inf, 5.0, ridge=0.1),
        "quadratic": Quadratic(2, 5.0, 3.0),
        "softmax": Softmax(3, 2, np.inf, 5.0, intercept=True),
    }[name]
    neighbour, told = rows.copy(), targets.copy()
    neighbour[:2], told[:2] = other, target
    part, x = LearnCoordinates(problem, PublicFacts(4, 1, 5), Privacy(2.0, 1e-3), 0), problem.initial()
    nodes = [Node(problem, federation_of(r, [2] * 4, t), np.arange(4)) for r, t in ((rows, targets), (neighbour, told))]
    for index in range(part.rounds):
        request, start = part.ask(index, problem.initial()), x
        sums = [node.compute(start, request.users, request.computation).values[0] for node in nodes]
        _, replaced = noted(deepcopy(part), index, x, sums[1])
        x, whole = noted(part, index, x, sums[0])
        for (one, movement, sensitivity), (two, again, _) in zip(whole, replaced, strict=True):
            assert movement == again
            assert sensitivity == pytest.approx(movement.replaced / 4)
            assert movement.added <= movement.replaced
            assert np.linalg.norm(one - two) <= movement.replaced * (1 + 1e-9)
        # A user who is not there adds zero.
        alone = nodes[0].compute(start, np.array([0]), request.computation).values[0]
        length = sum(len(one) for one, *_ in whole)
        assert np.linalg.norm(alone[len(alone) - length :]) <= whole[0][1].replaced * (1 + 1e-9)


def noted(part, index, x, sums):
    """(the next model, (sum, how far one user moves it, sensitivity of its mechanism) of each release of a round)."""
    found = []

    class Noting(Release):
        def mean(self, values, movement, part=1.0, *, silent=0.0):
            found.append((np.array(values), movement, self.scheme.mechanism(self.index, movement, part).l2_sensitivity))
            return super().mean(values, movement, part, silent=silent)

    with mock.patch.object(preparation, "Release", Noting):
        noise = SeededNoise(np.random.default_rng(index))
        step = part.take(index, x, x, Gathered(sums, 0, 0), lambda _: noise)
    return step.following, found


def test_a_promise_that_would_change_with_what_is_found_ends_the_run_before_its_rounds():
    method = prepared("dp_fed_sgd")
    new_scheme = method.program.own._new_scheme
    method.program.own._new_scheme = lambda: replace(
        s := new_scheme(), price=replace(s.price, guarantee=replace(s.price.guarantee, epsilon=1.0))
    )
    with pytest.raises(RunFailed, match="would promise something else"):
        run(method, ill_scaled(USERS))
    assert method.spent_epsilon <= method.program.before.epsilon


def test_what_is_found_does_not_change_the_rounds_of_the_plan():
    """They would be others with the second length, for whose noise more and shorter steps pay."""
    method = prepared("robust_rounds", users=6000, epsilon=3000.0, epochs=15, rounds=None)
    _, found = method.program.before.found()
    for length in (10.0, 0.1):
        recipe = method.recipe.model_copy(update=method.recipe.found(replace(found, length=length)))
        assert (
            recipe.scheme(method.program.own.given).outline.rounds == method.plan.rounds - method.program.before.rounds
        )


def test_sums_over_all_users_have_their_own_rounding():
    """The rounding is for all users, even if the strategy's cohorts are small."""
    privacy = Privacy(4.0, 1e-5, noise="secure")
    method = STRATEGIES["dp_fed_sgd"](rounds=1).strategy(
        squares(), PublicFacts(3000), privacy, seed=0, preparation=LearnCoordinates
    )
    own = method.program.own
    own._take_over(replace(method.scheme, price=replace(method.scheme.price, summands=2)))
    assert own.slack == rounding_slack(3000)


# --- What it is worth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PREPARED if name != "robust_rounds"])
def test_prepared_strategies_come_near_the_best_model_on_columns_of_any_scale(name):
    users, problem = ill_scaled(USERS, 1), squares()
    best = final(run(make(STRATEGIES["non_private"], problem, USERS), users))
    start, least = risk(problem, problem.initial(), users), risk(problem, best, users)
    plain = final(run(make(STRATEGIES[name], problem, USERS, 4.0, 1e-5), users))
    x = final(run(prepared(name), users))
    shares = [(start - risk(problem, one, users)) / (start - least) for one in (plain, x)]
    assert shares[0] < 0.5
    assert shares[1] > 0.9


def test_without_learnt_coordinates_the_clip_follows_users_lengths():
    rng = np.random.default_rng(2)
    values = np.array([300.0, -200.0]) + rng.normal(size=(USERS, 2))
    problem = Quadratic(2, 1000.0, 1000.0)
    method = prepared("dp_fed_sgd", problem, rounds=30, epsilon=8.0)
    x = final(run(method, federation_of(values)))
    assert method.program.before.rounds == 2
    assert method.recipe.clip_norm == pytest.approx(10 / 30 * np.hypot(300, 200), rel=0.2)
    np.testing.assert_allclose(x, [300, -200], rtol=0.1)


def test_settings_that_nobody_finds_stay():
    method = prepared("dp_fed_avg", local_steps=3, rounds=7)
    assert method.plan.rounds == 7 + method.program.before.rounds
    run(method, ill_scaled(USERS))
    assert (method.recipe.local_steps, method.recipe.rounds) == (3, 7)


@pytest.mark.parametrize("name", ["auto", "local_dp", "projected_sgd", "localized_clipping", "robust_rounds"])
def test_others_refuse(name):
    problem = Quadratic(2, 5.0, 3.0) if name == "robust_rounds" else squares()  # which needs learnt coordinates
    with pytest.raises(BadInput, match=f"nothing that {name} needs"):
        make(STRATEGIES[name], problem, 4000, preparation=LearnCoordinates)


# --- In a file -------------------------------------------------------------------------------------------------------


def planned(**sections):
    config = parse_config(CONFIG | sections)
    return make_strategy(config, build_problem(config), public_facts(config))


def test_where_neither_clip_nor_step_is_given_and_it_helps_there_is_one():
    assert planned().program.before is not None
    assert planned(preparation="none").program.before is None
    assert planned(strategy={"kind": "dp_fed_sgd", "clip_norm": 2.0}).program.before is None
    assert planned(strategy={"kind": "dp_fed_sgd", "learning_rate": 2.0}).program.before is None
    assert planned(strategy={"kind": "dp_fed_sgd", "rounds": 5}).program.before is not None
    few = {**CONFIG["data"], "users": 10}
    assert planned(data=few).program.before is None
    assert planned(data=few, preparation="learn").program.before is not None
    with pytest.raises(BadInput, match=r"preparation = 'learn' finds strategy\.clip_norm by itself"):
        planned(preparation="learn", strategy={"kind": "dp_fed_sgd", "clip_norm": 2.0})


@pytest.mark.parametrize("strategy", [{"kind": "dp_fed_sgd"}, {"kind": "dp_fed_sgd", "clip_norm": 1.0}])
@pytest.mark.parametrize("more", [{}, {"preparation": "learn"}])
def test_a_configuration_written_out_in_full_means_the_same(strategy, more):
    if more and "clip_norm" in strategy:
        return
    config = parse_config(CONFIG | more | {"strategy": strategy})
    again = parse_config(tomllib.loads(config.toml()))
    plans = [make_strategy(one, build_problem(one), public_facts(one)).plan for one in (config, again)]
    assert plans[0] == plans[1]


def test_a_comparison_may_hold_a_strategy_with_and_without():
    strategies = [{"kind": "dp_fed_sgd"}, {"kind": "dp_fed_sgd", "label": "plain", "preparation": "none"}]
    sections = {name: CONFIG[name] for name in ("problem", "data", "privacy")}
    comparison = parse_comparison({"name": "both", "seeds": 1, **sections, "strategy": strategies})
    found = {}
    for cell in comparison.cells:
        config = cell.config()
        found[cell.strategy] = make_strategy(config, build_problem(config), public_facts(config)).program.before
    assert found["dp_fed_sgd"] is not None
    assert found["plain"] is None


# --- Coordinates -----------------------------------------------------------------------------------------------------


def turned(p, seed=3):
    rng = np.random.default_rng(seed)
    return Coordinates(rng.normal(size=p), rng.normal(size=(p, p)) + 3 * np.eye(p))


@pytest.mark.usefixtures("flower_identity")
def test_coordinates_travel():
    asked = Computation("local_update", "sum", 0.5, parameters={"steps": 2.0, "step_size": 0.1}, coordinates=turned(3))
    content = content_of(np.zeros(3), np.arange(2), asked)
    _, read = Reader().request(Message(content, 1, "train"))
    np.testing.assert_array_equal(read.coordinates.matrix, asked.coordinates.matrix)
    np.testing.assert_array_equal(read.coordinates.start, asked.coordinates.start)
    assert read.arrays == {}


def test_coordinates_of_another_shape_or_without_an_end_are_refused():
    with pytest.raises(BadInput, match="must be"):
        Coordinates(np.zeros(2), np.eye(3))
    with pytest.raises(BadInput, match="finite"):
        Coordinates(np.zeros(2), np.full((2, 2), np.nan))
    with pytest.raises(BadInput, match="3 parameters"):
        InCoordinates(Quadratic(3, 1.0, 1.0), turned(2))


def test_measured_curvature_is_no_certificate():
    """Neither of smoothness nor of strong convexity; steps follow it all the same."""
    problem = Squared(2, np.inf, 5.0, low=-2.0, high=2.0, feature_bound=1.0, ridge=0.5)
    assert problem.certificate.strong_convexity > 0
    seen = InCoordinates(problem, turned(2), MeasuredCurvature(4.0))
    assert seen.certificate == Certificate(convex=True, reason=seen.certificate.reason)
    assert seen.certificate.missing() == Certificate(convex=True).missing()
    assert (seen.curvature, InCoordinates(problem, turned(2)).curvature) == (4.0, None)
    assert problem.curvature == problem.certificate.smoothness
    for field in ("smoothness", "strong_convexity", "lipschitz"):
        with pytest.raises(TypeError, match=f"Certificate.{field} is a proven bound"):
            Certificate(convex=True, **{field: seen.measured})
    method = prepared("recentred_clipping")
    assert method.problem.certificate.smoothness is None
    assert method.program.own.given.default_step == pytest.approx(1 / method.problem.measured.most)


def test_nothing_is_certified_of_a_problem_in_coordinates_but_what_turning_keeps():
    """A property of the type: whatever `Certificate` learns to hold, a preparation proves none of it."""
    for problem in (squares(), Logistic(2, np.inf, 5.0, ridge=0.1), Quadratic(2, 5.0, 3.0)):
        seen = InCoordinates(problem, turned(problem.dimension), MeasuredCurvature(1.0))
        for field in set(vars(Certificate())) - {"convex", "reason"}:
            assert getattr(seen.certificate, field) == getattr(Certificate(), field)
