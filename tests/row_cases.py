"""A question for every function of users' rows, by name, and small tables of users whom it can be asked of."""

import math

import numpy as np
from helpers import federation_of
from query_cases import QUANTILES, SUMS, people, query
from scipy.sparse import csr_array

from userdp.data import Block, ColumnarFederation
from userdp.problems import Logistic, SparseLogistic, Squared

USERS, RNG = 60, np.random.default_rng(5)
SIZES = RNG.integers(1, 5, USERS)
CELLS = (RNG.uniform(-1, 1, (SIZES.sum(), 2)) * RNG.choice([0.0, 1e-3, 1.0], SIZES.sum())[:, None]).astype(np.float32)
CLASSES = RNG.integers(0, 2, len(CELLS)).astype(np.float32)
NUMBERS = RNG.uniform(-1, 1, len(CELLS)).astype(np.float32)
EDGES, EYE, SCALES = np.array([0.05, 0.3, 1.0]), np.eye(2), {"scales": np.array([1.0, 0.5])}
ODDS, HALF = np.array([-0.3, 0.0, 0.3]), np.linspace(0.0, 1.0, 5)
SLOPE = {"directions": EYE, "weighing": np.array([0.4, -0.3]), "model": np.array([-2.0, 1.0])}
MODELS = {"models": np.array([[0.1, -0.2], [0.5, 0.4]])}

LOGISTIC, SQUARED, SPARSE = Logistic(2, 2.0, 5.0), Squared(2, 2.0, 5.0, low=-1.0, high=1.0), SparseLogistic(2, 2.0, 2)
SUMMED, CHOSEN = query(SUMS), query(QUANTILES)
QUESTIONS = {
    "user_gradient": (LOGISTIC, {}, {}),
    "rough_user_gradient": (LOGISTIC, {}, {}),
    "gradient_votes": (LOGISTIC, {}, {}),
    "sample_sum": (LOGISTIC, {}, {}),
    "clipped_sample_sum": (LOGISTIC, {"sample_clip_norm": 0.2}, {}),
    "local_update": (LOGISTIC, {"step_size": 0.5, "epochs": 2, "batch_size": 2, "key": 7}, {}),
    "column_scales": (LOGISTIC, {"low": 1e-3, "high": 1.0, "width": 2.0}, SCALES),
    "moment_size": (LOGISTIC, {"low": 1e-3, "high": 1.0}, SCALES),
    "second_moments": (LOGISTIC, {}, SCALES),
    "weighted_gradient": (LOGISTIC, {"size": 0.1}, SCALES | {"coordinates": EYE}),
    "mean_target": (SQUARED, {"low": -1.0, "high": 1.0}, {}),
    "class_shares": (LOGISTIC, {}, {"classes": np.array([0.0, 1.0])}),
    "column_moments": (SPARSE, {}, {}),
    "scaled_gradient": (SPARSE, {}, {"scales": np.array([1.0, 0.5, 0.2])}),
    "sum_of_columns": (SPARSE, {"slope": 1.0, "length": 2.0}, {}),
    "user_curvature": (LOGISTIC, {"size": 0.1}, {"directions": EYE, "weighing": SLOPE["weighing"]}),
    "weighted_slope": (SQUARED, {"size": 0.1}, SLOPE),
    "slope_sizes": (SQUARED, {"size": 0.1}, SLOPE | {"edges": EDGES}),
    "squared_influence": (SQUARED, {"size": 0.1}, SLOPE | {"influence": np.array([[1.0, -2.0], [0.0, 1.0]])}),
    "filled": (LOGISTIC, {}, {}),
    "improved": (LOGISTIC, {}, {"initial": np.zeros(2)}),
    "curvature_along": (LOGISTIC, {"most": 1.0}, {"direction": EYE[0]}),
    "weighed_gradient": (LOGISTIC, {"longest": 0.2, "reach": 1.0, "curvature": 0.2}, {}),
    "steepness": (LOGISTIC, {"reach": 1.0, "low": 0.1, "high": 2.0}, {}),
    "loss_sizes": (SQUARED, {}, {"edges": EDGES}),
    "loss_answer": (SQUARED, {"limit": 2.0}, {}),
    "score_shares": (LOGISTIC, {}, {"edges": ODDS}),
    "answers": (
        LOGISTIC,
        {"limit": 2.0, "width": 1.0, "weight": 0.5},
        {"asked": np.ones(3), "reference": np.zeros(2), "edges": ODDS, "below": np.stack([HALF, HALF**2])},
    ),
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
    numbers = np.random.default_rng(6)
    cell = [-1.0, 1.0, 0.0, math.nan, 0.3]
    return ColumnarFederation(
        people(
            [
                [(numbers.choice(cell), numbers.choice([-1.0, 0.0, 1.0]), numbers.integers(-1, 3)) for _ in range(size)]
                for size in SIZES.tolist()
            ]
        )
    )
