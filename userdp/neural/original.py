"""The module as its factory made it: its copies, its trials on made-up samples."""

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.neural.chance import own_randomness
from userdp.neural.devices import computing
from userdp.neural.habits import MADE_UP, PROCESSOR, Habits, first_line, habits
from userdp.neural.isolation import Copies, Pair, as_trained
from userdp.neural.kernels.exact import Exact, is_exact
from userdp.neural.kernels.layers import Kernels, Kind, with_way_back
from userdp.neural.kernels.padding import OwnPadding
from userdp.neural.look_ups import Looked, LookUps, only_looked_up
from userdp.neural.losses import SampleLoss
from userdp.neural.parameters import Parameters
from userdp.neural.samples import Samples
from userdp.neural.shared import SharedModule

_SHORT = 16  # Steps of trials, where any length will do.


class Original:
    """A module and its loss; only copies are computed.

    Raises `BadInput` for a module that cannot be copied, has no trainable parameter, or normalises by the batch.

    Attributes:
        module: a copy with its layers in the mode for computing users.
        parameters: the trainable ones.
        in_training: the habits in computing gradients; known after `try_out`.
        in_evaluation: the habits in metrics and predictions, all in evaluation mode.
    """

    in_training: Habits
    in_evaluation: Habits

    def __init__(self, module: nn.Module, loss: SampleLoss, samples: Samples, dtype: torch.dtype) -> None:
        self._loss, self._samples, self.dtype = loss, samples, dtype
        self.module = as_trained(module, dtype)
        self.parameters = Parameters(self.module)
        self._named: Callable[[Tensor], dict[str, Tensor]] = self.parameters.named
        self.module.requires_grad_(False)
        self._shared = self.module if isinstance(self.module, SharedModule) else None
        self._trial = samples if self._shared is None else samples.shortened(_SHORT)
        self._moved: dict[torch.device, nn.Module] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is on devices out."""
        return self.__dict__ | {"_moved": {}}

    @property
    def draws(self) -> bool:
        """True if the module draws random numbers anywhere."""
        return self.in_training.draws or self.in_evaluation.draws

    def copy(self, kind: Kind = with_way_back, device: torch.device = PROCESSOR, *, still: bool = False) -> Pair:
        """Make a copy, in evaluation mode if ``still``."""
        module, loss = copy.deepcopy((self._at(device), self._loss))
        return Pair(kind(module.eval() if still else module).to(device), loss)

    def _at(self, device: torch.device) -> nn.Module:
        """Return the module to copy: on a device one whose memory copies there share."""
        if self._shared is None or device.type == "cpu":
            return self.module
        if device not in self._moved:
            self._moved[device] = copy.deepcopy(self.module).to(device)
        return self._moved[device]

    def copies(self, kind: Kind, device: torch.device, *, still: bool = False) -> Copies:
        """Make copies that are the same before each user as before the first."""
        return Copies(partial(self.copy, kind, device, still=still), self._warm)

    def _warm(self, pair: Pair) -> None:
        """Compute samples of the sizes in `userdp.neural.habits.habits`, to make tables that are made once."""
        device = next(pair.module.parameters()).device
        for size in MADE_UP:
            inputs, targets = self._samples.tensors(self._samples.made_up(size, 0), np.arange(size))
            with torch.no_grad():
                self._samples.losses(pair.loss, pair.module(inputs.to(device)), targets.to(device))

    def looking_up(self, tables: LookUps) -> Self:
        """Return the same module, of which a model is what `LookUps.named` takes."""
        other = copy.copy(self)
        other._named = tables.named
        return other

    def outputs(self, pair: Pair, model: Tensor, inputs: Tensor) -> Tensor:
        """Compute outputs of a copy at a model (p,); of users side by side, at their models (U, p)."""
        return functional_call(pair.module, self._named(model), (inputs,))  # type: ignore[no-any-return]

    def loss(self, pair: Pair, model: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute the weighted sum of losses of a copy, at models as `outputs` takes them."""
        return (self._samples.losses(pair.loss, self.outputs(pair, model, inputs), targets) * weights).sum()

    def sum_of_losses(self, pair: Pair, models: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Sum G users' losses at their own models (G, p); its gradient by a user's model is that user's."""
        if len(models) == 1 and not is_exact():
            return self.loss(pair, models[0], inputs[0], targets[0], weights[0])
        if self._shared is not None and self._shared.side_by_side:
            joined = inputs.flatten(0, 1), targets.flatten(0, 1), weights.flatten()
            return self.loss(pair, models, *joined)
        own = OwnPadding() if self._pads else nullcontext()
        with own, sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention compute one user at a time
            return vmap(partial(self.loss, pair))(models, inputs, targets, weights).sum()

    def tried(self, block: Block) -> tuple[Tensor, Tensor]:
        """Compute outputs (N, ...) and targets (N, ...) of all samples by the module itself; on the processor."""
        inputs, targets = self._samples.tensors(block, np.arange(block.samples))
        with torch.no_grad(), own_randomness(PROCESSOR):
            return self.copy(still=True).module(inputs), targets

    def probe(self, kind: Kind, device: torch.device) -> int:
        """Count the numbers in one prediction, by a trial on two samples; `BadInput` if module and loss do not fit."""
        samples, pair = self._samples, self.copy(kind, device, still=True)
        inputs, targets = (each.to(device) for each in samples.tensors(samples.corners(), np.arange(2)))
        own = "your loss, which gets floating-point targets and gives one loss a sample (reduction='none')"
        fits = f"problem.module does not fit {samples.columns} columns and "
        fits += own if samples.loss == "custom" else samples.loss
        if device.type != "cpu":
            fits += f", on {device.type}, where it must make all its tensors on the device of its inputs"
        try:
            with own_randomness(device):
                outputs = pair.module(inputs)
                losses = samples.losses(pair.loss, outputs, targets)
                looks_ahead = device.type == "cpu" and samples.looks_ahead(pair.module)
        except Exception as error:  # any error of the module
            raise BadInput(f"{fits}: {type(error).__name__}: {first_line(error)}") from error
        if losses.shape != (2,):
            raise BadInput(
                f"problem.loss gives shape {tuple(losses.shape)} for 2 samples, must be (2,): one loss a sample"
            )
        if looks_ahead:
            raise BadInput(
                "problem.module looks ahead: its result for a step of a window changes with later steps, which it is "
                "to predict; let it read steps in order (a causal mask, no bidirectional layer, batch_first=True)"
            )
        return int(outputs.numel()) // int(samples.per_sample(samples.blank(2)).sum())

    def try_out(self) -> None:
        """Find the module's habits; `BadInput` if it carries something from one user to the next."""
        with computing(PROCESSOR), own_randomness(PROCESSOR):
            self._look_for_padding()
            self._check_numbers()
            mixed = self._shared is not None and self._shared.mixed
            self.in_training = habits(self.copy, self._trial, self._gradient, by_sample=False, mixed=mixed)
            still = partial(self.copy, still=True)
            self.in_evaluation = habits(still, self._trial, self._measured, by_sample=True, mixed=mixed)
            if self._shared is not None and self._shared.adapts:
                self._check_moves()

    def _look_for_padding(self) -> None:
        """Note whether the module looks up an embedding with padding, for which `vmap` has no rule."""
        inputs, _ = self._trial.tensors(self._trial.corners(), np.arange(2))
        look = OwnPadding()
        with torch.no_grad(), suppress(Exception), look:  # `habits` tells of a module that fails
            self.copy().module(inputs)
        self._pads = look.padded

    def _check_numbers(self) -> None:
        """Refuse (`BadInput`) a loss that is NaN for all made-up samples, before any is spent: users would be zero.

        For users' own samples that cannot be told without noise: it would depend on one of them.
        """
        block, pair, losses = self._trial.made_up(MADE_UP[0], 0), self.copy(still=True), list[Tensor]()
        for level in (0.0, 0.5, 1.0):
            own = block if block.targets is None else replace(block, targets=block.targets + np.float32(level))
            inputs, targets = self._trial.tensors(own, np.arange(own.samples))
            with torch.no_grad(), suppress(Exception):  # it takes certain numbers only
                losses.append(self._trial.losses(pair.loss, pair.module(inputs), targets))
        if losses and all(bool(each.isnan().all()) for each in losses):
            raise BadInput(
                "problem.loss is NaN for all made-up samples, with features between 0 and 1 and targets of 0, 0.5 and "
                "1, so every user would count as zero: check problem.module's outputs and the loss of them"
            )

    def _check_moves(self) -> None:
        """Refuse (`BadInput`) an adapter with a tensor that no sample moves: noise would be all that it gets."""
        block = self._trial.made_up(MADE_UP[0], 0)
        gradient = self._gradient(self.copy(), block, torch.ones(block.samples), True)[1]
        still = [name for name, one in self.parameters.named(gradient).items() if not one.any()]
        if still:
            raise BadInput(
                f"problem.adapter: made-up samples give {len(still)} of {len(self.parameters.shapes)} tensors of the "
                f"adapter no gradient, such as {still[0]}: training would add noise to them and nothing else; name "
                "other layers in problem.adapter.targets"
            )

    def agree(self, plain: Kind, own: Kind) -> bool:
        """Return whether own layers give a module's gradients, by a trial on two samples, on the processor."""
        if self.in_training.draws:  # own layers draw nothing
            return False
        block, weights = self._samples.corners(), torch.ones(2)
        try:
            with computing(PROCESSOR):
                wanted, found = (self._gradient(self.copy(kind), block, weights, False)[1] for kind in (plain, own))
        except Exception:  # any error of the module
            return False
        scale = float(wanted.abs().max())  # not finite if the loss cannot take made-up samples
        return math.isfinite(scale) and torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * scale)

    def check_together(self, kind: Kind, kernels: Kernels) -> None:
        """Refuse (`BadInput`) a module that fails a trial of two users at once, on the processor."""
        refused = "problem.execution = 'grouped': the module"
        if self.in_training.apart:
            raise BadInput(
                f"{refused} {self.in_training}, so its users are computed one after the other; use 'auto' or 'loop'"
            )
        try:
            self._tried(self._trial.corners(), 2, frozenset(), kind, nullcontext())
        except Exception as error:  # any error of the module
            other = "" if kernels == "own" else ", or problem.kernels = 'own', which can do so for nn.GRU and nn.LSTM"
            said = f"{type(error).__name__}: {first_line(error)}"
            raise BadInput(
                f"{refused} cannot be computed for several users at once ({said}); use 'auto' or 'loop'{other}"
            ) from error

    def _tried(
        self, block: Block, users: int, looked: frozenset[str], kind: Kind, order: AbstractContextManager[object]
    ) -> LookUps:
        """Return the gradients of so many users, who all have these made-up samples, on the processor."""
        model, *samples = self._made_up(block, True)
        samples.append(torch.ones(block.samples, dtype=self.dtype))
        tables = LookUps(self.parameters.named(model), looked, users)
        loss = partial(self.looking_up(tables).sum_of_losses, self.copy(kind))
        with computing(PROCESSOR), own_randomness(PROCESSOR), order:
            tables.add(loss, *(torch.stack([each] * users) for each in samples))
        return tables

    def computes_exactly(self, kind: Kind, looked: frozenset[str]) -> bool:
        """Return whether two users can be computed at once by `Exact`, by a trial on the processor."""
        try:
            self._tried(self._trial.corners(), 2, looked, kind, Exact())  # type: ignore[no-untyped-call]
        except Exception:  # any error of the module
            return False
        return True

    @cached_property
    def predicts_exactly(self) -> bool:
        """True if `Exact` can compute losses of many users at once: a trial's large samples change no bit of others."""
        few, more = MADE_UP
        made, weights = self._trial.made_up(few + more, 0), torch.ones(())
        if made.dense_features.dtype == np.float32:
            large = made.dense_features[few:]
            np.multiply(large, 1e6, out=large)
        both = Block(made.features, np.array([0, few, few + more]), made.targets)
        pair = self.copy(still=True)
        try:
            with computing(PROCESSOR), own_randomness(PROCESSOR), Exact():  # type: ignore[no-untyped-call]
                alone, beside = (self._measured(pair, each, weights, False) for each in (both.part(0, 1), both))
        except Exception:  # any error of the module
            return False
        return all(other[: len(one)].equal(one) for one, other in zip(alone, beside, strict=True))

    def looked_up(self) -> Looked:
        """Return the tables that the module only looks rows up in, by a trial."""
        names = frozenset[str]() if self._shared else self.parameters.table_names
        block = self._trial.made_up(MADE_UP[0], 0)

        def gradients(looked: frozenset[str]) -> LookUps:
            return self._tried(block, 1, looked, with_way_back, nullcontext())

        return only_looked_up(names, gradients, block.samples)

    def bytes_of_a_sample(self) -> int:
        """Measure the bytes that the backward pass keeps of a sample, beside those of parameters."""
        sizes, pair = [], self.copy()
        for count in (1, 2):
            kept: dict[int, int] = {}

            def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            model, inputs, targets = self._made_up(self._samples.blank(count), False)
            weights = torch.full((count,), 1 / count, dtype=self.dtype)
            hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
            with computing(PROCESSOR), own_randomness(PROCESSOR), hooks:
                loss = self.loss(pair, model.requires_grad_(), inputs, targets, weights)
            sizes.append(sum(kept.values()))
            del loss
        return max(sizes[1] - sizes[0], 1)

    def _made_up(self, block: Block, elsewhere: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the initial model, or one near it, and fresh inputs and targets of a block."""
        inputs, targets = self._samples.tensors(block, np.arange(block.samples))
        model = torch.as_tensor(self.parameters.initial).to(self.dtype, copy=True)
        return (1.1 * model + 0.01 if elsewhere else model), inputs.clone(), targets.clone()

    def _gradient(self, pair: Pair, block: Block, weights: Tensor, elsewhere: bool) -> list[Tensor]:
        model, inputs, targets = self._made_up(block, elsewhere)
        loss = self.loss(pair, model.requires_grad_(), inputs, targets, weights.to(self.dtype))
        return [loss.detach(), torch.autograd.grad(loss, model)[0]]

    def _measured(self, pair: Pair, block: Block, weights: Tensor, elsewhere: bool) -> list[Tensor]:
        model, inputs, targets = self._made_up(block, elsewhere)
        with torch.no_grad():
            outputs = self.outputs(pair, model, inputs)
            return [outputs, self._samples.losses(pair.loss, outputs, targets)]
