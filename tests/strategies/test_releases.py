"""Whole runs of every strategy, seen from their noise: streams, budgets, prices, the domain and the initial model.

Nothing here knows a strategy. A `Watch` notes each draw of noise, the mechanism that asked for it and whom the round
asked; `dp_accounting` then composes what was drawn.
"""

import ast
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import any_strategy
import numpy as np
import pytest
from any_strategy import FACTS, USERS, as_read, halves
from dp_accounting import NeighboringRelation
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from helpers import final, make, run

from strategies import STRATEGIES, Auto, DPFedSGD, model_vector
from strategies.auto.preparation import LearnCoordinates
from strategies.baselines.peeling import Peeling
from strategies.core.base import UserLevelStrategy
from strategies.core.program import SHARE
from strategies.core.scheme import Step
from userdp.accounting import Cost
from userdp.accounting.costs import together
from userdp.errors import RunFailed
from userdp.masking.sums import MaskedSum
from userdp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from userdp.mechanisms.concentration_tests import AboveThreshold, MinimumScore
from userdp.nodes.computations import Computation, LocalNoise
from userdp.noise import SecureNoise, SeededNoise, in_units
from userdp.problems import (
    Certificate,
    Cloglog,
    Huber,
    Linear,
    Logistic,
    OneHotPoisson,
    Poisson,
    Softmax,
    SparseSquared,
    Squared,
)
from userdp.streams import Streams

ROOT = Path(__file__).resolve().parents[2]
EPSILON, DELTA = 4.0, 1e-4
STEP = 1e-3
"""The grid of privacy losses, which dp_accounting rounds up."""


