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

import copy
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.neural.devices import computing, found, seconds
from userdp.neural.held import Held
from userdp.neural.losses import SampleLoss
from userdp.neural.own import with_own_layers
from userdp.neural.recurrent import with_way_back
from userdp.neural.samples import Samples
from userdp.neural.states import flat
from userdp.problems.devices import Device

Execution = Literal["auto", "loop", "grouped"]
MEBIBYTE = 1 << 20
_GROUPS = {"cpu": (64, 512, 4096), "cuda": (512, 4096, 32768)}
"""Samples of a group that are tried, where groups are."""

_TRIED_USERS = 64
_TRIED_SECONDS, _TRIED_AGAIN, _NEAR, _ALIKE = 0.1, 2, 1.3, 1.1
"""Users on whom a way is tried, and for how long; how often again, if it takes at most so much of the fastest's time,
for other programs slow what is measured while they are busy; and within how much the one is taken that needs least
memory."""

log = logging.getLogger("userdp")


@dataclass(frozen=True)
class Choice:
    """How gradients are computed.

    Attributes:
        grouped: whether several users are computed at once.
        samples: most of a group.
        own_layers: whether layers are computed as `userdp.neural.own` does; groups need that.
        seconds: time of a sample when it was measured; None where there was no choice.
    """

    grouped: bool
    samples: int
    own_layers: bool
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class _Place:
    """The module where it is computed.

    Attributes:
        device: of all tensors.
        plain: with torch's own recurrent layers.
        own: with what `userdp.neural.own` makes of its layers.
    """

    device: torch.device
    plain: nn.Module
    own: nn.Module


