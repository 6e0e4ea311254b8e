"""A module as a function of flat parameters: gradients of users, each at parameters of its own; outputs and losses.

Users of a call are computed at once by `torch.func.vmap` over stacked parameters. Who they are, and how many samples a
piece holds, is up to the caller (`userdp.neural.tuner`).

The device is settled in the process that computes. Models, samples and steps of a group stay on it, and its users' rows
come back in one piece. On a processor everything is computed with one thread: with more, small products wait for each
other most of the time; nodes and actors are what runs side by side.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.neural.chance import coins, own_randomness, seed_from, set_torch_state, torch_state
from userdp.neural.devices import computing, found
from userdp.neural.habits import PROCESSOR, Habits
from userdp.neural.held import Held
from userdp.neural.isolation import Copies, Pair
from userdp.neural.kernels.switch import LAYERS, Kernels, Kind
from userdp.neural.kernels.way_back import with_way_back
from userdp.neural.losses import SampleLoss
from userdp.neural.original import Original
from userdp.neural.samples import Samples
from userdp.neural.states import flat
from userdp.problems.devices import Device
from userdp.problems.segments import parts

Computed = TypeVar("Computed")


class DrewForTheFirstTime(Exception):
    """A module drew random numbers, though it did not on made-up samples; from now on it is known to."""


@dataclass(frozen=True, eq=False)
class _Place:
    """The module where it is computed.

    Attributes:
        device: of all tensors.
        plain: with torch's own layers.
        own: with those of `userdp.neural.kernels`, where they are asked for and give the same.
        still: as plain, in evaluation mode.
    """

    device: torch.device
    plain: Copies
    own: Copies
    still: Copies


class Model:
    """A module's gradients and outputs; parameters are flat vectors in the module's order.

    Args:
        module: its trainable parameters become the model. It is copied: what it holds itself is never touched.
        loss: from outputs and targets to losses.
        samples: what the module sees of a block.
        dtype: of its numbers.
        kernels: whose layers there are beside torch's.
        device: where it is computed, once it is; until then, and where it is sent to other processes, the module stays
            on the processor.
        seed: of random numbers that the module draws; see `userdp.neural.isolation`.

    Attributes:
        samples: as given.
        kernels: as given.
        initial: (p,) the parameters as the module was made.
        dimension: p.
        outputs: numbers that the module returns of a thing predicted.
        asked_device: where it is to be computed, as it was asked for.

    Raises:
        BadInput: a module without trainable parameters, that does not fit samples or loss, or that carries something
            from one user to the next.
    """

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
        self.samples, self._dtype, self._seed, self.kernels = samples, dtype, seed, kernels
        self.asked_device: Device = device
        self._original = original = Original(module, loss, samples, dtype)
        self.initial, self.dimension = original.parameters.initial, original.dimension
        self.outputs = original.probe(with_way_back, PROCESSOR)
        original.try_out()
        self._own_layers = False

    # What it does and needs -------------------------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The module that is copied, whose parameters are frozen."""
        return self._original.module

    @property
    def habits(self) -> Habits:
        """What the module does in training beside computing each sample by itself."""
        return self._original.in_training

    @property
    def draws(self) -> bool:
        """Whether the module draws random numbers anywhere."""
        return self._original.draws

    def bytes_of_a_sample(self) -> int:
        """The bytes that the way back keeps of a sample."""
        return self._original.bytes_of_a_sample()

    def bytes_of_a_model(self) -> int:
        """The bytes of a user's parameters."""
        return self.dimension * self._dtype.itemsize

    def check_together(self) -> None:
        """See that several users can be computed at once.

        Raises:
            BadInput: they cannot.
        """
        self._original.check_together(self._kind(), self.kernels)

    # Where it is computed ---------------------------------------------------------------------------------------------

    def use_device(self, device: Device) -> None:
        """Compute there from now on."""
        self.asked_device = device
        self.__dict__.pop("_place", None)

    def __getstate__(self) -> dict[str, Any]:
        """Without the module's copies: another process makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_place"}

    @cached_property
    def _place(self) -> _Place:
        device, plain, own = found(self.asked_device), with_way_back, self._kind()
        with own_randomness(device):
            copies = {kind: self._original.copies(kind, device) for kind in dict.fromkeys((plain, own))}
            still = self._original.copies(plain, device, still=True)
        if device.type != "cpu":
            self._original.probe(plain, device)
        return _Place(device, copies[plain], copies[own], still)

    def _kind(self) -> Kind:
        """The layers that were asked for, if they give the module's gradients; else torch's."""
        plain, own = with_way_back, LAYERS[self.kernels]
        with own_randomness(PROCESSOR):
            return own if own is plain or self._original.agree(plain, own) else plain

    @property
    def device(self) -> torch.device:
        """Where this process computes.

        Raises:
            BadInput: the device that is asked for is not there, or the module does not run on it.
        """
        return self._place.device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within which everything is computed; what a module draws is drawn from nobody else's generators."""
        with computing(self.device), own_randomness(self.device) if self.draws else nullcontext():
            yield

    # Parameters -------------------------------------------------------------------------------------------------------

    def tensor(self, models: Array) -> Tensor:
        """Models (..., p) as a tensor of the module's numbers, on its device."""
        return torch.as_tensor(models).to(self.device, self._dtype)

    def rows(self, models: Tensor) -> Array:
        """Models (..., p) as an array."""
        return np.asarray(models.cpu().numpy(), dtype=np.float64)

    def of_state(self, state: Mapping[str, Tensor], told: str) -> Vector:
        """(p,) the parameters in a state_dict of the whole module; see `userdp.neural.states.flat`."""
        shapes = self._original.parameters.shapes
        fixed = {name: tensor for name, tensor in self.module.state_dict().items() if name not in shapes}
        return flat(state, shapes, fixed, told)

    # Users kept apart -------------------------------------------------------------------------------------------------

    def coins(self, models: Array, block: Block) -> list[bytes] | None:
        """(U,) keys of users' streams, at models (U, p); None of a module that draws nothing."""
        return coins(self._seed, models, block) if self.habits.draws else None

    def begin(self, key: bytes | None, *, own_layers: bool) -> None:
        """Make ready for users that are computed together.

        The module is as before the first one; coins are theirs.

        Args:
            key: of their stream; None of a module that draws nothing.
            own_layers: whether to compute by `userdp.neural.kernels`, where these give the same.
        """
        self._own_layers = own_layers
        self._copies.fresh()
        if key is not None:
            seed_from(self.device, key)

    @property
    def _copies(self) -> Copies:
        return self._place.own if self._own_layers else self._place.plain

    @property
    def copy_in_use(self) -> Pair:
        """The copy that computes gradients."""
        return self._copies.now

    def watched(self, compute: Callable[[], Computed]) -> Computed:
        """What ``compute`` returns.

        Raises:
            DrewForTheFirstTime: the module draws though it did not on made-up samples; ask again, with coins.
        """
        before = torch_state(self.device)
        try:
            with self.computing():
                found = compute()
        except Exception:  # whatever somebody's module raises
            self._refuse_draws(before)
            raise
        self._refuse_draws(before)
        return found

    def _refuse_draws(self, before: list[Tensor]) -> None:
        """Put back what the module drew, if it was not known to draw; from now on it is."""
        if not all(map(torch.equal, before, torch_state(self.device))):
            set_torch_state(self.device, before)
            self._original.in_training = self._original.in_evaluation = Habits(draws=True, mixes=True)
            raise DrewForTheFirstTime

    # Losses and gradients ---------------------------------------------------------------------------------------------

    def held(self, block: Block, users: NDArray[np.int64], most: int = 0) -> Held:
        """The samples of some users of a block, on the device from the start if they are at most so many."""
        return Held(self.samples, block, users, self.device, most)

    def gradients(self, models: Tensor, held: Held, own: NDArray[np.int64], weights: Array, piece: int) -> Tensor:
        """(G, p): gradients of G users' weighted sums of losses, each at its own model.

        Args:
            models: (G, p).
            held: samples of these users.
            own: (G, m) which of them, by their positions among each user's own.
            weights: (G, m) of each; zero for padding.
            piece: samples of a user that are computed at once.
        """
        result, pair = torch.zeros_like(models), self.copy_in_use
        for first in range(0, own.shape[1], piece):
            part = slice(first, first + piece)
            inputs, targets = held.at(own[:, part])
            weight = torch.as_tensor(weights[:, part]).to(self.device, self._dtype)
            leaf = models.detach().clone().requires_grad_()  # a module may write to its parameters
            total = self._original.sum_of_losses(pair, leaf, inputs, targets, weight)
            result += torch.autograd.grad(total, leaf)[0]
        return result

    def tried(self, block: Block) -> tuple[Tensor, Tensor]:
        """Outputs (N, ...) and targets (N, ...) of all samples by the module as it was made; on the processor."""
        return self._original.tried(block)

    def piecewise(self, model: Tensor, block: Block) -> Iterator[tuple[Tensor, Tensor]]:
        """Those of `outputs_of`, piece by piece; of one user at a time, if samples cannot be computed side by side."""
        for _, part in parts(block):
            apart = self._original.in_evaluation.apart
            found = None if apart else self.outputs_of(model, part)
            if found is not None and (part.users == 1 or self._place.still.unchanged):
                yield found
            else:  # what the module kept of one user may have moved the next one
                yield from (self.outputs_of(model, part.part(user, user + 1)) for user in range(part.users))

    def outputs_of(self, model: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Outputs (N, ...) and targets (N, ...) of all samples, without a gradient; on the processor."""
        inputs, targets = self.samples.tensors(block, np.arange(block.samples))
        pair = self._place.still.fresh()
        if self._original.in_evaluation.draws:
            seed_from(self.device, coins(self._seed, self.rows(model)[None], _of_one_user(block))[0])
        with torch.no_grad():
            outputs = self._original.outputs(pair, model, inputs.to(self.device))
        return outputs.cpu(), targets

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(N,): one loss a sample."""
        return self.samples.losses(self._place.still.now.loss, outputs, targets)


def _of_one_user(block: Block) -> Block:
    return Block(block.features, np.array([0, block.samples]), block.targets)