# --- What is watched -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One draw of noise in a whole run.

    Attributes:
        round: in which it was drawn, from 1.
        units: the numbers that the generator gave, in units of the noise's scale.
        multiplier: deviation of Gaussian noise over the sensitivity that its mechanism declares; infinite for others.
        epsilon: of other noise, by its own scale.
        failure: probability with which it may fail to protect.
        known: whether a mechanism asked for it.
    """

    round: int
    units: tuple[float, ...]
    multiplier: float = math.inf
    epsilon: float = 0.0
    failure: float = 0.0
    known: bool = True


@dataclass
class Watch:
    """A run, watched: its draws, what users or nodes added, whom its rounds asked, at which models, and what was
    released after each round."""

    method: UserLevelStrategy
    draws: list = field(default_factory=list)
    added: list = field(default_factory=list)
    users: dict = field(default_factory=dict)
    asked_at: list = field(default_factory=list)
    compared_with: list = field(default_factory=list)
    released: list = field(default_factory=list)
    _round: int = 0
    _mechanism: object = None

    def whole(self, federation):
        """Watch a whole run."""
        with pytest.MonkeyPatch.context() as patch:
            self._watch_mechanisms(patch)
            self._watch_noise(patch)
            self._watch_rounds(patch)
            self.initial = self.method.problem.initial()
            self.result = run(self.method, federation, evaluate_fn=self._note_released)
        return self

    def _note_released(self, server_round, arrays):
        self.released.append(model_vector(arrays))

    def _watch_mechanisms(self, patch):
        for kind, name in (
            *((GaussianMechanism, "release"), (LaplaceMechanism, "release"), (ExponentialMechanism, "choose")),
            *((Peeling, "release"), (AboveThreshold, "session"), (MinimumScore, "session")),
        ):
            patch.setattr(kind, name, self._watched(getattr(kind, name)))

    def _watched(self, method):
        def watched(mechanism, *given):
            self._mechanism = mechanism
            try:
                return method(mechanism, *given)
            finally:
                self._mechanism = None

        return watched

    def _watch_noise(self, patch):
        gaussian, laplace, choose = SeededNoise.gaussian, SeededNoise.laplace, SeededNoise.choose

        def drawn(source, law, size, **cost):
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = source.generator.bit_generator.state
            units = tuple(np.ravel(getattr(generator, law)(size=size)).tolist())
            self.draws.append(Draw(self._round, units, known=self._mechanism is not None, **cost))

        def normal(source, value, deviation):
            sensitivity = getattr(self._mechanism, "l2_sensitivity", math.nan)
            drawn(source, "normal", np.shape(value), multiplier=deviation / sensitivity)
            return gaussian(source, value, deviation)

        def double(source, value, scale):
            test, entries = self._mechanism, np.size(value)
            cost = {"epsilon": entries * getattr(test, "sensitivity", math.nan) / scale}
            if isinstance(test, AboveThreshold | MinimumScore):
                cost["failure"] = test.delta
            drawn(source, "laplace", np.shape(value), **cost)
            return laplace(source, value, scale)

        def gumbel(source, scores, epsilon, *, flips=False):
            shape = in_units(scores).shape
            drawn(source, "gumbel", shape, epsilon=shape[0] * epsilon)
            return choose(source, scores, epsilon, flips=flips)

        for name, method in (("gaussian", normal), ("laplace", double), ("choose", gumbel)):
            patch.setattr(SeededNoise, name, method)
        for kind, name in ((LocalNoise, "_simulated"), (MaskedSum, "_share")):
            patch.setattr(kind, name, self._noted(getattr(kind, name)))

    def _noted(self, method):
        """Note the noise that users or nodes add themselves."""

        def noted(source, *given):
            noise = method(source, *given)
            self.added.extend(np.ravel(noise).tolist())
            return noise

        return noted

    def _watch_rounds(self, patch):
        asked, follow = UserLevelStrategy.request_of, UserLevelStrategy._follow

        def asking(strategy, server_round):
            self._round = server_round
            return asked(strategy, server_round)

        def followed(strategy, server_round, gathered):
            request = strategy._request
            self.users[server_round] = request.users
            self.asked_at.append(strategy.state.x)
            if "initial" in request.computation.arrays:
                self.compared_with.append(request.computation.arrays["initial"].copy())
            return follow(strategy, server_round, gathered)

        patch.setattr(UserLevelStrategy, "request_of", asking)
        patch.setattr(UserLevelStrategy, "_follow", followed)

    def spent(self):
        """Epsilon of what was drawn: of the rounds before the strategy's own, of these, and of those after, added."""
        around, own = self.method.program, self.method.privacy
        before = 0 if around.before is None else around.before.rounds
        last = self.method.plan.rounds - (around.after is not None)
        parts = [(range(before + 1, last + 1), own.delta)]
        if around.before is not None:
            parts.append((range(1, before + 1), around.before.delta))
        if around.after is not None:
            parts.append((range(last + 1, last + 2), 0.0))
        return sum(self._spent_in(rounds, delta) for rounds, delta in parts)

    def _spent_in(self, rounds, delta):
        """The largest epsilon of any user, by privacy loss distributions of the draws in the rounds that ask it."""
        counted = {one: set() for one in range(USERS)}
        for index, users in self.users.items():
            if index in rounds:
                for one in users.tolist() if self._chance(index) == 1 else counted:
                    counted[one].add(index)
        return max(self._epsilon(mine, delta) for mine in set(map(frozenset, counted.values())))

    def _epsilon(self, rounds, delta):
        draws, squares = [draw for draw in self.draws if draw.round in rounds], Counter()
        for draw in draws:
            squares[draw.round] += draw.multiplier**-2
        alike = Counter((round(total**-0.5, 12), self._chance(index)) for index, total in squares.items() if total)
        pure = sum(draw.epsilon for draw in draws)
        if not alike:
            return pure
        both = common.DifferentialPrivacyParameters(pure, 0.0)
        composed = pld.from_privacy_parameters(both, value_discretization_interval=STEP)
        replaced = self.method.scheme.price.guarantee.relation == "replace_one"
        for (multiplier, chance), times in alike.items():
            one = pld.from_gaussian_mechanism(
                multiplier * (2 if replaced else 1),  # noise over one row
                sampling_prob=chance,
                value_discretization_interval=STEP,
                neighboring_relation=NeighboringRelation.REPLACE_ONE
                if replaced
                else NeighboringRelation.ADD_OR_REMOVE_ONE,
            )
            composed = composed.compose(one.self_compose(times))
        return composed.get_epsilon_for_delta(delta - sum(draw.failure for draw in draws))

    def _chance(self, index):
        """To take part in a round, where cohorts are secret; whoever takes part in a public one is sure to."""
        sampler = self.method.scheme.sampler
        if sampler is None or not sampler.secret:
            return 1.0
        return sampler.rates[index - 1] if hasattr(sampler, "rates") else sampler.rate