class Engine:
    """A module's gradients and outputs; parameters are flat vectors in the module's order.

    Args:
        module: in evaluation mode; its trainable parameters become the model.
        loss: from outputs and targets to losses.
        samples: what the module sees of a block.
        dtype: of its numbers.
        execution: one user after the other, several at once, or whichever is faster.
        typical: samples of a user on which ways are measured.
        memory: mebibytes that gradients of a piece may take, what the module keeps for the way back included.
        device: where it is computed, once it is; until then, and where it is sent to other processes, the module stays
            on the processor.

    Raises:
        BadInput: a module without trainable parameters, or that does not fit samples or loss.
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
    ) -> None:
        self.samples, self._loss, self._dtype, self._typical = samples, loss, dtype, typical
        self._module = module.to(dtype).eval()
        trainable = {name: tensor.detach() for name, tensor in module.named_parameters() if tensor.requires_grad}
        if not trainable:
            raise BadInput("problem.module has no trainable parameter; check what the factory returns")
        module.requires_grad_(False)
        self._shapes = {name: tensor.shape for name, tensor in trainable.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self.initial: Vector = torch.cat([each.reshape(-1) for each in trainable.values()]).double().numpy()
        self.dimension = len(self.initial)
        processor = torch.device("cpu")
        self.outputs = self._probe(self._module, processor)
        self._bytes = self._bytes_of_a_sample()
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
        device = found(self._device)
        plain, own = (kind(copy.deepcopy(self._module)) for kind in (with_way_back, with_own_layers))
        own = own if self._agree(plain, own) else plain
        plain, own = plain.to(device), own.to(device)
        if device.type != "cpu":
            self._probe(plain, device)
        return _Place(device, plain, own)

    def _agree(self, plain: nn.Module, own: nn.Module) -> bool:
        """Whether own layers give a module's gradients, by a trial on two samples, on the processor."""
        inputs, targets = self.samples.tensors(self.samples.corners(), np.arange(2))
        model = torch.as_tensor(self.initial).to(self._dtype).requires_grad_()
        weights = torch.ones(2, dtype=self._dtype)
        try:
            with computing(model.device):
                wanted, found = (
                    torch.autograd.grad(self._loss_of(module, self._named(model), inputs, targets, weights), model)[0]
                    for module in (plain, own)
                )
        except Exception:  # whatever somebody's module raises
            return False
        scale = float(wanted.abs().max())  # not finite where made-up samples are none that the loss can take
        return math.isfinite(scale) and torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * scale)

    @property
    def device(self) -> torch.device:
        """Where this process computes.

        Raises:
            BadInput: the device that is asked for is not there, or the module does not run on it.
        """
        return self._place.device

    def computing(self) -> AbstractContextManager[None]:
        """Within which everything is computed."""
        return computing(self.device)

    def _probe(self, module: nn.Module, device: torch.device) -> int:
        """Numbers that the module returns of a thing predicted, after a trial on two samples.

        Raises:
            BadInput: module and loss do not fit; with what the module itself said.
        """
        inputs, targets = (each.to(device) for each in self.samples.tensors(self.samples.corners(), np.arange(2)))
        fits = f"problem.module does not fit {self.samples.columns} columns and {self.samples.loss}"
        if device.type != "cpu":
            fits += f", on {device.type}, where it must make all its tensors on the device of its inputs"
        try:
            outputs = module(inputs)
            losses = self.samples.losses(self._loss, outputs, targets)
            looks_ahead = device.type == "cpu" and self.samples.looks_ahead(module)
        except Exception as error:  # whatever somebody's module raises
            raise BadInput(
                f"{fits}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error
        if losses.shape != (2,):
            raise BadInput(
                f"problem.loss gives shape {tuple(losses.shape)} for 2 samples, must be (2,): one loss a sample"
            )
        if looks_ahead:
            raise BadInput(
                "problem.module looks ahead: what it returns for a step of a window changes with later steps, which it "
                "is to predict; let it read steps in order (a causal mask, no bidirectional layer, batch_first=True)"
            )
        return int(outputs.numel()) // int(self.samples.per_sample(self.samples.blank(2)).sum())

    def _bytes_of_a_sample(self) -> int:
        """What the module keeps of a sample for the way back, beside what it keeps of parameters."""
        sizes = []
        for count in (1, 2):
            kept: dict[int, int] = {}

            def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            model = torch.as_tensor(self.initial).to(self._dtype).requires_grad_()
            with computing(model.device), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = self._loss_of(self._module, self._named(model), *self._piece(self.samples.blank(count), count))
            sizes.append(sum(kept.values()))
            del loss
        return max(sizes[1] - sizes[0], 1)

    def _piece(self, block: Block, count: int) -> tuple[Tensor, Tensor, Tensor]:
        inputs, targets = self.samples.tensors(block, np.arange(count))
        return inputs, targets, torch.full((count,), 1 / count, dtype=self._dtype)

    # Parameters -------------------------------------------------------------------------------------------------------

    def tensor(self, models: Array) -> Tensor:
        """Models (..., p) as a tensor of the module's numbers, on its device."""
        return torch.as_tensor(models).to(self.device, self._dtype)

    def rows(self, models: Tensor) -> Array:
        """Models (..., p) as an array."""
        return np.asarray(models.cpu().numpy(), dtype=np.float64)

    def model_of(self, state: Mapping[str, Tensor], told: str) -> Vector:
        """(p,) the parameters in a state_dict of the whole module; see `userdp.neural.states.flat`."""
        fixed = {name: tensor for name, tensor in self._module.state_dict().items() if name not in self._shapes}
        return flat(state, self._shapes, fixed, told)

    def _named(self, models: Tensor) -> dict[str, Tensor]:
        """Parameters by name of models (..., p), as views."""
        pieces = torch.split(models, self._sizes, dim=-1)
        named = zip(self._shapes.items(), pieces, strict=True)
        return {name: piece.reshape(*models.shape[:-1], *shape) for (name, shape), piece in named}

    # Losses and gradients ---------------------------------------------------------------------------------------------

    def _loss_of(
        self, module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        outputs = functional_call(module, parameters, (inputs,))
        return (self.samples.losses(self._loss, outputs, targets) * weights).sum()

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
            leaf = models.detach().requires_grad_()
            result += torch.autograd.grad(self._sum(leaf, inputs, targets, weight), leaf)[0]
        return result

    def _sum(self, models: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The sum of all users' losses, whose gradient by a user's own model is that user's."""
        module = self._place.own if self.choice.own_layers else self._place.plain
        if len(models) == 1:
            return self._loss_of(module, self._named(models[0]), inputs[0], targets[0], weights[0])

        def own(model: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            return self._loss_of(module, self._named(model), inputs, targets, weights)

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention know one user at a time
            return vmap(own)(models, inputs, targets, weights).sum()

    def tried(self, block: Block) -> tuple[Tensor, Tensor]:
        """Outputs (N, ...) and targets (N, ...) of all samples by the module as it was made; on the processor."""
        inputs, targets = self.samples.tensors(block, np.arange(block.samples))
        with torch.no_grad():
            return self._module(inputs), targets

    def outputs_of(self, model: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Outputs (N, ...) and targets (N, ...) of all samples, without a gradient; on the processor."""
        inputs, targets = self.samples.tensors(block, np.arange(block.samples))
        with torch.no_grad():
            outputs = functional_call(self._place.plain, self._named(model), (inputs.to(self.device),))
        return cast(Tensor, outputs).cpu(), targets

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(N,): one loss a sample."""
        return self.samples.losses(self._loss, outputs, targets)

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
        return Choice(
            grouped=self._execution == "grouped", samples=_GROUPS["cpu"][1], own_layers=self._execution != "loop"
        )

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be measured."""
        return self._execution != "auto" or self.choice.seconds is not None

    def settle(self) -> None:
        """Find the fastest way, once, on made-up users: it must not depend on anybody's data, nor on who is asked."""
        if self.settled:
            return
        ways = [Choice(grouped=False, samples=1, own_layers=own) for own in (False, True)]
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


def _seconds(way: Choice) -> float:
    return math.inf if way.seconds is None else way.seconds
