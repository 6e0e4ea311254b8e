"""Steps inside a phase in floating point: against exact arithmetic, and between neighbours to the last bit."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from helpers import afresh, federation_of, gathered, noise_again, requested, taken
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategies import LocalizedClipping, LocalizedRobustSGD, PublicFacts
from strategies.localized.phases import gradient_rounding, phase_rounding
from userdp.accounting import Privacy
from userdp.data import Block
from userdp.errors import BadInput
from userdp.estimators import Winsorized
from userdp.mechanisms import GaussianMechanism
from userdp.mechanisms.concentration_tests import Session
from userdp.noise import rounding_slack
from userdp.problems import Bernoulli, Huber, Linear, Logistic, Quadratic
from userdp.problems.one_hot import OneHotLogistic, OneHotPoisson, OneHotSquared

SEEDS = st.integers(0, 2**32 - 1)


def secure(strategy, problem, users, **options):
    return strategy(**options).strategy(problem, PublicFacts(users), Privacy(4.0, 1e-4, noise="secure"), seed=0)


# --- Gradients -------------------------------------------------------------------------------------------------


def exact_sigmoid(value):
    with localcontext(prec=60):
        return Fraction(1 / (1 + (-Decimal(float(value))).exp()))


def exact_exponential(value):
    with localcontext(prec=60):
        return Fraction(Decimal(float(value)).exp())


def clipped(value, limit):
    return min(max(value, -Fraction(limit)), Fraction(limit))


SEPARABLE = {
    "linear": (Linear(2, 3.0, 5.0), lambda x, z: -z),
    "quadratic": (Quadratic(2, 3.0, 5.0), lambda x, z: Fraction(x) - z),
    "bernoulli": (Bernoulli(2, 30.0), lambda x, z: exact_sigmoid(x) - z),
    "huber": (Huber(2, 3.0, 5.0, 0.7), lambda x, z: clipped(Fraction(x) - z, 0.7)),
}


@pytest.mark.parametrize("name", SEPARABLE)
@settings(max_examples=60)
@given(seed=SEEDS, samples=st.integers(1, 50))
def test_gradients_of_separable_losses_are_rounded_by_less_than_stated(name, seed, samples):
    """The exact gradients are taken at the user's computed mean if the loss knows no more of a user than this mean."""
    (problem, slope), rng = SEPARABLE[name], np.random.default_rng(seed)
    x = problem.domain.project(rng.uniform(-1, 1, 2) * 10.0 ** rng.uniform(-3, 2))
    samples_of_user = rng.uniform(problem.low, problem.high, (samples, 2)) * rng.choice([1.0, 1e-20])
    block = Block(samples_of_user.astype(np.float32), np.array([0, samples]))
    computed = problem.user_gradients(x, block)[0]
    points = block.features if name == "huber" else -Linear(2, 3.0).user_gradients(x, block)
    for column in range(2):
        exact = [slope(x[column], Fraction(float(z))) for z in points[:, column]]
        error = abs(Fraction(float(computed[column])) - sum(exact) / len(exact))
        assert error <= Fraction(problem.gradient_rounding)


ONE_HOT = {
    "logistic": (OneHotLogistic(2, 20.0, ridge=0.1), exact_sigmoid),
    "squared": (OneHotSquared(2, 20.0, low=-1.0, high=3.0, ridge=0.1), lambda x: Fraction(float(x))),
    "poisson": (OneHotPoisson(2, 20.0, count_bound=30.0, ridge=0.1), exact_exponential),
}


