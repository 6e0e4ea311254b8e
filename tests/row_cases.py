"""A question for every function of users' rows, by name, and small tables of users whom it can be asked of."""

import math

import numpy as np
from helpers import federation_of
from query_cases import QUANTILES, SUMS, people, query
from scipy.sparse import csr_array

from userdp.data import Block, ColumnarFederation
from userdp.problems import Logistic, Softmax, SparseLogistic, Squared
from userdp.problems.by_period import ByPeriod
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.linear_scores import LinearScores
from userdp.problems.one_hot import OneHot
from userdp.problems.shares import SharesProblem
from userdp.problems.sparse_linear import SparseLinear

USERS, RNG = 60, np.random.default_rng(5)
SIZES = RNG.integers(1, 5, USERS)
CELLS = (RNG.uniform(-1, 1, (SIZES.sum(), 2)) * RNG.choice([0.0, 1e-3, 1.0], SIZES.sum())[:, None]).astype(np.float32)
CLASSES = RNG.integers(0, 2, len(CELLS)).astype(np.float32)
NUMBERS = RNG.uniform(-1, 1, len(CELLS)).astype(np.float32)
EDGES, ODDS, HALF = np.array([0.05, 0.3, 1.0]), np.array([-0.3, 0.0, 0.3]), np.linspace(0.0, 1.0, 5)
MODELS = {"models": np.array([[0.1, -0.2], [0.5, 0.4]])}

LOGISTIC, SQUARED, SPARSE = Logistic(2, 2.0, 5.0), Squared(2, 2.0, 5.0, low=-1.0, high=1.0), SparseLogistic(2, 2.0, 2)
SUMMED, CHOSEN = query(SUMS), query(QUANTILES)


def questions(problem, rng):
    """Every function of rows of a fixed order that the problem answers, with its parameters and arrays."""
    dimension = problem.dimension
    if isinstance(problem, SharesProblem):
        return {"user_ranks": ({}, {"bins": np.array([3])})} if problem is CHOSEN else {"user_shares": ({}, {})}
    asked = {
        **dict.fromkeys(("user_gradient", "rough_user_gradient", "gradient_votes", "sample_sum"), ({}, {})),
        "clipped_sample_sum": ({"sample_clip_norm": 0.3}, {}),
        "filled": ({}, {}),
        "local_update": ({"step_size": 0.02, "epochs": 2, "batch_size": 8, "key": 7}, {}),
        "update_octaves": ({"step_size": 0.02, "epochs": 2, "batch_size": 8, "key": 7}, {}),
        "loss_sizes": ({}, {"edges": EDGES}),
        "loss_answer": ({"limit": 2.0}, {}),
        "improved": ({}, {"initial": np.full(dimension, 0.01)}),
        "curvature_along": ({"most": 2.0}, {"direction": np.full(dimension, 1 / math.sqrt(dimension))}),
    }
    tables = {"tables": np.array([[0.0, dimension, 1.0]])}
    asked["row_weights"] = ({}, tables)
    asked["kept_gradient"] = ({}, tables | {"rows": np.array([dimension - 1.0])})
    asked["gradient_and_weights"] = ({"clip": 0.1, "weight": 0.1}, tables)
    if problem.has_targets and not isinstance(problem, Softmax):
        asked["mean_target"] = ({"low": -1.0, "high": 1.0}, {})
    followed = isinstance(problem, ByPeriod) and problem.periods is not None
    if followed:
        asked["events_and_time"] = ({}, {})
    if problem.name in ("logistic", "softmax", "sparse_logistic"):
        asked["class_shares"] = ({}, {"classes": np.array([0.0, 1.0])})
    if problem.name == "logistic":
        asked["score_shares"] = ({}, {"edges": ODDS})
        arrays = {"asked": np.ones(3), "reference": np.zeros(dimension), "edges": ODDS}
        asked["answers"] = (
            {"limit": 2.0, "width": 1.0, "weight": 0.5},
            arrays | {"below": np.stack([HALF, HALF**2])},
        )
    if problem.bends_boundedly:
        asked["weighed_gradient"] = ({"longest": 0.2, "reach": 1.0, "curvature": 0.2}, {})
        asked["steepness"] = ({"reach": 1.0, "low": 0.1, "high": 1e3}, {})
    if isinstance(problem, SparseLinear | OneHot):
        asked["column_moments"] = ({}, {})
        asked["scaled_gradient"] = ({}, {"scales": rng.uniform(0.5, 2.0, dimension + 1)})
        asked["sum_of_columns"] = ({"slope": 1.0, "length": 1.0}, {})
    if isinstance(problem, LinearScores):
        scales, matrix = rng.uniform(0.5, 2.0, problem.width), rng.normal(size=(problem.width, problem.width))
        ends = {"low": 1e-3, "high": 10.0}
        asked["column_scales"] = (ends | {"width": 0.2}, {"scales": scales})
        asked["moment_size"] = (ends, {"scales": scales})
        asked["second_moments"] = ({}, {"scales": scales})
        asked["weighted_gradient"] = ({"size": 0.2}, {"scales": scales, "coordinates": matrix})
    curved = isinstance(problem, GeneralisedLinear) and problem.family.curvatures(np.zeros(1)) is not None
    if curved and not problem.intercept:
        sizes = {"size": 0.1} | ({"curvature": 0.5} if followed else {})
        directions = rng.normal(size=(dimension, 2))
        weighing = {"directions": directions, "weighing": rng.normal(size=dimension)}
        slope = weighing | {"model": rng.normal(size=dimension)}
        asked["user_curvature"] = (sizes, weighing)
        asked["weighted_slope"] = (sizes, slope)
        asked["slope_sizes"] = (sizes, slope | {"edges": EDGES})
        asked["squared_influence"] = (sizes, slope | {"influence": rng.normal(size=(3, 2))})
    return asked


