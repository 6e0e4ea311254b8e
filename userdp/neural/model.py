"""A module as a function of flat parameters: per-user gradients, each at the user's own parameters; outputs and losses.

`torch.func.vmap` computes the users of a call at once over stacked parameters. The caller chooses the users and the
number of samples of a piece (`userdp.neural.tuner`).

The device is chosen in the computing process. Models, samples and steps of a group stay on it, and its users' rows come
back in one piece. A processor computes with one thread: with more, small products mostly wait for each other. Nodes and
actors run side by side instead.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.arrays.fixed_order import order_is_fixed
from userdp.arrays.sparse_rows import Sparse
from userdp.arrays.types import Array
from userdp.data.block import Block
from userdp.neural.chance import coins, own_randomness, seed_from, set_torch_state, torch_state
from userdp.neural.devices import computing, found
from userdp.neural.habits import PROCESSOR, Habits
from userdp.neural.isolation import Copies, Pair
from userdp.neural.kernels.exact import Exact
from userdp.neural.kernels.layers import LAYERS, Kernels, Kind, with_way_back
from userdp.neural.look_ups import LookUps
from userdp.neural.losses import SampleLoss
from userdp.neural.original import Original
from userdp.neural.samples import Held, Samples
from userdp.problems.base import Device
from userdp.problems.segments import parts

Computed = TypeVar("Computed")


class DrewForTheFirstTime(Exception):
    """The module drew random numbers, though it did not on made-up samples; it is now known to draw."""


@dataclass(frozen=True, eq=False)
class _Place:
    """Copies of the module on its device: with torch's layers, with the layers asked for, and in evaluation mode."""

    device: torch.device
    plain: Copies
    own: Copies
    still: Copies