@pytest.mark.parametrize("name", ONE_HOT)
@settings(max_examples=60)
@given(seed=SEEDS, samples=st.integers(1, 50))
def test_gradients_of_one_hot_losses_are_rounded_by_less_than_stated(name, seed, samples):
    (problem, mean), rng = ONE_HOT[name], np.random.default_rng(seed)
    x = rng.uniform(-20, 20, 2)
    codes, targets = rng.integers(0, 2, (samples, 1)).astype(np.int32), rng.uniform(0, 1, samples).astype(np.float32)
    computed = problem.user_gradients(x, Block(codes, np.array([0, samples]), targets))[0]
    for level in range(2):
        slopes = [mean(x[level]) - Fraction(float(y)) for y in targets[codes[:, 0] == level]]
        exact = sum(slopes, Fraction(0)) / samples + Fraction(problem.ridge) * Fraction(float(x[level]))
        assert abs(Fraction(float(computed[level])) - exact) <= Fraction(problem.gradient_rounding)


def test_a_linear_loss_asks_the_same_of_every_model_to_the_last_bit():
    problem, block = Linear(3, 2.0), Block(np.random.default_rng(0).normal(size=(7, 3)), np.array([0, 3, 7]))
    models = np.random.default_rng(1).uniform(-1, 1, (5, 3))
    rows = [problem.user_gradients(model, block) for model in models]
    assert all(np.array_equal(row, rows[0]) for row in rows)
    assert problem.gradient_rounding == 0.0


@pytest.mark.parametrize("strategy", [LocalizedClipping, LocalizedRobustSGD])
@pytest.mark.parametrize(
    "problem", [Logistic(2, 1.0, 1.0, ridge=5.0), Huber(2, 1.0, np.inf, 1.0)], ids=["no bound", "no end"]
)
def test_losses_and_domains_without_a_bound_on_rounding_are_refused(strategy, problem):
    assert not problem.certificate.missing()
    with pytest.raises(BadInput, match=r"privacy\.noise = 'secure'.*inside a phase are rounded"):
        secure(strategy, problem, 2000)
    settings = {} if strategy is LocalizedClipping else {"deviation": 0.1}
    strategy(**settings).strategy(problem, PublicFacts(2000), Privacy(4.0, 1e-4))


# --- Iterates --------------------------------------------------------------------------------------------------


class Noiseless(Exception):
    """Carries what would have been released."""


def released_average(method, federation, monkeypatch):
    """The average iterate of the first phase, before its noise, however its test ends."""

    def caught(mechanism, value, noise):
        raise Noiseless(value)

    monkeypatch.setattr(GaussianMechanism, "release", caught)
    monkeypatch.setattr(Session, "passed", lambda session: True)
    x = afresh(method).problem.initial()
    for index in range(method.plan.rounds):
        try:
            x = taken(method, index, x, gathered(method, federation, index, x)).following
        except Noiseless as noiseless:
            return noiseless.args[0]
    raise AssertionError("nothing was released")


def exact_average(method, values, width, rate):
    """The first phase of clipped steps on a quadratic, in fractions; values are (users,), one number each."""
    x, iterates, radius = Fraction(0), [], Fraction(method.problem.domain.radius)
    for index in range(method.recipe.steps):
        users = requested(method, index).users
        steps = [clipped(x - Fraction(float(values[user])), width) for user in users]
        x = min(max(x - Fraction(rate) * sum(steps) / len(steps), -radius), radius)
        iterates.append(x)
    return sum(iterates) / len(iterates)


@settings(max_examples=40)
@given(seed=SEEDS, steps=st.sampled_from([1, 2, 9]), batch=st.sampled_from([1, 3, 40]), rate=st.floats(1e-3, 2.0))
@example(seed=1558804748, steps=9, batch=1, rate=1.939880901019049)  # errs by a thousandth of what is stated
def test_an_average_of_clipped_steps_errs_by_less_than_half_of_what_is_stated(seed, steps, batch, rate):
    rng, problem = np.random.default_rng(seed), Quadratic(1, 3.0, 5.0)
    values = np.clip(rng.normal(size=steps * batch) * 10.0 ** rng.integers(-9, 2), -3, 3).astype(np.float32)
    method = secure(
        LocalizedClipping,
        problem,
        steps * batch,
        phases=1,
        steps=steps,
        learning_rate=rate,
        clip=rng.choice([0.1, 9.0]),
    )
    (phase,) = method.scheme.phases
    with pytest.MonkeyPatch.context() as patch:
        computed = released_average(method, federation_of(values[:, None]), patch)
    error = abs(Fraction(float(computed[0])) - exact_average(method, values, phase.width, rate))
    assert noise_again(method, 0).slack == rounding_slack(batch, 1.0, method.scheme.price.rounding)
    assert 2 * error <= Fraction(phase.mechanism.l2_sensitivity) * Fraction(method.scheme.price.rounding)


