"""Learning problems: losses, domains, and certificates of their proven properties.

`TorchProblem` is imported on first use, so that other problems do not wait for torch.
"""

from typing import TYPE_CHECKING

from userdp.arrays.types import Vector
from userdp.lazy import lazily
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.generalised_linear import Cloglog, GeneralisedLinear, Logistic, Poisson, Squared
from userdp.problems.one_hot import OneHot, OneHotCloglog, OneHotLogistic, OneHotPoisson, OneHotSquared
from userdp.problems.separable import Bernoulli, Huber, Linear, Quadratic
from userdp.problems.softmax import Softmax
from userdp.problems.sparse_linear import SparseCloglog, SparseLinear, SparseLogistic, SparseSquared

if TYPE_CHECKING:
    from userdp.neural.problem import TorchProblem
    from userdp.problems.bounds import targets_of
    from userdp.problems.families import ResidualFamily, SquaredFamily
    from userdp.problems.linear_scores import Options
    from userdp.problems.segments import float64_parts, parts, user_averages, weighted_sums
    from userdp.problems.settings import GeneralisedLinearSettings, TargetRange

__all__ = [
    "Bernoulli",
    "Box",
    "Certificate",
    "Cloglog",
    "GeneralisedLinear",
    "GeneralisedLinearSettings",
    "Huber",
    "Linear",
    "Logistic",
    "OneHot",
    "OneHotCloglog",
    "OneHotLogistic",
    "OneHotPoisson",
    "OneHotSquared",
    "Options",
    "Poisson",
    "Problem",
    "Quadratic",
    "ResidualFamily",
    "Softmax",
    "SparseCloglog",
    "SparseLinear",
    "SparseLogistic",
    "SparseSquared",
    "Squared",
    "SquaredFamily",
    "TargetRange",
    "TorchProblem",
    "Vector",
    "float64_parts",
    "parts",
    "targets_of",
    "user_averages",
    "weighted_sums",
]

__getattr__, __dir__ = lazily(__name__)