# --- Runs ------------------------------------------------------------------------------------------------------------


def uncertified():
    """A loss whose gradients no model changes, of which nothing is known."""
    problem = Linear(1, 1.0, radius=2.0)
    problem.certificate = Certificate(reason="none")
    return problem


def rows(problem):
    """Users of one sample each, whose target is 0 or 1."""
    rng = np.random.default_rng(3)
    return as_read(problem, rng.uniform(-1, 1, (USERS, problem.columns)), targets=rng.integers(0, 2, USERS))


def squares(radius=5.0):
    return Squared(2, np.inf, radius, low=-2.0, high=2.0, intercept=True, feature_bound=1.0)


def hazards():
    return Cloglog(2, np.inf, 5.0, feature_bound=1.0).by_period(0, 1)


# Of the default strategy, of what is around others, and of a domain whose edge is met.
MORE = {
    "auto, linear model": (Auto, squares(), {}),
    "auto, at the edge": (Auto, squares(0.05), {}),
    "auto, classes": (Auto, Logistic(2, np.inf, 5.0, ridge=0.1), {}),
    "auto, several classes": (Auto, Softmax(3, 2, np.inf, 5.0, intercept=True), {}),
    "auto, counts": (Auto, Poisson(2, 4.0, 1.0, count_bound=9.0, intercept=True), {}),
    "auto, coefficients": (Auto, Poisson(2, 4.0, 1.0, count_bound=9.0, intercept=True), {"coefficients": 0.4}),
    "auto, hazards": (Auto, hazards(), {"coefficients": 0.4}),
    "auto, sparse": (Auto, SparseSquared(2, 1.0, 2, 5.0, low=-1.0, high=1.0), {}),
    "auto, levels": (Auto, OneHotPoisson(2, 3.0, count_bound=9.0), {}),
    "auto, measured steps": (Auto, Huber(2, 5.0, 3.0, 1.0), {}),
    "auto, places": (Auto, squares(), {"relation": "add_or_remove"}),
    "auto, module": (Auto, uncertified(), {}),
    "auto, module, replaced": (Auto, uncertified(), {"relation": "replace_one"}),
    "prepared": (DPFedSGD, squares(), {"rounds": 3, "preparation": LearnCoordinates}),
    "masked": (DPFedSGD, squares(), {"rounds": 3, "trust": "sum"}),
    "masked, adaptive": (STRATEGIES["adaptive_clipping"], squares(), {"rounds": 3, "trust": "sum"}),
    "masked, votes": (STRATEGIES["vote_descent"], squares(), {"rounds": 3, "trust": "sum"}),
    "recentred, places": (STRATEGIES["recentred_clipping"], squares(), {"rounds": 3, "relation": "add_or_remove"}),
    "recentred, batches": (STRATEGIES["recentred_clipping"], squares(), {"rounds": 7, "cohort": 160}),
    "compared": (DPFedSGD, squares(), {"rounds": 3, "clip_norm": 1.0, "compare_with_initial": True}),
    "prepared and compared": (
        STRATEGIES["recentred_clipping"],
        squares(),
        {"rounds": 3, "preparation": LearnCoordinates, "compare_with_initial": True},
    ),
}
SLOW = {"averaged_clipping", "outlier_removal", "sparse_exponential", "stopped_sgd"}
SLOW |= {"auto, module", "auto, module, replaced"}
EVERY = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in [*STRATEGIES, *MORE]]
every_run = pytest.mark.parametrize("name", EVERY)
_watched: dict[str, Watch] = {}