@settings(max_examples=40)
@given(
    seed=SEEDS,
    strategy=st.sampled_from([LocalizedClipping, LocalizedRobustSGD]),
    problem=st.sampled_from([Quadratic(2, 3.0, 5.0), Linear(2, 3.0, 5.0), Bernoulli(2, 5.0), Huber(2, 3.0, 5.0, 0.5)]),
)
def test_neighbours_averages_are_no_further_apart_than_stated_to_the_last_bit(seed, strategy, problem):
    """Users agree but for a third who stand anywhere; one of the others goes anywhere."""
    rng, users = np.random.default_rng(seed), 400
    options = {"phases": 1, "steps": 4} if strategy is LocalizedClipping else {"phases": 1, "batch": 100, "radius": 2.0}
    with pytest.MonkeyPatch.context() as patch:
        method = secure(strategy, problem, users, **options)
        values = rng.uniform(0, 0.5, (users, 2))
        odd = rng.random(users) < rng.choice([0.0, 0.1])
        values[odd] = rng.uniform(problem.low, problem.high, (odd.sum(), 2))
        other = values.copy()
        other[int(rng.integers(users))] = rng.choice([problem.low, problem.high], 2)
        averages = [released_average(method, federation_of(rows), patch) for rows in (values, other)]
    sensitivity = method.scheme.phases[0].mechanism.l2_sensitivity
    moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(*(each.tolist() for each in averages), strict=True))
    assert moved <= (Fraction(sensitivity) * (1 + Fraction(noise_again(method, 0).slack) - Fraction(1, 2**21))) ** 2


def test_the_noise_of_tested_phases_covers_iterates_and_scores():
    problem = Quadratic(3, 3.0, 5.0)
    method = secure(LocalizedRobustSGD, problem, 4000, radius=2.0, phases=2, batch=200)
    estimator = Winsorized(2.0)
    longest = 2.0**20 * 2.0 + 4.0
    iterates = max(
        phase_rounding(
            problem,
            steps=phase.steps,
            rate=phase.learning_rate,
            sensitivity=estimator.sup_sensitivity(200),
            error=estimator.error(200),
            longest=longest,
        )
        for phase in method.scheme.phases
    )
    scores = 4 * 200 * gradient_rounding(problem) / 2.0
    assert method.scheme.price.rounding == pytest.approx(iterates + scores, rel=1e-12, abs=0.0)
    assert noise_again(method, 0, 1).slack == rounding_slack(200, 1.0, method.scheme.price.rounding)
    assert 1e-6 < noise_again(method, 0, 1).slack < 1e-3


def test_the_noise_of_clipped_phases_covers_the_steps_of_each():
    """Later clips are narrower, and rounding is a larger part of what a user moves within them."""
    problem = Quadratic(3, 3.0, 5.0)
    method = secure(LocalizedClipping, problem, 8000, phases=3, steps=4, deviation=0.1, shrink=0.1)
    batch = method.plan.numbers["batch"]
    by_phase = [
        phase_rounding(
            problem,
            steps=phase.steps,
            rate=phase.learning_rate,
            sensitivity=2 * phase.width / batch,
            error=batch * 2.0**-53 * phase.width,
            longest=phase.width,
        )
        for phase in method.scheme.phases
    ]
    assert by_phase[0] < by_phase[1] < by_phase[2] <= method.scheme.price.rounding
