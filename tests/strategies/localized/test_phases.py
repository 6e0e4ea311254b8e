"""Both strategies of phases: contractive steps, users of one step each, one released model per phase."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers import afresh, federation_of, gathered, make, requested, run, taken
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import LocalizedClipping, LocalizedRobustSGD
from strategies.localized import phases
from strategies.localized.phases import check_phase
from strategies.wire.replies import Gathered
from userdp.errors import RunFailed
from userdp.problems import Bernoulli, Linear, Logistic, Quadratic, Squared

USERS, STEPS = 52, 4
PROBLEMS = {
    "linear": Linear(2, 5.0),
    "quadratic": Quadratic(2, 5.0, 1.0),
    "bernoulli": Bernoulli(2, 1.0),
    "ridge": Logistic(2, 1.0, 1.0, ridge=0.05),
}
ROBUST = {"radius": 0.2, "batch": USERS // STEPS}
KINDS = {
    "narrow clip": (LocalizedClipping, {"steps": STEPS, "clip": 0.05}),
    "wide clip": (LocalizedClipping, {"steps": STEPS, "clip": 2.0}),
    "ours": (LocalizedRobustSGD, {"estimate": "winsorized", "kernel": "ramp", **ROBUST}),
    "paper": (LocalizedRobustSGD, {"estimate": "debiased", "statistic": "median", "kernel": "exp", **ROBUST}),
    "mixed": (LocalizedRobustSGD, {"estimate": "debiased", "kernel": "ramp", **ROBUST}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def tiny(kind, problem, rate, **options):
    """One phase, with a budget so large that thirteen users a step are enough: steps do not depend on it."""
    strategy, own = KINDS[kind]
    options = {"phases": 1, "learning_rate": rate} | own | options
    return make(strategy, problem, USERS, epsilon=1e5, delta=1e-3, **options)


def after_a_step(method, federation, models):
    """Return the model after the first step from each of the models."""
    return [taken(afresh(method), 0, x, gathered(method, federation, 0, x)).following for x in models]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@each_kind
@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.5, 1.0]))
def test_a_step_of_a_certified_loss_never_enlarges_the_distance_of_two_models(kind, problem, seed, rate):
    """Whoever the users are, agreeing or not: steps up to 2 / smoothness are 1-Lipschitz in the sup norm."""
    rng = np.random.default_rng(seed)
    method = tiny(kind, problem, 2 * rate / (problem.certificate.smoothness or 2.0))
    samples = rng.choice([-5.0, -1.0, -0.1, 0.0, 0.1, 0.3, 1.0, 5.0], (USERS, 2))
    samples[: rng.integers(USERS)] *= 0.1
    federation = federation_of(samples, targets=rng.integers(0, 2, USERS) if problem.has_targets else None)
    models = rng.uniform(-1, 1, (2, 2))
    x, y = after_a_step(method, federation, models)
    assert np.abs(x - y).max() <= np.abs(models[0] - models[1]).max() * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "wide"), [("wide clip", {"clip": 50.0}), ("ours", {"radius": 50.0})])
def test_without_a_diagonally_dominant_hessian_a_step_does_enlarge_a_distance(kind, wide):
    """Least squares with features (1, 1/4) shows why A4 is assumed: only the opt-out runs these strategies on it."""
    problem, rate = Squared(2, 2.0, 50.0, low=-5.0, high=5.0), 0.4
    assert problem.certificate.missing() == ["A4 (diagonally dominant Hessian)"]
    method = tiny(kind, problem, rate, without_certificate=True, **wide)
    federation = federation_of(np.tile([1.0, 0.25], (USERS, 1)), targets=np.zeros(USERS))
    x, y = after_a_step(method, federation, (np.zeros(2), np.array([-1.0, 1.0])))
    assert np.abs(x - y).max() == pytest.approx(1 + rate * 3 / 16)
    assert not method.plan.guarantee.holds
    assert method.program.own.ledger is None


@pytest.mark.parametrize("kind", ["narrow clip", "ours", "paper"])
def test_a_phase_is_refused_whose_noise_or_test_is_for_less_than_a_user_moves(kind, monkeypatch):
    problem = PROBLEMS["quadratic"]
    method = tiny(kind, problem, 0.5)
    (phase,) = method.scheme.phases
    given, noise, test = (method.plan.cohort, 2, problem.certificate.smoothness), phase.mechanism, phase.test
    less = [replace(phase, mechanism=replace(noise, l2_sensitivity=0.99 * noise.l2_sensitivity))]
    if test is not None:
        wider = replace(test.kernel, radius=1.01 * test.kernel.radius)
        less += [
            replace(phase, test=replace(test, **one)) for one in ({"movement": 0.99 * test.movement}, {"kernel": wider})
        ]
    check_phase(phase, *given)
    for one in less:
        with pytest.raises(RunFailed, match=r"is made for|take one radius"):
            check_phase(one, *given)
    monkeypatch.setattr(phases, "_ROUNDED", 0.99)
    with pytest.raises(RunFailed, match="is made for"):  # as no strategy plans one
        tiny(kind, problem, 0.5)


RUNS = {
    "clipping": (LocalizedClipping, {"phases": 2, "steps": 3}),
    "min_score": (LocalizedRobustSGD, {"radius": 4.0, "batch": 1000, "phases": 2, "learning_rate": 0.5}),
    "searched": (LocalizedRobustSGD, {"radius": 4.0, "phases": 2, "test": "above_threshold"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_models_inside_a_phase_are_used_but_not_released_and_each_user_takes_part_once(name):
    strategy, options = RUNS[name]
    method = make(strategy, Quadratic(2, 5.0, 2.0), 6007, 4.0, 1e-5, **options)
    released = []
    run(
        method,
        federation_of(np.full((6007, 2), 0.5)),
        evaluate_fn=lambda number, arrays: released.append(arrays["x"].numpy()) or None,
    )
    moved = [bool(np.any(before != after)) for before, after in pairwise(released)]
    assert moved == [step + 1 == part.steps for part in method.scheme.phases for step in range(part.steps)]
    cohorts = np.concatenate([requested(method, index).users for index in range(method.plan.rounds)])
    assert len(np.unique(cohorts)) == len(cohorts) == method.plan.rounds * method.plan.cohort
    assert method.program.own.ledger.most_participations == 1
    assert 0.99 * 4.0 < method.plan.guarantee.epsilon <= 4.0


@pytest.mark.parametrize("lost", range(STEPS))
def test_a_tested_phase_in_which_a_round_was_lost_asks_nobody_again_and_releases_nothing(lost):
    """The killed process may have failed the test there, or released the phase: once is what is paid for."""
    method = make(LocalizedRobustSGD, Quadratic(2, 5.0, 1.0), 500, 1e5, 1e-3, phases=2, **ROBUST)
    scheme, memory, x = method.scheme, method.memory, np.zeros(2)
    steps, answers = scheme.phases[0].steps, Gathered(np.zeros((ROBUST["batch"], 2)), 0, 0)
    assert steps > STEPS
    for index in range(lost):
        assert taken(method, index, x, answers).released is None
    step = taken(method, lost, x, replace(answers, skipped=True))
    assert step.released is None
    assert step.goes_back
    asked = [scheme.ask(index, memory) is not None for index in range(lost + 1, steps + 1)]
    assert asked == [False] * (steps - lost - 1) + [True]