def method_of(name, **more):
    if name in MORE:
        kind, problem, options = MORE[name]
        return make(kind, problem, USERS, EPSILON, DELTA, facts=FACTS, **options, **more)
    return any_strategy.method_of(name, epsilon=EPSILON, delta=DELTA, unit=STRATEGIES[name].about.units[0], **more)


def watched(name):
    """The run of that name, made once."""
    if name not in _watched:
        method = method_of(name)
        users = rows(method.problem) if name in MORE else halves(method.problem)
        _watched[name] = Watch(method).whole(users)
    return _watched[name]


# --- What holds of each ----------------------------------------------------------------------------------------------

DRAWN_BY_OTHERS, NO_PROMISE = ("local_dp", "masked", "masked, adaptive", "masked, votes"), "non_private"
OWN_ACCOUNTS = {
    "dp_ftrl": "noise is correlated over rounds: tests/strategies/clipping/test_ftrl.py",
    "averaged_clipping_restarted": "each of its runs has a sampler: tests/strategies/baselines",
    "stopped_sgd": "cohorts have random sizes: tests/strategies/baselines/sparse_gradients/test_stopped_sgd.py",
}
"""Strategies that no simple composition of draws accounts, and the tests that do."""
TOGETHER = {"private_lasso"}
"""Choices that cost less together than one after the other; the sum of their epsilons is compared with the budget."""


@every_run
def test_no_two_draws_of_a_run_share_a_number(name):
    seen = watched(name)
    units = [unit for draw in seen.draws for unit in draw.units]
    assert bool(units) == (name not in (*DRAWN_BY_OTHERS, NO_PROMISE))
    assert bool(seen.added) == (name in DRAWN_BY_OTHERS)
    assert len({*units, *seen.added}) == len(units) + len(seen.added)


@every_run
def test_what_is_drawn_spends_what_is_promised_and_not_more(name):
    seen = watched(name)
    promised = seen.result.guarantee
    if name in (*DRAWN_BY_OTHERS, NO_PROMISE, *OWN_ACCOUNTS):
        return
    assert all(draw.known for draw in seen.draws)
    spent = seen.spent()
    assert promised.epsilon <= EPSILON * (1 + 1e-6)
    assert spent <= (EPSILON if name in TOGETHER else promised.epsilon) * (1 + 2e-3)
    assert spent >= (0.8 if name in TOGETHER else 0.99) * EPSILON


@every_run
def test_the_price_of_a_plan_is_that_of_all_its_parts(name):
    method = watched(name).method
    around, scheme, plan = method.program, method.scheme.price.guarantee, method.plan
    parts = [part for part in (around.before, around.after) if part is not None]
    assert plan.guarantee.epsilon == pytest.approx(scheme.epsilon + sum(part.epsilon for part in parts), rel=1e-12)
    assert plan.guarantee.delta == pytest.approx(scheme.delta + sum(part.delta for part in parts), rel=1e-12)
    assert plan.rounds >= len(watched(name).users) == len(watched(name).result.rounds)
    if not plan.guarantee.holds:
        return
    assert method.privacy.epsilon + sum(part.epsilon for part in parts) == pytest.approx(EPSILON, rel=1e-12)
    assert method.privacy.delta + sum(part.delta for part in parts) == pytest.approx(DELTA, rel=1e-12)
    assert plan.guarantee.delta == pytest.approx(DELTA, rel=1e-12)
    assert method.spent_epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-9)


@pytest.mark.parametrize("name", ["prepared", "compared", "prepared and compared"])
def test_numbers_that_price_the_whole_run_have_all_its_parts(name):
    around = {part: value for part, value in MORE[name][2].items() if part in ("preparation", "compare_with_initial")}
    method = make(DPFedSGD, squares(), USERS, EPSILON, DELTA, rounds=3, sampling="poisson", cohort=100, **around)
    own, parts, numbers = method.scheme.price.guarantee, method.program.extra, method.plan.numbers
    epsilon, delta = method.scheme.sampler.replaced(numbers["noise_multiplier"], own.delta)
    assert parts
    assert numbers["replace_one_epsilon"] == pytest.approx(epsilon + sum(part.epsilon for part in parts), rel=1e-12)
    assert numbers["replace_one_delta"] == pytest.approx(delta + sum(part.delta for part in parts), rel=1e-12)


