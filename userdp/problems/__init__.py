"""Learning problems: losses, domains, and certificates of their proven properties.

`TorchProblem` is imported on first use, so that other problems do not wait for torch.
"""

from typing import TYPE_CHECKING

from userdp.arrays.types import Vector
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
    "TorchProblem",
    "Vector",
]


def __getattr__(name: str) -> object:
    if name == "TorchProblem":
        from userdp.neural.problem import TorchProblem  # noqa: PLC0415

        return TorchProblem
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
