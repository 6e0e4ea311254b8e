"""Rows of many users: a model computes them, a tuner says which users share a call.

Users are put together by rising size, and one with fewer samples is padded to the largest with weights of zero. A
piece never holds more samples than `memory` allows, as measured on the module; a user with more is computed in pieces.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.neural.devices import seconds
from userdp.neural.held import Held
from userdp.neural.model import DrewForTheFirstTime, Model
from userdp.neural.tuner import Choice, Execution, Tuner
from userdp.nodes.local_training import LocalTraining, trained
from userdp.problems.devices import Device

Computed = TypeVar("Computed")


class Engine:
    """A model and the tuner of its calls.

    Args:
        model: what is computed.
        execution: one user after the other, several at once, or whichever is faster.
        typical: samples of a user on which ways are measured.
        memory: mebibytes that gradients of a piece may take, what the module keeps for the way back included.

    Attributes:
        model: as given.
        tuner: of its calls.

    Raises:
        BadInput: several users are to be computed at once, and cannot.
    """

    def __init__(self, model: Model, execution: Execution = "auto", typical: int = 32, memory: int = 256) -> None:
        self.model = model
        sample_bytes = model.bytes_of_a_sample()
        if execution == "grouped":
            model.check_together()
        self.tuner = Tuner(
            execution,
            own_layers=model.kernels == "own",
            together=not model.habits.apart,
            typical=typical,
            memory=memory,
            sample_bytes=sample_bytes,
            model_bytes=model.bytes_of_a_model(),
        )

    # How it is computed -----------------------------------------------------------------------------------------------

    def use_device(self, device: Device) -> None:
        """Compute there from now on."""
        self.model.use_device(device)
        self.tuner = self.tuner.unsettled()

    def __getstate__(self) -> dict[str, Any]:
        """Without the choice, where other processes may have other devices.

        On processors it is made first, so that copies in other processes compute alike, however many there are.
        """
        if self.model.asked_device == "cpu":
            self.settle()
            return self.__dict__
        return self.__dict__ | {"tuner": self.tuner.unsettled()}

    def settle(self) -> None:
        """Find the fastest way, once."""
        if not self.tuner.settled:
            device = self.model.device
            with self.model.computing():
                self.tuner.settle(self._made_up, partial(seconds, device), device.type)

    def _made_up(self, choice: Choice, users: int, size: int) -> Callable[[], Tensor]:
        """What computes gradients of made-up users of so many samples."""
        model, block = self.model, self.model.samples.blank(size)
        model.begin(None, own_layers=choice.own_layers)
        models = model.tensor(model.initial).expand(users, -1)
        own, held = np.tile(np.arange(size), (users, 1)), model.held(block, np.zeros(users, dtype=np.int64))
        return partial(model.gradients, models, held, own, np.full(own.shape, 1 / size), self.tuner.most_samples)

    # What is computed -------------------------------------------------------------------------------------------------

    def gradients(self, models: Array, block: Block) -> Array:
        """(U, p): each user's average gradient, at parameters (U, p) of its own."""
        model = self.model

        def of(users: NDArray[np.int64]) -> Tensor:
            sizes = block.sizes[users][:, None]
            places = np.arange(sizes.max())
            own, weights = np.minimum(places, sizes - 1), (places < sizes) / sizes
            return self._gradients(model.held(block, users), model.tensor(models[users]), own, weights)

        return self._rows(models, block, of)

    def local_updates(self, x: Vector, block: Block, training: LocalTraining) -> Array:
        """(U, p): how far each user's own training moves the model from x."""
        model = self.model

        def moved(users: NDArray[np.int64]) -> Tensor:
            start = model.tensor(x).expand(len(users), -1)
            gradients = partial(self._gradients, model.held(block, users, self.tuner.most_samples))
            return trained(start, block.sizes[users], training, gradients) - start

        return self._rows(np.broadcast_to(x, (block.users, len(x))), block, moved)

    def forward(self, x: Vector, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (N,), and outputs (S, ...) and targets (S, ...) of the S things predicted, piece by piece."""
        model, samples, at = self.model, self.model.samples, self.model.tensor(x)

        def pieces() -> list[tuple[Tensor, Tensor, Tensor]]:
            return [
                (model.losses(*pair), samples.predicted(*pair), samples.predicted(pair[1], pair[1]))
                for pair in model.piecewise(at, block)
            ]

        losses, outputs, targets = map(torch.cat, zip(*self._computed(pieces), strict=True))
        return losses, outputs, targets

    def _gradients(self, held: Held, models: Tensor, own: NDArray[np.int64], weights: Array) -> Tensor:
        return self.model.gradients(models, held, own, weights, self.tuner.most_samples)

    def _rows(self, models: Array, block: Block, compute: Callable[[NDArray[np.int64]], Tensor]) -> Array:
        """(U, p): what is computed of users, group by group, each at a model of its own."""
        model = self.model
        self.settle()

        def rows() -> Array:
            result, keys = np.empty((block.users, model.dimension)), model.coins(models, block)
            for users in self.tuner.groups(block.sizes):
                key = None if keys is None else keys[users[0]]
                model.begin(key, own_layers=self.tuner.choice.own_layers)
                result[users] = model.rows(compute(users))
            return result

        return self._computed(rows)

    def _computed(self, compute: Callable[[], Computed]) -> Computed:
        """What ``compute`` returns; once more, user by user, if the module draws for the first time."""
        try:
            return self.model.watched(compute)
        except DrewForTheFirstTime:
            self.tuner.keep_apart()
            return self.model.watched(compute)