@every_run
def test_every_model_that_is_released_lies_in_the_domain(name):
    seen = watched(name)
    box = seen.method.original.domain
    assert len(seen.released) == 1 + len(seen.result.rounds)
    for model in seen.released:
        np.testing.assert_array_equal(box.project(model), model)
    np.testing.assert_array_equal(final(seen.result), seen.released[-1])


@every_run
def test_the_initial_model_stays_what_it_was_to_the_bit(name):
    seen = watched(name)
    np.testing.assert_array_equal(seen.method.state.initial, seen.initial)
    constant = seen.method.result.constant
    for model in seen.compared_with if name != "auto, sparse" else ():  # compared with one level of all columns
        np.testing.assert_array_equal(model, seen.initial if constant is None else constant)
    for model in (seen.method.state.initial, seen.method.state.x, seen.method.state.released, *seen.asked_at):
        assert not model.flags.writeable


@pytest.mark.parametrize("name", [one for one in EVERY if one.values[0].startswith("auto,")])
def test_auto_asks_at_models_of_the_domain_and_compares_with_the_first(name):
    seen = watched(name)
    box = seen.method.original.domain
    for model in seen.asked_at:
        np.testing.assert_array_equal(box.project(model), model)
    assert len(seen.compared_with) == 1
    if name == "auto, at the edge":
        assert any(np.abs(model).max() == box.radius for model in seen.asked_at)


# --- Failing closed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_a_stream_is_opened_once(secure):
    """Under secure noise, too, where no stream would repeat: a simulation fails wherever a deployment does."""
    streams = Streams(secure=secure)
    made = [streams.open(3, index, purpose, 0.0) for index in range(2) for purpose in range(2)]
    assert {type(one) for one in made} == {SecureNoise if secure else SeededNoise}
    for index in range(2):
        with pytest.raises(RunFailed, match=f"round {index}, purpose 1 was drawn before"):
            streams.open(3, index, 1, 0.0)


def test_each_seed_of_a_repeated_run_has_noise_of_its_own():
    """An audit repeats runs with copies of a strategy that have other seeds."""
    streams = Streams(secure=False)
    drawn = [streams.open(seed, 0, 0, 0.0).gaussian(np.zeros(4), 1.0) for seed in range(50)]
    assert len(np.unique(np.concatenate(drawn))) == 200


def calling(functions):
    """Files that call a function whose name matches, but for papers' algorithms and sweeps on plain arrays."""
    made = {
        path.relative_to(ROOT).as_posix()
        for package in ("userdp", "strategies", "simulations")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and re.match(functions, ast.unparse(node.func))
    }
    return {path for path in made if "/reference/" not in path and "/sweeps/" not in path}


def test_noise_is_made_in_one_place():
    """Users' own noise is made by their nodes, that of replayed runs by the contract of strategies."""
    assert calling(r"(SeededNoise|SecureNoise)$") == {
        "simulations/testing/tape.py",
        "userdp/streams.py",
        "userdp/nodes/computations.py",
    }


def test_random_numbers_come_from_streams_or_the_operating_system():
    """Only these draw without a stream: made-up data, audits, checks, a user's module, and users' local noise."""
    assert calling(r"(np|numpy)\.random\.|random\.") <= {
        *("userdp/randomness.py", "userdp/nodes/computations.py", "userdp/data/synthetic/federation.py"),
        *("userdp/neural/samples.py", "userdp/neural/chance.py", "strategies/baselines/heavy_tailed/estimators.py"),
        *("simulations/audit/one_run.py", "simulations/audit/trials.py", "simulations/comparison/oracle.py"),
        *("userdp/problems/contract.py", "userdp/queries/contract.py"),
    }