class Model:
    """A module's gradients and outputs; parameters are flat vectors in the module's order.

    ``module`` is copied and never changed; its trainable parameters become the model. It is on the processor until its
    ``device`` is needed, and on the way to other processes. ``seed`` determines the random numbers that it draws (see
    `userdp.neural.isolation`). Raises `BadInput` for a module without trainable parameters, that does not fit samples
    or loss, or that carries something from one user to the next.

    Attributes:
        original: the module as the factory made it, and its habits.
        initial: (p,) the module's first parameters.
        dimension: p.
        outputs: numbers in one prediction of the module.
        asked_device: the device asked for.
        copy_in_use: the copy of the module that computes gradients, after `begin`.
    """

    copy_in_use: Pair

    def __init__(
        self,
        module: nn.Module,
        loss: SampleLoss,
        samples: Samples,
        dtype: torch.dtype,
        *,
        kernels: Kernels = "own",
        device: Device = "cpu",
        seed: int = 0,
    ) -> None:
        self.samples, self._dtype, self.seed, self.kernels = samples, dtype, seed, kernels
        self.asked_device: Device = device
        self.original = original = Original(module, loss, samples, dtype)
        self.initial = original.parameters.initial
        self.dimension = len(self.initial)
        self.outputs = original.probe(with_way_back, PROCESSOR)
        original.try_out()

    def check_together(self) -> None:
        """Refuse (`BadInput`) a module of which several users cannot be computed at once."""
        self.original.check_together(self._kind(), self.kernels)

    def computes_exactly(self, looked: frozenset[str]) -> bool:
        """Return whether all its operations are known to `userdp.neural.kernels.exact`, by a trial on made-up users."""
        return self.asked_device == "cpu" and self.original.computes_exactly(self._kind(), looked)

    def use_device(self, device: Device) -> None:
        """Compute on this device from now on."""
        self.asked_device = device
        self.__dict__ = self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the module's copies out: another process makes its own."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_place", "copy_in_use")}

    @cached_property
    def _place(self) -> _Place:
        device, plain, own = found(self.asked_device), with_way_back, self._kind()
        with own_randomness(device):
            copies = {kind: self.original.copies(kind, device) for kind in dict.fromkeys((plain, own))}
            still = self.original.copies(plain, device, still=True)
        if device.type != "cpu":
            self.original.probe(plain, device)
        return _Place(device, copies[plain], copies[own], still)

    def _kind(self) -> Kind:
        """Return the layers asked for if they give the module's gradients; else torch's."""
        plain, own = with_way_back, LAYERS[self.kernels]
        with own_randomness(PROCESSOR):
            return own if own is plain or self.original.agree(plain, own) else plain

    @property
    def device(self) -> torch.device:
        """The device of this process; `BadInput` if it does not exist, or the module does not run on it."""
        return self._place.device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Prepare for computing; the module draws from its own generators."""
        with computing(self.device), own_randomness(self.device) if self.original.draws else nullcontext():
            yield

    def tensor(self, models: Array) -> Tensor:
        """Convert models (..., p) to a tensor of the module's dtype, on its device."""
        return torch.as_tensor(models).to(self.device, self._dtype)

    def rows(self, models: Tensor) -> Array:
        """Convert models (..., p) to an array."""
        return np.asarray(models.cpu().numpy(), dtype=np.float64)

    def begin(self, key: bytes | None, *, own_layers: bool) -> None:
        """Restore the module, with ``own_layers`` if these agree, for users of one call; seed coins by a key."""
        self.copy_in_use = (self._place.own if own_layers else self._place.plain).fresh()
        if key is not None:
            seed_from(self.device, key)

    def watched(self, compute: Callable[[], Computed]) -> Computed:
        """Return the result of ``compute``; `DrewForTheFirstTime`, to repeat it with coins, if the module draws."""
        before = torch_state(self.device)
        try:
            with self.computing():
                found = compute()
        except Exception:  # any error of the module
            self._refuse_draws(before)
            raise
        self._refuse_draws(before)
        return found

    def _refuse_draws(self, before: list[Tensor]) -> None:
        """Undo draws of a module not known to draw, and mark it as drawing from now on."""
        if not all(map(torch.equal, before, torch_state(self.device))):
            set_torch_state(self.device, before)
            self.original.in_training = self.original.in_evaluation = Habits(draws=True, mixes=True)
            raise DrewForTheFirstTime

    def held(self, block: Block, users: NDArray[np.int64], most: int = 0) -> Held:
        """Hold the samples of some users of a block, on the device from the start if they are at most ``most``."""
        return Held(self.samples, block, users, self.device, most)

    def gradients(self, models: Tensor, held: Held, own: NDArray[np.int64], weights: Array, piece: int) -> Tensor:
        """Compute (G, p) gradients of G users' weighted sums of losses, each at its own model.

        ``own`` (G, m) are positions among each user's held samples, ``weights`` (G, m) are zero for padding, and
        ``piece`` samples of a user are computed at once.
        """
        result, pair = torch.zeros_like(models), self.copy_in_use
        for samples in self._pieces(held, own, weights, piece):
            leaf = models.detach().clone().requires_grad_()  # a module may write to its parameters
            total = self.original.sum_of_losses(pair, leaf, *samples)
            result += torch.autograd.grad(total, leaf)[0]
        return result

    def sparse_gradients(
        self, x: Tensor, looked: frozenset[str], held: Held, own: NDArray[np.int64], weights: Array, piece: int
    ) -> Sparse:
        """Compute `gradients` at one model x (p,), with the rows of the tables ``looked`` that users look up alone."""
        tables = LookUps(self.original.parameters.named(x), looked, len(own))
        loss = partial(self.original.looking_up(tables).sum_of_losses, self.copy_in_use)
        for samples in self._pieces(held, own, weights, piece):
            tables.add(loss, *samples)
        return tables.rows()

    def _pieces(
        self, held: Held, own: NDArray[np.int64], weights: Array, piece: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for first in range(0, own.shape[1], piece):
            part = slice(first, first + piece)
            yield *held.at(own[:, part]), torch.as_tensor(weights[:, part]).to(self.device, self._dtype)

    def piecewise(self, model: Tensor, block: Block) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `outputs_of` in pieces; of one user at a time, if samples cannot be computed side by side."""
        for _, part in parts(block):
            apart = self.original.in_evaluation.apart or order_is_fixed() != self._evaluates_exactly
            found = None if apart else self.outputs_of(model, part)
            if found is not None and (part.users == 1 or self._place.still.unchanged):
                yield found
            else:  # one user's data in the module may have changed the next one's outputs
                yield from (self.outputs_of(model, part.part(user, user + 1)) for user in range(part.users))

    @property
    def _evaluates_exactly(self) -> bool:
        """True if the order is fixed, and users may yet share a call for their losses."""
        possible = self.asked_device == "cpu" and not self.original.in_evaluation.apart
        return order_is_fixed() and possible and self.original.predicts_exactly

    def _order(self) -> AbstractContextManager[object]:
        return Exact() if self._evaluates_exactly else nullcontext()  # type: ignore[no-untyped-call]

    def outputs_of(self, model: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Compute outputs (N, ...) and targets (N, ...) of all samples, without a gradient; on the processor."""
        inputs, targets = self.samples.tensors(block, np.arange(block.samples))
        pair = self._place.still.fresh()
        if self.original.in_evaluation.draws:
            one_user = Block(block.features, np.array([0, block.samples]), block.targets)
            seed_from(self.device, coins(self.seed, self.rows(model)[None], one_user)[0])
        with torch.no_grad(), self._order():
            outputs = self.original.outputs(pair, model, inputs.to(self.device))
        return outputs.cpu(), targets

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute (N,) one loss a sample."""
        loss = self._place.still.now.loss
        with self._order():
            return self.samples.losses(loss, outputs, targets)
