"""Gradients of a module for many users, each at parameters of its own: one after the other, or several at once.

Several users at once (`torch.func.vmap` over stacked parameters) saves a module's calls where users are small, and
wastes work where they are large or the module has no rule for it. Which is faster is found by a short measurement on
made-up users, and kept, also where the problem is sent to other processes. On a processor everything is computed with
one thread: with more, small products wait for each other most of the time; nodes and actors are what runs side by side.

The device is settled in the process that computes. Models, samples and steps of a group stay on it, and its users' rows
come back in one piece.

Users are put together by rising size, and one with fewer samples is padded to the largest with weights of zero. A
piece never holds more samples than `memory` allows, as measured on the module; a user with more is computed in pieces.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.neural.chance import coins, own_randomness, seed_from, set_torch_state, torch_state
from userdp.neural.choice import Choice, Execution
from userdp.neural.devices import computing, found, seconds
from userdp.neural.habits import PROCESSOR, Habits
from userdp.neural.held import Held
from userdp.neural.isolation import Copies
from userdp.neural.losses import SampleLoss
from userdp.neural.original import Kind, Original
from userdp.neural.own import with_own_layers
from userdp.neural.recurrent import with_way_back
from userdp.neural.samples import Samples
from userdp.neural.states import flat
from userdp.problems.devices import Device
from userdp.problems.segments import parts

Computed = TypeVar("Computed")
MEBIBYTE = 1 << 20
_GROUPS = {"cpu": (64, 512, 4096), "cuda": (512, 4096, 32768)}
"""Samples of a group that are tried, where groups are."""

_TRIED_USERS = 64
_TRIED_SECONDS, _TRIED_AGAIN, _NEAR, _ALIKE = 0.1, 2, 1.3, 1.1
"""Users on whom a way is tried, and for how long; how often again, if it takes at most so much of the fastest's time,
for other programs slow what is measured while they are busy; and within how much the one is taken that needs least
memory."""

log = logging.getLogger("userdp")


@dataclass(frozen=True, eq=False)
class _Place:
    """The module where it is computed.

    Attributes:
        device: of all tensors.
        plain: with torch's own recurrent layers.
        own: with what `userdp.neural.own` makes of its layers.
        still: as plain, in evaluation mode.
    """

    device: torch.device
    plain: Copies
    own: Copies
    still: Copies


class Engine:
    """A module's gradients and outputs; parameters are flat vectors in the module's order.

    Args:
        module: its trainable parameters become the model. It is copied: what it holds itself is never touched.
        loss: from outputs and targets to losses.
        samples: what the module sees of a block.
        dtype: of its numbers.
        execution: one user after the other, several at once, or whichever is faster.
        typical: samples of a user on which ways are measured.
        memory: mebibytes that gradients of a piece may take, what the module keeps for the way back included.
        device: where it is computed, once it is; until then, and where it is sent to other processes, the module stays
            on the processor.
        seed: of random numbers that the module draws; see `userdp.neural.isolation`.

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
        execution: Execution = "auto",
        typical: int = 32,
        memory: int = 256,
        device: Device = "cpu",
        seed: int = 0,
    ) -> None:
        self.samples, self._dtype, self._typical, self._seed = samples, dtype, typical, seed
        self._original = original = Original(module, loss, samples, dtype)
        self._module, self.initial, self.dimension = original.module, original.parameters.initial, original.dimension
        self.outputs = self._probe(with_way_back, PROCESSOR)
        original.try_out()
        self._bytes = original.bytes_of_a_sample()
        if execution == "grouped" and original.in_training.apart:
            raise BadInput(
                f"problem.execution = 'grouped': the module {original.in_training}, so its users are computed one "
                "after the other; use 'auto' or 'loop'"
            )
        self._budget = memory * MEBIBYTE
        self._execution: Execution = execution
        self._device: Device = device
        self.choice = self._only_choice()

    # Where it is computed ---------------------------------------------------------------------------------------------

    def use_device(self, device: Device) -> None:
        """Compute there from now on."""
        self._device = device
        self.__dict__.pop("_place", None)
        self.choice = self._only_choice()

    def __getstate__(self) -> dict[str, Any]:
        """Without the module's copies; and without the choice, where other processes may have other devices.

        On processors it is made first, so that copies in other processes compute alike, however many there are.
        """
        if self._device == "cpu":
            self.settle()
        state = {name: value for name, value in self.__dict__.items() if name != "_place"}
        return state if self._device == "cpu" else state | {"choice": self._only_choice()}

    @cached_property
    def _place(self) -> _Place:
        device, plain, own = found(self._device), with_way_back, with_own_layers
        with own_randomness(device):
            own = own if self._agree(plain, own) else plain
            copies = {kind: self._original.copies(kind, device) for kind in dict.fromkeys((plain, own))}
            still = self._original.copies(plain, device, still=True)
        if device.type != "cpu":
            self._probe(plain, device)
        return _Place(device, copies[plain], copies[own], still)

    def _agree(self, plain: Kind, own: Kind) -> bool:
        return self._original.agree(plain, own)

    def _probe(self, kind: Kind, device: torch.device) -> int:
        return self._original.probe(kind, device)

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
        with computing(self.device), own_randomness(self.device) if self._original.draws else nullcontext():
            yield

    # Parameters -------------------------------------------------------------------------------------------------------

    def tensor(self, models: Array) -> Tensor:
        """Models (..., p) as a tensor of the module's numbers, on its device."""
        return torch.as_tensor(models).to(self.device, self._dtype)

    def rows(self, models: Tensor) -> Array:
        """Models (..., p) as an array."""
        return np.asarray(models.cpu().numpy(), dtype=np.float64)

    def model_of(self, state: Mapping[str, Tensor], told: str) -> Vector:
        """(p,) the parameters in a state_dict of the whole module; see `userdp.neural.states.flat`."""
        shapes = self._original.parameters.shapes
        fixed = {name: tensor for name, tensor in self._module.state_dict().items() if name not in shapes}
        return flat(state, shapes, fixed, told)

    # Users kept apart -------------------------------------------------------------------------------------------------

    def coins(self, models: Array, block: Block) -> list[bytes] | None:
        """(U,) keys of users' streams, at models (U, p); None of a module that draws nothing."""
        return coins(self._seed, models, block) if self._original.in_training.draws else None

    def begin(self, users: NDArray[np.int64], keys: list[bytes] | None) -> None:
        """Make ready for users that are computed together: the module is as before the first one, coins are theirs."""
        self._used.fresh()
        if keys is not None:
            seed_from(self.device, keys[users[0]])

    @property
    def _used(self) -> Copies:
        return self._place.own if self.choice.own_layers else self._place.plain

    def computed(self, compute: Callable[[], Computed]) -> Computed:
        """What ``compute`` returns; once more, with coins, if the module draws though it did not on made-up samples."""
        before = torch_state(self.device)
        try:
            with self.computing():
                found = compute()
        except Exception:  # whatever somebody's module raises
            if not self._drew_since(before):
                raise
        else:
            if not self._drew_since(before):
                return found
        with self.computing():
            return compute()

    def _drew_since(self, before: list[Tensor]) -> bool:
        """Whether the module drew and was not known to; what it drew is put back, and it is known from now on."""
        if all(map(torch.equal, before, torch_state(self.device))):
            return False
        set_torch_state(self.device, before)
        self._original.in_training = self._original.in_evaluation = Habits(draws=True, mixes=True)
        self.choice = self._only_choice()
        return True

    # Losses and gradients ---------------------------------------------------------------------------------------------

    def held(self, block: Block, users: NDArray[np.int64], *, keep: bool) -> Held:
        """The samples of some users of a block: ``keep`` them on the device, if a piece has room for all of them."""
        return Held(self.samples, block, users, self.device, self.most_samples if keep else 0)

    def gradients(self, models: Tensor, held: Held, own: NDArray[np.int64], weights: Array) -> Tensor:
        """(G, p): gradients of G users' weighted sums of losses, each at its own model.

        Args:
            models: (G, p).
            held: samples of these users.
            own: (G, m) which of them, by their positions among each user's own.
            weights: (G, m) of each; zero for padding.
        """
        result = torch.zeros_like(models)
        step = self.most_samples if len(models) == 1 else own.shape[1]
        for first in range(0, own.shape[1], step):
            part = slice(first, first + step)
            inputs, targets = held.at(own[:, part])
            weight = torch.as_tensor(weights[:, part]).to(self.device, self._dtype)
            leaf = models.detach().clone().requires_grad_()  # a module may write to its parameters
            result += torch.autograd.grad(self._sum(leaf, inputs, targets, weight), leaf)[0]
        return result

    def _sum(self, models: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The sum of all users' losses, whose gradient by a user's own model is that user's."""
        pair = self._used.now
        if len(models) == 1:
            return self._original.loss(pair, models[0], inputs[0], targets[0], weights[0])

        def own(model: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            return self._original.loss(pair, model, inputs, targets, weights)

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention know one user at a time
            return vmap(own)(models, inputs, targets, weights).sum()

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

    # Who is computed with whom ----------------------------------------------------------------------------------------

    @property
    def most_samples(self) -> int:
        """Samples that a piece may hold."""
        return max(1, self._budget // self._bytes)

    def groups(self, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Positions of users computed together, by falling size; none is twice as large as another."""
        order = np.argsort(sizes, kind="stable")
        if not self.choice.grouped:
            yield from order[::-1, None]
            return
        users = max(1, self._budget // (8 * self.dimension * self._dtype.itemsize))
        sorted_sizes, last = sizes[order], len(order)
        while last > 0:
            largest = int(sorted_sizes[last - 1])
            room = max(1, min(self.choice.samples, self.most_samples) // largest)
            alike = int(np.searchsorted(sorted_sizes, (largest + 1) // 2))
            first = max(0, last - min(room, users), alike)
            yield order[first:last]
            last = first

    def _only_choice(self) -> Choice:
        """What is done as long as nothing was measured."""
        grouped = self._execution == "grouped" and not self._original.in_training.apart
        return Choice(grouped=grouped, samples=_GROUPS["cpu"][1], own_layers=self._execution != "loop")

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be measured."""
        return self._execution != "auto" or self.choice.seconds is not None

    def settle(self) -> None:
        """Find the fastest way, once, on made-up users: it must not depend on anybody's data, nor on who is asked."""
        if self.settled:
            return
        ways = [Choice(grouped=False, samples=1, own_layers=own) for own in (False, True)]
        if not self._original.in_training.apart:
            ways += [Choice(grouped=True, samples=samples, own_layers=True) for samples in _GROUPS[self.device.type]]
        with self.computing():
            measured = [self._measured(way) for way in ways]
            for _ in range(_TRIED_AGAIN):
                near = _NEAR * min(_seconds(way) for way in measured)
                again = (self._measured(way) if _seconds(way) <= near else way for way in measured)
                measured = [min(pair, key=_seconds) for pair in zip(measured, again, strict=True)]
            enough = _ALIKE * min(_seconds(way) for way in measured)
            self.choice = next(way for way in measured if _seconds(way) <= enough)
        log.info("the module is computed %s", self.choice)

    def _measured(self, way: Choice) -> Choice:
        """That way with its least time for a sample, for others are busy too; infinite where it cannot be gone."""
        self.choice, spent, least = way, 0.0, math.inf
        size = min(self._typical, self.most_samples)
        model, block = self.tensor(self.initial), self.samples.blank(size)
        try:
            for together in self.groups(np.full(_TRIED_USERS, size)):
                own, held = np.tile(np.arange(size), (len(together), 1)), self.held(block, 0 * together, keep=False)
                models, weights = model.expand(len(together), -1), np.full(own.shape, 1 / size)
                if not spent:
                    self.gradients(models, held, own, weights)  # the first call of anything is slow
                start = seconds(self.device)
                self.gradients(models, held, own, weights)
                taken = seconds(self.device) - start
                spent, least = spent + taken, min(least, taken / own.size)
                if spent > _TRIED_SECONDS:
                    break
        except Exception:  # whatever a module raises that has no rule for many users at once
            return replace(way, seconds=math.inf)
        return replace(way, seconds=least)


def _of_one_user(block: Block) -> Block:
    return Block(block.features, np.array([0, block.samples]), block.targets)


def _seconds(way: Choice) -> float:
    return math.inf if way.seconds is None else way.seconds
