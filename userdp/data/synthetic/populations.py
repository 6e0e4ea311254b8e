"""The base of populations, which turn raw noise into samples.

They work on a whole block, elementwise, so that a user's samples do not depend on the block's other users. A population
declares its noise (`Source`), and `SyntheticFederation` draws it.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from scipy.special import ndtri

from userdp.arrays.types import Vector
from userdp.data.block import Features
from userdp.data.federation import RegressionModel
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.settings import Section, shown

Noise = NDArray[np.float32]
Samples = tuple[Features, NDArray[np.float32] | None]
RawLaw: TypeAlias = Literal["normal", "uniform", "exponential", "gamma"]


@dataclass(frozen=True)
class Source:
    """Raw noise: ``width`` independent numbers for each user or each sample; ``shape`` is that of the gamma law."""

    per: Literal["user", "sample"]
    law: RawLaw
    width: int
    shape: float = 1.0


def vector_of(name: str, values: float | Sequence[float], dimension: int) -> Vector:
    """Return a scalar repeated, or a list checked, as (dimension,) finite numbers."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(dimension, array)
    if array.shape != (dimension,) or not np.isfinite(array).all():
        raise BadInput(f"{name} must be one finite number or a list of {dimension}, got shape {array.shape}")
    return array


def add_per_user(rows: Noise, values: NDArray[np.floating], sizes: NDArray[np.int64]) -> None:
    """Add each user's row of ``values`` (U, d) to all its samples in ``rows`` (N, d), in place."""
    values = values.astype(np.float32)
    if np.all(sizes == sizes[0]):
        rows.reshape(len(sizes), -1, rows.shape[1])[...] += values[:, None, :]
    else:
        rows += np.repeat(values, sizes, axis=0)


def student_t_in_place(normals: Noise, gammas: Noise, shape: float) -> Noise:
    """Turn normals (N, d) and gamma(shape / 2) noise (N, d) or (N, 1), zero at times in float32, into Student's t."""
    normals /= np.sqrt(np.maximum(gammas, np.float32(1e-14)) * np.float32(2 / shape))
    return normals


class Population(Section):
    """The law of users and their samples, with settings as fields; `BadInput` for one out of range."""

    name: ClassVar[str]
    summary: ClassVar[str]
    truth_is: ClassVar[Literal["mean", "parameter"]]
    heterogeneity: float = Field(0.0, ge=0)
    """Standard deviation, per coordinate, of a user's own mean (or parameter) around the truth."""
    outliers: float = Field(0.0, ge=0, lt=1)
    """Fraction of users (an independent coin for each) whose mean or parameter is shifted."""
    outlier_shift: float = 0.0
    """Added to each coordinate of an outlier's mean or parameter."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if isinstance(own := first.get("ctx", {}).get("error"), BadInput):
                raise own from None
            value = "" if first["type"] == "missing" else f" = {shown(first['input'])}"
            told = first["msg"].replace("Input should", "must")
            raise BadInput(f"{first['loc'][0]}{value}: {told}") from None

    @property
    @abstractmethod
    def columns(self) -> int:
        """The number k of feature columns of a sample."""

    @property
    @abstractmethod
    def sample_bytes(self) -> int:
        """The bytes of one sample, features and target."""

    @property
    def sample_shape(self) -> Shape:
        """The declarations about a sample."""
        return Shape(self.columns, has_target=False)

    @property
    @abstractmethod
    def sources(self) -> tuple[Source, ...]:
        """The noise that `samples` takes, in this order; the first is normal, per user, its last column the coin."""

    @abstractmethod
    def truth(self, rng: np.random.Generator) -> Vector:
        """Return the mean or parameter of the population without its outliers, given or drawn."""

    def regression(self, truth: Vector) -> RegressionModel | None:
        """Return how a regression makes samples; None if the best model does not follow from it."""
        return None

    @abstractmethod
    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return (N, k) features and (N,) targets (or None) of users with ``sizes`` samples; ``noise`` may change."""

    def own_truth(self, truth: Vector, user_noise: Noise) -> Vector:
        """Return each user's own mean or parameter, (U, d)."""
        if self.heterogeneity == 0 and self.outliers == 0:
            return np.broadcast_to(truth, (len(user_noise), len(truth)))
        own = truth + self.heterogeneity * user_noise[:, :-1].astype(np.float64)
        own[self.outlying(user_noise)] += self.outlier_shift
        return own

    def outlying(self, user_noise: Noise) -> NDArray[np.bool_]:
        """Return which users (U,) are outliers, by the coin in the last column of the user noise."""
        coins: NDArray[np.bool_] = user_noise[:, -1] < ndtri(self.outliers)
        return coins


class VectorPopulation(Population):
    """A population whose samples have d coordinates, and a float32 target if it has a parameter."""

    dimension: int = Field(ge=1)
    """d, coordinates (features) of a sample."""

    @property
    def columns(self) -> int:
        return self.dimension

    @property
    def sample_bytes(self) -> int:
        return 4 * (self.dimension + (self.truth_is == "parameter"))
