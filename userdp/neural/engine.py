"""Rows of many users: a model computes them, a tuner chooses which users share a call.

Users are grouped by rising size, and smaller ones are padded to the largest with weights of zero. A piece never holds
more samples than `memory` allows, as measured on the module; larger users are computed in pieces.

*Formal guarantees.* Within `userdp.arrays.fixed_order` a user's row and losses follow to the last bit from the model,
the way that the `Tuner` chose before any data, and that user's samples alone. *Why.* Either every operation of a call
with several users is one of `userdp.neural.kernels.exact`, which a trial on made-up users shows beforehand; a batch is
padded to the next power of two, which the user's number of samples determines; losses come from one call without
padding, if the trial shows that samples a million times as large change no bit of others. Or every call holds one user:
the same operations of the same shapes, on one thread and in memory that torch places alike, whoever else is there.
Modules in float64 or bfloat16, on a GPU, that draw random numbers, mix samples or need other operations are computed
that way; gradients of others the faster way, as measured.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.arrays.fixed_order import order_is_fixed
from userdp.arrays.sparse_rows import AnyRows, Sparse, dense, gathered_rows, stacked
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.neural.chance import coins
from userdp.neural.devices import seconds
from userdp.neural.kernels.exact import Exact, is_exact
from userdp.neural.look_ups import NO_TABLES, Looked
from userdp.neural.model import DrewForTheFirstTime, Model
from userdp.neural.samples import Held
from userdp.neural.shared import SharedModule
from userdp.neural.tuner import MEBIBYTE, Choice, Execution, Tuner
from userdp.nodes.local_training import LocalTraining, trained
from userdp.problems.base import Device

Computed = TypeVar("Computed")
_COPIES = 6  # Numbers in float32 that a number looked up takes: with its gradient, both in float64 for the sums.


class Engine:
    """A model and the `Tuner` of its calls; `BadInput` if several users are to be computed at once, and cannot.

    ``tables`` are the model's that it computes `user_gradients` for by the rows that users look up.
    """

    def __init__(
        self,
        model: Model,
        execution: Execution = "auto",
        typical: int = 32,
        memory: int = 256,
        tables: Looked = NO_TABLES,
    ) -> None:
        self.model, original, self._tables = model, model.original, tables
        if execution == "grouped":
            model.check_together()
        plain = Tuner(
            execution=execution,
            own_layers=model.kernels == "own",
            together=not original.in_training.apart,
            padded=not isinstance(original.module, SharedModule),  # a sample of those costs more than a call
            typical=typical,
            memory=memory,
            sample_bytes=original.bytes_of_a_sample() + int(_COPIES * tables.numbers) * original.dtype.itemsize,
            model_bytes=max(1, model.dimension - tables.entries) * original.dtype.itemsize,
        )
        exact = plain.together and plain.padded and model.computes_exactly(tables.names)
        self._tuners = {False: plain, True: replace(plain, together=exact, doubled=True)}

    @property
    def tuner(self) -> Tuner:
        """The tuner of calls in any order, or within `userdp.arrays.fixed_order` that of calls in a fixed one."""
        return self._tuners[order_is_fixed()]

    def use_device(self, device: Device) -> None:
        """Compute on this device from now on."""
        self.model.use_device(device)
        self._tuners = self._unsettled()
        if device != "cpu":
            self._tuners[True].keep_apart()

    def _unsettled(self) -> dict[bool, Tuner]:
        return {fixed: tuner.unsettled() for fixed, tuner in self._tuners.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the choice out if other processes may have other devices; on processors make it first, for all."""
        if self.model.asked_device == "cpu":
            self.settle()
            return self.__dict__
        return self.__dict__ | {"_tuners": self._unsettled()}

    def settle(self) -> None:
        """Find the fastest execution, once."""
        if not self.tuner.settled:
            device = self.model.device
            with self.model.computing():
                self.tuner.settle(self._made_up, partial(seconds, device), device.type)

    def _made_up(self, choice: Choice, users: int, size: int) -> Callable[[], object]:
        model, block = self.model, self.model.samples.blank(size)
        model.begin(None, own_layers=choice.own_layers)
        x = model.tensor(model.initial)
        own, held = np.tile(np.arange(size), (users, 1)), model.held(block, np.zeros(users, dtype=np.int64))
        weights = np.full(own.shape, 1 / size)

        def computed() -> object:
            with self._order(choice):
                if self._tables.names:
                    return self._sparse_gradients(held, x, own, weights)
                return self._gradients(held, x.expand(users, -1), own, weights)

        return computed

    def _order(self, choice: Choice) -> AbstractContextManager[object]:
        """Return the context of one call: users who share it within a fixed order are computed exactly."""
        return Exact() if choice.grouped and order_is_fixed() else nullcontext()  # type: ignore[no-untyped-call]

    def sizes(self) -> dict[str, int | float]:
        """Return the module's parameters and what computing takes, as `strategies.core.about.MEANINGS` names it."""
        tuner, weights = self.tuner, [*self.model.original.module.parameters()]
        rows = tuner.most_users if tuner.together else 1
        return {
            "module_parameters": sum(one.numel() for one in weights),
            "trained_parameters": self.model.dimension,
            "weights_mib": sum(one.nbytes for one in weights) / MEBIBYTE,
            "sample_mib": tuner.sample_bytes / MEBIBYTE,
            "samples_at_once": tuner.most_samples,
            "rows_at_once": min(rows, tuner.most_samples),
            "message_mib": 8 * self.model.dimension / MEBIBYTE,
        }

    def user_gradients(self, x: Vector, block: Block) -> AnyRows:
        """Compute (U, p) each user's average gradient; sparse if the engine has tables."""
        models = np.broadcast_to(x, (block.users, len(x)))
        if not self._tables.names:
            return self.gradients(models, block)
        at = self.model.tensor(x)

        def of(users: NDArray[np.int64]) -> Sparse:
            return self._sparse_gradients(self.model.held(block, users), at, *_averaged(block.sizes[users]))

        return self._rows(models, block, of, block.sizes)

    def gradients(self, models: Array, block: Block) -> Array:
        """Compute (U, p) each user's average gradient, at its own parameters (U, p)."""
        model = self.model

        def of(users: NDArray[np.int64]) -> Tensor:
            held = model.held(block, users)
            return self._gradients(held, model.tensor(models[users]), *_averaged(block.sizes[users]))

        return dense(self._rows(models, block, of, block.sizes))

    def local_updates(self, x: Vector, block: Block, training: LocalTraining) -> Array:
        """Compute (U, p) the difference that each user's own training makes to the model x."""
        model = self.model

        def moved(users: NDArray[np.int64]) -> Tensor:
            start = model.tensor(x).expand(len(users), -1)
            gradients = partial(self._gradients, model.held(block, users, self.tuner.most_samples))
            return trained(start, block.sizes[users], training, gradients) - start

        sizes = block.sizes
        if order_is_fixed() and training.steps and training.batch_size:  # all take as many steps, of no more samples
            sizes = np.minimum(sizes, int(training.batch_size))
        return dense(self._rows(np.broadcast_to(x, (block.users, len(x))), block, moved, sizes))

    def forward(self, x: Vector, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Compute losses (N,), and outputs (S, ...) and targets (S, ...) of the S predictions, piece by piece."""
        model, samples, at = self.model, self.model.samples, self.model.tensor(x)

        def pieces() -> list[tuple[Tensor, Tensor, Tensor]]:
            return [
                (model.losses(*pair), samples.predicted(*pair), samples.predicted(pair[1], pair[1]))
                for pair in model.piecewise(at, block)
            ]

        losses, outputs, targets = map(torch.cat, zip(*self._computed(pieces), strict=True))
        return losses, outputs, targets

    def _gradients(self, held: Held, models: Tensor, own: NDArray[np.int64], weights: Array) -> Tensor:
        return self.model.gradients(models, held, *_padded(own, weights), self.tuner.most_samples)

    def _sparse_gradients(self, held: Held, x: Tensor, own: NDArray[np.int64], weights: Array) -> Sparse:
        most = self.tuner.most_samples
        return self.model.sparse_gradients(x, self._tables.names, held, *_padded(own, weights), most)

    def _rows(
        self,
        models: Array,
        block: Block,
        compute: Callable[[NDArray[np.int64]], Tensor | Sparse],
        sizes: NDArray[np.int64],
    ) -> AnyRows:
        """Compute rows (U, p) of users, group by group, each at its own model; ``sizes`` (U,) are of their batches."""
        model = self.model
        self.settle()

        def rows() -> AnyRows:
            parts, groups = list[Sparse](), list(self.tuner.groups(sizes))
            result = np.empty((0 if self._tables.names else block.users, model.dimension))
            keys = coins(model.seed, models, block) if model.original.in_training.draws else None
            for users in groups:
                key = None if keys is None else keys[users[0]]
                model.begin(key, own_layers=self.tuner.choice.own_layers)
                with self._order(self.tuner.choice):
                    found = compute(users)
                if isinstance(found, Tensor):
                    result[users] = model.rows(found)
                else:
                    parts.append(found)
            return gathered_rows(cast(Sparse, stacked(parts)), np.argsort(np.concatenate(groups))) if parts else result

        return self._computed(rows)

    def _computed(self, compute: Callable[[], Computed]) -> Computed:
        """Return the result of ``compute``; repeat it, user by user, if the module draws for the first time."""
        try:
            return self.model.watched(compute)
        except DrewForTheFirstTime:
            self.tuner.keep_apart()
            return self.model.watched(compute)


def _averaged(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array]:
    """Return the places (G, m) of users' samples, the last again as padding, and the weights (G, m) of averages."""
    places, sizes = np.arange(sizes.max()), sizes[:, None]
    return np.minimum(places, sizes - 1), (places < sizes) / sizes


def _padded(own: NDArray[np.int64], weights: Array) -> tuple[NDArray[np.int64], Array]:
    """Return places and weights (G, m), of a power of two within `Exact`: a user's samples say how many it has."""
    if not is_exact():
        return own, weights
    more = (0, 0), (0, (1 << (own.shape[1] - 1).bit_length()) - own.shape[1])
    return np.pad(own, more, mode="edge"), np.pad(weights, more)
