"""Learning problems: losses, domains, and certificates of their proven properties.

`TorchProblem` is imported on first use, so that other problems do not wait for torch.
"""

from typing import TYPE_CHECKING

from userdp.arrays.types import Vector
from userdp.lazy import lazily
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.linear import Linear
from userdp.problems.one_hot import OneHot, OneHotLogistic, OneHotPoisson, OneHotSquared
from userdp.problems.regressions import BiweightRegression, HuberRegression, Logistic, LpRegression, Poisson, Squared
from userdp.problems.separable import Bernoulli, Huber, Quadratic
from userdp.problems.softmax import Softmax
from userdp.problems.sparse_linear import SparseLinear, SparseLogistic, SparseSquared

if TYPE_CHECKING:
    from userdp.neural.problem import TorchProblem
    from userdp.problems.families import SquaredFamily

__all__ = [
    "Bernoulli",
    "BiweightRegression",
    "Box",
    "Certificate",
    "GeneralisedLinear",
    "Huber",
    "HuberRegression",
    "Linear",
    "Logistic",
    "LpRegression",
    "OneHot",
    "OneHotLogistic",
    "OneHotPoisson",
    "OneHotSquared",
    "Poisson",
    "Problem",
    "Quadratic",
    "Softmax",
    "SparseLinear",
    "SparseLogistic",
    "SparseSquared",
    "Squared",
    "SquaredFamily",
    "TorchProblem",
    "Vector",
]

__getattr__, __dir__ = lazily(__name__)
