"""Known terms of scores: gradients, certificates with the largest term, and each sample alone."""

from dataclasses import replace

import numpy as np
import pytest
from problem_cases import CASES
from scipy.sparse import csr_array

from strategies.baselines.regressions import BiweightRegression, LpRegression
from userdp.arrays.sparse_rows import dense
from userdp.errors import BadInput
from userdp.nodes.influence import user_curvature
from userdp.nodes.moments import symmetric
from userdp.problems import Cloglog, GeneralisedLinear, OneHot, Poisson, Quadratic, Softmax, Squared

RANGE = (-0.5, 1.5)
NAMES = ["poisson_ridge", "cloglog", "logistic_ridge_intercept", "squared_intercept", "sparse_squared_ridge"]
NAMES += ["one_hot_poisson", "one_hot_cloglog", "sparse_cloglog"]
SIZES = [1, 3, 2, 5]


def made(name):
    """The problem with known terms, and a block with terms inside, at the ends and beyond."""
    case = CASES[f"{name}-d4"]
    problem, block = case.problem.with_terms(*RANGE), case.block(SIZES, 3)
    rng = np.random.default_rng(1)
    terms = rng.choice([*RANGE, -3.0, 4.0, 0.2, 0.7], block.samples).astype(np.float32)
    return case, problem, problem.bound(replace(block, terms=terms))[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_term_is_a_feature_of_known_effect(name):
    """The loss is the family's of the score and the term, less the middle where the model has a level of its own."""
    case, problem, block = made(name)
    x, middle = case.model(), 0.5 if isinstance(problem, OneHot) or getattr(problem, "intercept", False) else 0.0
    scores = case.problem._scores(x, block) + block.terms.astype(float) - middle
    expected = problem.family.losses(scores, block.targets) + 0.5 * problem.ridge * float(x @ x)
    np.testing.assert_allclose(problem.sample_losses(x, block), expected, rtol=1e-9)
    gradients = dense(problem.sample_gradients(x, block))
    for place in range(problem.dimension):
        step = 1e-6 * np.eye(problem.dimension)[place]
        ahead, behind = (problem.sample_losses(x + sign * step, block) for sign in (1, -1))
        np.testing.assert_allclose(gradients[:, place], (ahead - behind) / 2e-6, rtol=1e-4, atol=1e-6)
    means = np.add.reduceat(gradients, block.offsets[:-1]) / block.sizes[:, None]
    for rows in (
        problem.user_gradients(x, block),
        problem.rough_user_gradients(x, block),
        problem.user_gradients_at(np.tile(x, (block.users, 1)), block),
    ):
        np.testing.assert_allclose(dense(rows), means, rtol=1e-6, atol=1e-9)
    sums = dense(problem.sample_clipped_sums(x, block, 0.3))
    factors = 0.3 / np.maximum(np.linalg.norm(gradients, axis=1), 0.3)
    expected = np.add.reduceat(factors[:, None] * gradients, block.offsets[:-1])
    np.testing.assert_allclose(sums, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_no_sample_exceeds_the_certificate_at_any_corner_of_terms_and_models(name):
    case, problem, block = made(name)
    rng, radius, certificate = np.random.default_rng(0), case.problem.domain.radius, problem.certificate
    assert certificate.lipschitz > case.problem.certificate.lipschitz or name == "logistic_ridge_intercept"
    for end in RANGE:
        at = replace(block, terms=np.full(block.samples, end, np.float32))
        for y in (problem.family.low, problem.family.high):
            at = replace(at, targets=np.full(block.samples, y, np.float32))
            models = radius * rng.choice([-1.0, 1.0], (20, problem.dimension))
            found = [dense(problem.sample_gradients(x, at)) for x in models]
            assert np.abs(found).max() <= certificate.lipschitz * (1 + 1e-6)
            for one, other, x, z in zip(found, found[1:], models, models[1:], strict=False):
                moved = np.abs(one - other).max()
                assert moved <= certificate.smoothness * np.abs(x - z).max() * (1 + 1e-6) + 1e-9
            first = dense(problem.sample_gradients(problem.domain.centre, at))
            assert certificate.first_gradient is None or np.abs(first).max() <= certificate.first_gradient * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_clipped_and_samples_without_one_set_aside_each_alone(name):
    case, problem, _ = made(name)
    block = case.block(SIZES, 3)
    terms = np.linspace(-9, 9, block.samples).astype(np.float32)
    terms[2] = np.nan
    bounded, changed = problem.bound(replace(block, terms=terms))
    assert not bounded.usable[2]
    assert bounded.usable.sum() == block.samples - 1
    assert bounded.terms.min() >= RANGE[0]
    assert bounded.terms.max() <= RANGE[1]
    assert changed > 0
    assert problem.bound(bounded)[1] == 0
    for user in range(block.users):
        alone = problem.bound(replace(block, terms=terms).part(user, user + 1))[0]
        np.testing.assert_array_equal(alone.terms, bounded.part(user, user + 1).terms)
    _, kept = bounded.usable_part()
    x = case.model()
    rows = dense(problem.user_gradients(x, kept))
    for user in range(kept.users):
        own = dense(problem.user_gradients(x, kept.part(user, user + 1)))[0]
        np.testing.assert_allclose(rows[user], own, rtol=1e-6, atol=1e-9)


def test_curvatures_of_users_are_those_at_scores_with_terms():
    case, problem, block = made("poisson_ridge")
    x = case.model()
    features = block.features.astype(float)
    curved = np.exp(features @ x + block.terms)[:, None, None] * features[:, :, None] * features[:, None, :]
    expected = np.add.reduceat(curved, block.offsets[:-1]) / block.sizes[:, None, None]
    rows = user_curvature(problem, x, block, 1.0, np.eye(4), x)
    np.testing.assert_allclose([symmetric(row) for row in rows], expected, rtol=1e-6)


def test_losses_without_one_score_or_a_rate_or_with_other_certificates_refuse_terms():
    for problem in (
        Quadratic(2, 1.0, 1.0),
        Softmax(3, 2, 1.0, 1.0),
        BiweightRegression(2, 1.0, 1.0, low=-1, high=1),
        LpRegression(2, 1.0, 1.0, order=1.5, low=-1, high=1),
    ):
        with pytest.raises(BadInput, match=r"no one score to which data\.exposure or data\.offset can add"):
            problem.with_terms(*RANGE)
    for problem in (Squared(2, 1.0, 1.0, low=-1, high=1), Cloglog(2, 1.0, 1.0)):
        with pytest.raises(BadInput, match=rf"data\.exposure multiplies a rate, and problem\.kind = '{problem.name}'"):
            problem.with_terms(*RANGE, exposed=True)


def test_with_a_term_only_balanced_rates_start_from_a_mean_target():
    """A mean target says nothing of a level that known terms move, unless the level is balanced in the end."""
    assert Squared(2, 3.0, 1.0, low=-1, high=1, intercept=True).with_terms(*RANGE).mean_range is None
    assert Poisson(2, 3.0, 1.0, count_bound=5.0, intercept=True).with_terms(*RANGE).mean_range == (0, 5)


def test_a_block_without_terms_is_refused_by_a_loss_with_them():
    case, problem, _ = made("poisson_ridge")
    with pytest.raises(BadInput, match="samples have no known term of their score"):
        problem.bound(case.block(SIZES))


def test_blocks_carry_terms_through_every_selection():
    _, problem, block = made("sparse_cloglog")
    assert isinstance(block.features, csr_array)
    assert not isinstance(problem, GeneralisedLinear)
    both = block.followed_by(block)
    np.testing.assert_array_equal(both.terms, np.tile(block.terms, 2))
    np.testing.assert_array_equal(block.part(1, 3).terms, block.terms[1:6])
    kept = np.arange(block.samples) % 2 == 0
    np.testing.assert_array_equal(block.thinned(kept)[1].terms, block.terms[kept])
    with pytest.raises(BadInput, match=r"terms must be \(11,\)"):
        replace(block, terms=block.terms[1:])


def test_a_far_exposure_is_in_the_bounds_of_a_rate():
    plain = Poisson(2, 2.0, 1.0, count_bound=5.0, intercept=True)
    exposed = plain.with_terms(0.0, 4.0, exposed=True)
    assert exposed.certificate.smoothness == pytest.approx(np.exp(2) * plain.certificate.smoothness)
    assert exposed.first_slope == pytest.approx(max(np.exp(2), 5 - np.exp(-2)))
