"""The public initial model: read from a file, and refused if it does not fit the problem."""

from pathlib import Path
from typing import Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np

from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.base import Problem


@runtime_checkable
class ReadsStates(Protocol):
    """A problem whose models may also lie in other files than ``model.npz``."""

    def state_model(self, path: Path, told: str) -> Vector:
        """Return the (p,) model in that file; raise `BadInput`, beginning with ``told``, if it does not fit."""


def public_model(problem: Problem, path: Path) -> Vector:
    """Return the (p,) model in a file (``model.npz``, or one that the problem reads); `BadInput` if it does not fit."""
    subject = f"problem.initial_model = {str(path)!r}"
    if not path.is_file():
        raise BadInput(f"{subject}: there is no such file; give the model.npz of a run, or correct the path")
    if path.suffix != ".npz" and isinstance(problem, ReadsStates):
        model = problem.state_model(path, subject)
    else:
        model = _stored(path, subject)
    if model.shape != (problem.dimension,):
        raise BadInput(
            f"{subject} holds a model of shape {model.shape}, but this problem needs ({problem.dimension},): give a "
            "model of the same problem on data of the same columns"
        )
    if not np.isfinite(model).all():
        raise BadInput(f"{subject} holds numbers that are not finite: give a model whose training did not overflow")
    if not np.array_equal(problem.domain.project(model), model):
        raise BadInput(
            f"{subject} lies outside the domain, |x_j| <= {problem.domain.radius:g}: raise problem.radius to the "
            "radius of its run"
        )
    return model


def _stored(path: Path, subject: str) -> Vector:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays["x"], dtype=np.float64)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, EOFError, BadZipFile) as error:
        raise BadInput(
            f"{subject} holds no model ({type(error).__name__}): give the model.npz of a run; a torch module also "
            "starts from a state_dict, in a file of another name"
        ) from None