OF_SQUARED = {"mean_target", "weighted_slope", "slope_sizes", "squared_influence", "loss_sizes", "loss_answer"}
QUESTIONS = {
    **{name: (SPARSE, *one) for name, one in questions(SPARSE, RNG).items()},
    **{name: (LOGISTIC, *one) for name, one in questions(LOGISTIC, RNG).items()},
    **{name: (SQUARED, *one) for name, one in questions(SQUARED, RNG).items() if name in OF_SQUARED},
    "local_update": (LOGISTIC, {"step_size": 0.5, "epochs": 2, "batch_size": 2, "key": 7}, {}),
    "update_octaves": (LOGISTIC, {"step_size": 0.5, "epochs": 2, "batch_size": 2, "key": 7}, {}),
    "events_and_time": (LOGISTIC.by_period(0, 1), {}, {}),
    "user_shares": (SUMMED, {}, {}),
    "user_ranks": (CHOSEN, {}, {"bins": np.array([3])}),
    "loss_changes": (LOGISTIC, {}, MODELS | {"reach": np.array([0.1, 0.2])}),
    "model_gradients": (LOGISTIC, {"norm": 0.2}, MODELS),
    "truncated_sample_sum": (LOGISTIC, {"scale": 1.0, "inverse_variance": 4.0}, {}),
    "truncated_user_gradient": (LOGISTIC, {"scale": 1.0, "inverse_variance": 4.0}, {}),
    "truncated_regression_gradient": (SQUARED, {"threshold": 0.5}, {}),
    "truncated_regression_sum": (SQUARED, {"threshold": 0.5}, {}),
    "truncated_data_gradient": (LOGISTIC, {"level": 0.5, "bound": 0.1}, {}),
    "truncated_data_sum": (LOGISTIC, {"level": 0.5, "bound": 0.1}, {}),
}
"""Function -> problem, parameters and arrays of a question for which its users differ."""
QUERIED = {"user_shares", "user_ranks"}


def asked_of(name):
    """The users of whom the function's question can be asked."""
    problem = QUESTIONS[name][0]
    if name in QUERIED:
        return voters()
    if problem is SPARSE:
        return ColumnarFederation(Block(csr_array(np.abs(CELLS)), np.concatenate([[0], np.cumsum(SIZES)]), CLASSES))
    return federation_of(CELLS, SIZES, NUMBERS if problem is SQUARED else CLASSES)


def voters():
    return ColumnarFederation(answering(SIZES.tolist(), 6))


def answering(sizes, seed):
    """Samples of users of these sizes, of whom queries can be asked."""
    numbers, cell = np.random.default_rng(seed), [-1.0, 1.0, 0.0, math.nan, 0.3]
    return people(
        [
            [(numbers.choice(cell), numbers.choice([-1.0, 0.0, 1.0]), numbers.integers(-1, 3)) for _ in range(size)]
            for size in sizes
        ]
    )
