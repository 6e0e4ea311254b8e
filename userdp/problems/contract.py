"""The contract of losses: gradients are those of the loss, user by user, and no sample breaks the certificate."""

import pickle
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Shape
from userdp.errors import insist
from userdp.problems.base import Problem
from userdp.problems.segments import mean_block
from userdp.problems.settings import ProblemSettings

SHAPE = Shape(3, has_target=True, bound=1.0, feature_norm=3.0, target_range=(-1.0, 1.0))
SIZES = (1, 3, 2) * 20
MODELS = 12
_FAR = 10.0  # of models whose domain is the whole space
_STEP = 1e-5
_ROUNDING = 1e-6


def check_loss(kind: type[ProblemSettings], /, *, shape: Shape = SHAPE, **settings: Any) -> None:
    """Check a loss by its settings, for samples of numbers with this shape.

    Raises:
        ContractBroken: the first check that fails, in a sentence that names the class and the remedy.
        BadInput: the settings do not suit the class or the shape.
    """
    problem = kind.model_validate({"kind": kind.__name__, **settings}).build(shape, 0)
    for name in ("family", "certificate", "summary"):
        insist(problem, bool(getattr(kind, name, "")), f"has settings without {name}: describe it in a sentence")
    rng = np.random.default_rng(0)
    raw = _samples(rng, shape)
    block = check_bounds(problem, raw)
    reach = min(problem.domain.radius, _FAR)
    models = problem.domain.centre + reach * rng.uniform(-1, 1, (MODELS, problem.dimension))
    models[: MODELS // 3] = problem.domain.centre + reach * rng.choice([-1.0, 1.0], (MODELS // 3, problem.dimension))
    check_gradients(problem, block, models)
    check_certificate(problem, block, models)
    copy = pickle.loads(pickle.dumps(problem))
    same = np.array_equal(dense(copy.user_gradients(models[0], block)), dense(problem.user_gradients(models[0], block)))
    insist(problem, same, "computes other gradients after pickle: other processes get it that way")


def check_bounds(problem: Problem, raw: Block) -> Block:
    """Check that each sample is clipped by itself, whatever its cells; return the samples that count, within bounds."""
    block, _ = problem.bound(raw)
    again, changed = problem.bound(block)
    same = np.array_equal(again.dense_features, block.dense_features)
    insist(problem, same and changed == 0, "bounds samples a second time: `bound` must leave those within it alone")
    for user in (0, block.users // 2):
        alone, _ = problem.bound(raw.part(user, user + 1))
        same = np.array_equal(alone.dense_features, block.part(user, user + 1).dense_features)
        insist(problem, same, "bounds a sample by others: let `bound` be a function of each sample alone")
    bad = raw.dense_features.copy()
    bad[:, 0] = np.resize([np.nan, np.inf, -np.inf, 1e30], len(bad))
    odd, _ = problem.bound(Block(bad, raw.offsets, raw.targets))
    _, kept = odd.usable_part()
    if kept is not None:
        finite = bool(np.isfinite(dense(problem.user_gradients(problem.initial(), kept))).all())
        insist(problem, finite, "computes no finite gradient of a cell that is: set the sample aside in `bound`")
    _, usable = block.usable_part()
    return block if usable is None else usable


def check_gradients(problem: Problem, block: Block, models: Rows) -> None:
    """Check gradients against differences of losses, and users' against the averages of their samples'."""
    rng = np.random.default_rng(1)
    for model in models:
        x = problem.domain.centre + 0.9 * (model - problem.domain.centre)
        gradients = dense(problem.sample_gradients(x, block))
        along = rng.normal(size=problem.dimension)
        along /= np.linalg.norm(along)
        ahead, behind = (problem.sample_losses(x + sign * _STEP * along, block) for sign in (1, -1))
        slopes = (ahead - behind) / (2 * _STEP)
        off = np.abs(gradients @ along - slopes) > 1e-3 * (1 + np.abs(slopes))
        insist(
            problem,
            float(off.mean()) < 0.1,  # a kink may lie in between
            "has sample_gradients that are not the slopes of sample_losses: correct one of them",
        )
        users = dense(problem.user_gradients(x, block))
        averages = np.add.reduceat(gradients, block.offsets[:-1]) / block.sizes[:, None]
        insist(
            problem,
            np.allclose(users, averages, rtol=1e-4, atol=1e-5 * (1 + np.abs(averages).max())),
            "has user_gradients that are no averages of sample_gradients: weigh a user's samples alike",
        )
        if problem.mean_sufficient:
            same = np.array_equal(dense(problem.user_gradients(x, mean_block(block))), users)
            insist(problem, same, "is mean_sufficient, and its gradients read more than users' means: leave it out")
        for user in (0, block.users - 1):
            alone = dense(problem.user_gradients(x, block.part(user, user + 1)))[0]
            near = np.allclose(alone, users[user], rtol=1e-5, atol=1e-6)
            insist(problem, near, "has a user's gradient that changes with other users: compute each alone")


def check_certificate(problem: Problem, block: Block, models: Rows) -> None:
    """Check that no sample exceeds a constant of the certificate, on which promises of some strategies rest."""
    certificate = problem.certificate
    gradients = [dense(problem.sample_gradients(x, block)) for x in models]
    found = np.concatenate(gradients)
    _at_most(problem, "lipschitz", np.abs(found).max(), certificate.lipschitz)
    _at_most(problem, "gradient_norm", np.linalg.norm(found, axis=1).max(), certificate.gradient_norm)
    _at_most(problem, "sparsity", np.count_nonzero(found, axis=1).max(), certificate.sparsity)
    first = dense(problem.sample_gradients(problem.domain.centre, block))
    _at_most(problem, "first_gradient", np.abs(first).max(), certificate.first_gradient)
    for one, other in combinations(range(len(models)), 2):
        by = models[one] - models[other]
        if by.any():
            _check_pair(problem, gradients[one] - gradients[other], by)


def _check_pair(problem: Problem, moved: NDArray[np.float64], by: Vector) -> None:
    certificate, apart = problem.certificate, float(np.abs(by).max())
    if certificate.smoothness is not None:
        _at_most(problem, "smoothness", np.abs(moved).max() / apart, certificate.smoothness)
    if certificate.convex:
        least = certificate.strong_convexity * float(by @ by)
        rising = bool((moved @ by >= least - _ROUNDING * (1 + np.abs(moved).max() * apart)).all())
        insist(problem, rising, "is certified as convex, or strongly so, and gradients do not rise along a line")
    if certificate.convex and certificate.smoothness and certificate.diagonally_dominant:
        after = np.abs(by - moved / certificate.smoothness).max(axis=1)
        insist(
            problem,
            bool((after <= apart * (1 + _ROUNDING)).all()),
            "is certified as diagonally dominant, and a gradient step moves two models apart: certify what is proven",
        )


def _at_most(problem: Problem, name: str, value: float, certified: float | None) -> None:
    within = certified is None or value <= certified * (1 + _ROUNDING) + _ROUNDING
    insist(problem, within, f"certifies {name} = {certified}, and {value:.6g} occurs: certify what is proven")


def _samples(rng: np.random.Generator, shape: Shape) -> Block:
    """Return samples inside of the declared bounds, at their corners and beyond them."""
    samples = sum(SIZES)
    features = rng.choice([-1.0, -0.5, 0.0, 1.0, 3.0], (samples, shape.columns)).astype(np.float32)
    features[::2] = rng.uniform(-1, 1, features[::2].shape)
    targets = rng.integers(0, shape.classes or 2, samples).astype(np.float32)
    if shape.classes is None and shape.target_range is not None:
        low, high = np.clip(shape.target_range, -_FAR, _FAR).tolist()
        targets[::3] = rng.uniform(low, high, len(targets[::3]))
    return Block(features, np.concatenate([[0], np.cumsum(SIZES)]), targets if shape.has_target else None)
