"""A user's training on its own data between two messages: some steps of an optimiser, on all of it or on minibatches.

Privacy does not rest on it: a user's update is clipped as a whole afterwards. Users train side
by side, each for the steps that its own samples require; the arithmetic is the same for arrays and for tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.fixed_order import order_is_fixed
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import InCoordinates
from userdp.sampling.coins import uniforms

Models = TypeVar("Models", bound=Any)
"""(U, p) models: an array, or a tensor."""

OPTIMISERS = ("sgd", "momentum", "adam")
SCHEDULES = ("constant", "linear", "cosine")
Optimiser = Literal["sgd", "momentum", "adam"]
Schedule = Literal["constant", "linear", "cosine"]


_WHOLE = (lambda value: 0 <= value < 2**53 and value == math.floor(value), "be a whole number, zero or more")
_POSITIVE = (lambda value: 0 < value < math.inf, "be positive and finite")
_NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "be finite, zero or more")
_MEMORY = (lambda value: 0 <= value < 1, "lie in [0, 1)")
_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(("steps", "epochs", "batch_size", "optimiser", "schedule", "key"), _WHOLE),
    **dict.fromkeys(("step_size", "adaptivity"), _POSITIVE),
    **dict.fromkeys(("weight_decay", "proximal"), _NOT_NEGATIVE),
    **dict.fromkeys(("momentum", "second_moment"), _MEMORY),
}


@dataclass(frozen=True)
class LocalTraining:
    """The parameters of a user's training: numbers, as a message requires. Raises `BadInput` if one is out of range."""

    step_size: float
    """Initial step size of the optimiser."""
    steps: float = 0.0
    """Number of steps; 0 to derive it from ``epochs``."""
    epochs: float = 1.0
    """Passes of a user through its samples, if ``steps`` is 0."""
    batch_size: float = 0.0
    """Samples of a step; 0 for all of a user's samples."""
    optimiser: float = 0.0
    """Place in `OPTIMISERS`: gradient steps, steps with momentum (Polyak 1964), or Adam (Kingma, Ba 2015)."""
    momentum: float = 0.9
    """Memory of past gradients, for momentum and (first moment) Adam."""
    second_moment: float = 0.999
    """Memory of past squared gradients, for Adam."""
    adaptivity: float = 1e-8
    """Added to Adam's root of squared gradients."""
    weight_decay: float = 0.0
    """The step size times this is subtracted from each parameter at every step (Loshchilov, Hutter 2019)."""
    proximal: float = 0.0
    """Strength mu of ``(mu / 2) ||x - x_0||^2``, which keeps a user near its initial model (Li et al. 2020)."""
    schedule: float = 0.0
    """Place in `SCHEDULES`: the step size over a user's own steps, constant or down to zero."""
    key: float = 0.0
    """Key of the order of samples, below 2^53; every round has its own."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, (fits, rule) = getattr(self, field.name), _RULES[field.name]
            if not fits(value):
                raise BadInput(f"local training with {field.name} = {value}: must {rule}")
        if self.optimiser >= len(OPTIMISERS) or self.schedule >= len(SCHEDULES):
            raise BadInput(f"local training knows {OPTIMISERS} and {SCHEDULES}, by their places")
        if not self.steps and not self.epochs:
            raise BadInput("local training needs steps or epochs")

    @classmethod
    def of(cls, optimiser: Optimiser, schedule: Schedule, **numbers: float) -> Self:
        """Return parameters with optimiser and schedule by their names."""
        return cls(optimiser=OPTIMISERS.index(optimiser), schedule=SCHEDULES.index(schedule), **numbers)

    def parameters(self) -> dict[str, float]:
        """Return the parameters in a message: those that differ from the defaults, the step size, and the steps."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in said.items() if value != usual[name] or name == "steps"}

    def steps_of(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the (U,) steps of users with so many samples."""
        if self.steps:
            return np.full(len(sizes), int(self.steps))
        batches = -(-sizes // int(self.batch_size)) if self.batch_size else np.ones(len(sizes), dtype=np.int64)
        return np.asarray(int(self.epochs) * batches)

    def rates(self, step: int, steps: NDArray[np.int64]) -> Array:
        """Return the (U,) step sizes of users with so many steps; zero for users that have finished."""
        share = np.minimum(step / steps, 1.0)
        falling = (np.ones(len(steps)), 1.0 - share, 0.5 * (1.0 + np.cos(np.pi * share)))[int(self.schedule)]
        return np.where(step < steps, self.step_size * falling, 0.0)

    def batch(self, step: int, sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array]:
        """Return (U, b) positions among each user's own samples, and weights; zero beyond a user's samples.

        Every epoch goes through all samples of a user in an order that follows from the key, the epoch and a sample's
        position alone, so other users in the block do not matter.
        """
        most = int(sizes.max())
        if not self.batch_size:
            places = np.arange(most)
            weights = (places < sizes[:, None]) / sizes[:, None]
            return np.minimum(places, sizes[:, None] - 1), weights
        width, batches = min(int(self.batch_size), most), -(-sizes // int(self.batch_size))
        epochs, turns = np.divmod(step, batches)
        counters = np.add.outer(epochs.astype(np.uint64) << np.uint64(32), np.arange(most, dtype=np.uint64))
        keys = np.full(counters.size, int(self.key), dtype=np.uint64)
        marks = uniforms(keys, counters.ravel()).reshape(counters.shape)
        order = np.argsort(np.where(np.arange(most) < sizes[:, None], marks, 2.0), axis=1, kind="stable")
        places = turns[:, None] * width + np.arange(width)
        there = places < sizes[:, None]
        drawn = np.take_along_axis(order, np.minimum(places, sizes[:, None] - 1), axis=1)
        return drawn, there / there.sum(axis=1, keepdims=True)


@runtime_checkable
class TrainsLocally(Protocol):
    """A problem with a faster way to train many users than one gradient at a time."""

    def local_updates(self, x: Vector, block: Block, training: LocalTraining) -> Rows:
        """Return the (U, p) changes of each user's model."""


Gradients = Callable[[Models, NDArray[np.int64], Array], Models]
"""The map from (U, p) models, (U, b) positions among each user's samples and their weights to (U, p) gradients."""


def trained(
    start: Models,
    sizes: NDArray[np.int64],
    training: LocalTraining,
    gradients: Gradients[Models],
    project: Callable[[Models], Models] = lambda models: models,
) -> Models:
    """Return (U, p) models trained from ``start`` on ``sizes`` (U,) samples, mapped by ``project`` after every step."""
    steps, models = training.steps_of(sizes), start
    first: Any = 0.0
    second: Any = 0.0
    memory = training.momentum
    for step in range(int(steps.max())):
        found = gradients(models, *training.batch(step, sizes))
        if training.proximal:
            found = found + training.proximal * (models - start)
        if training.optimiser == 1:
            first = memory * first + found
            found = first
        elif training.optimiser == 2:
            first = memory * first + (1 - memory) * found
            second = training.second_moment * second + (1 - training.second_moment) * found**2
            root = (second / (1 - training.second_moment ** (step + 1))) ** 0.5
            found = first / (1 - memory ** (step + 1)) / (root + training.adaptivity)
        if training.weight_decay:
            found = found + training.weight_decay * models
        following = project(models - _like(models, training.rates(step, steps)) * found)
        done = np.flatnonzero(steps <= step)
        if len(done):  # 0 times an infinite gradient would reveal how long others train
            following[done] = models[done]
        models = following
    return models


def _like(models: Any, rates: Array) -> Any:
    """Return (U, 1) rates in the type of the models; one number if all are the same."""
    if (rates == rates[0]).all():
        return float(rates[0])
    return rates[:, None] if isinstance(models, np.ndarray) else models.new_tensor(rates)[:, None]


def local_update(problem: Problem, x: Vector, block: Block, **parameters: float) -> Rows:
    """Compute the (U, p) changes of each user's model in its own projected training from x."""
    training = LocalTraining(**parameters)
    if isinstance(problem, TrainsLocally):
        return problem.local_updates(x, block, training)
    if order_is_fixed() and block.users > 1 and isinstance(problem, InCoordinates):
        # A model outside the box comes back by equations that LAPACK solves for all users together.
        users = (block.part(user, user + 1) for user in range(block.users))
        return np.concatenate([local_update(problem, x, user, **parameters) for user in users])
    start = np.broadcast_to(x, (block.users, len(x)))

    def gradients(models: Array, own: NDArray[np.int64], weights: Array) -> Array:
        part = _drawn(block, own, weights) if training.batch_size else block
        if models is start:
            return dense(problem.user_gradients(x, part))
        return dense(problem.user_gradients_at(models, part))

    with np.errstate(over="ignore", invalid="ignore"):  # a user whose model diverges counts as not finite
        return np.asarray(trained(start, block.sizes, training, gradients, problem.domain.project) - x)


def _drawn(block: Block, own: NDArray[np.int64], weights: Array) -> Block:
    """Return the block of the samples of a step, a user's in the order in which they were drawn."""
    there = weights > 0
    rows = (block.offsets[:-1, None] + own)[there]
    return block.gathered(rows, np.concatenate([[0], np.cumsum(there.sum(axis=1))]))