@pytest.mark.parametrize("name", ["dp_fed_sgd", "adaptive_clipping", "recentred_clipping", "auto"])
def test_a_run_that_draws_one_stream_for_all_its_releases_ends(name):
    method = method_of(name)
    method._noise = lambda index, purpose=0, opened=method._noise: opened(0, 0)
    with pytest.raises(RunFailed, match="was drawn before"):
        run(method, halves(method.problem))


@pytest.mark.parametrize("name", [*("dp_fed_sgd", "adaptive_clipping", "auto"), "auto, linear model", "prepared"])
def test_a_release_with_less_noise_than_is_charged_ends_the_run(name, monkeypatch):
    method, release = method_of(name), GaussianMechanism.release
    louder = lambda one, *given: release(replace(one, noise_multiplier=one.noise_multiplier * (1 - 1e-7)), *given)  # noqa: E731
    monkeypatch.setattr(GaussianMechanism, "release", louder)
    with pytest.raises(RunFailed, match="releases of a round have a cost"):
        run(method, rows(method.problem) if name in MORE else halves(method.problem))
    assert method.result.rounds == []  # the first that draws, a preparation's too
    np.testing.assert_array_equal(method.state.released, method.state.initial)


def test_a_comparison_with_less_noise_than_is_charged_ends_the_run(monkeypatch):
    method, release = method_of("compared"), LaplaceMechanism.release
    louder = lambda one, *given: release(replace(one, epsilon=one.epsilon * (1 + 1e-7)), *given)  # noqa: E731
    monkeypatch.setattr(LaplaceMechanism, "release", louder)
    with pytest.raises(RunFailed, match=r"releases of a round have a cost of 0\.2 \(epsilon\)"):
        run(method, rows(method.problem))


def test_a_run_that_spends_more_than_its_plan_promises_hands_back_no_model():
    method = method_of("compared")
    guarantee = replace(method.plan.guarantee, epsilon=(1 - SHARE) * EPSILON)
    method.plan = replace(method.plan, guarantee=guarantee)
    with pytest.raises(RunFailed, match=r"has spent epsilon = 4, and its plan promises 3\.8"):
        run(method, rows(method.problem))


OWN_PROOFS = {NO_PROMISE, *DRAWN_BY_OTHERS, "dp_ftrl", "robust_rounds", "localized_clipping", "localized_robust_sgd"}
OWN_PROOFS |= {"averaged_clipping_restarted", "iterative_mean_sgd", "output_perturbation", "private_hard_thresholding"}
OWN_PROOFS |= {"private_lasso", "recovered_sgd", "robust_frank_wolfe", "sparse_optimisation", "winsorized_rotation"}
OWN_PROOFS |= {"poisson_sample_sgd", "sample_clipped_sgd", "smoothed_truncation_gd"}
"""Users or nodes add the noise, or clips of whole users' vectors are not what noise is made for."""


@pytest.mark.parametrize("name", [name for name in [*STRATEGIES, *MORE] if name not in OWN_PROOFS | SLOW])
def test_users_who_can_move_a_sum_further_than_its_noise_is_made_for_are_not_asked(name, monkeypatch):
    method, of = method_of(name), Computation.sensitivity
    monkeypatch.setattr(Computation, "sensitivity", lambda *given, **more: 1.01 * (of(*given, **more) or math.nan))
    with pytest.raises(RunFailed, match="its noise is made for"):
        run(method, rows(method.problem) if name in MORE else halves(method.problem))


@every_run
def test_whatever_a_step_releases_is_released_within_the_domain(name):
    method = method_of(name)
    far = np.full(method.original.dimension, 1e6)
    method.state.take(Step(far, far), None, method.original)
    np.testing.assert_array_equal(method.state.released, method.original.domain.project(far))


def test_costs_of_one_participation_add_up():
    both = together(Cost(noise_multiplier=2.0), Cost(noise_multiplier=2.0, pure_epsilon=0.5), Cost(failure_delta=0.1))
    assert both.noise_multiplier == pytest.approx(math.sqrt(2.0))
    assert (both.pure_epsilon, both.failure_delta, both.shared_epsilon) == (0.5, 0.1, 0.0)
    assert together() == Cost()
