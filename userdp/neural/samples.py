"""A module's view of a block's samples: its inputs and targets."""

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.data.block import Block, Features
from userdp.errors import BadInput
from userdp.neural.losses import CLASSES, SampleLoss
from userdp.problems import bounds


@dataclass(frozen=True)
class Rows:
    """Samples that are rows of numbers, or of integer codes.

    ``shape`` is that of a sample's columns, such as (1, 28, 28), or None for a row; ``levels`` is the number of codes
    of each column, or None for numbers. Without ``has_targets`` the features are the targets. ``loss`` is a name.
    """

    columns: int
    dtype: torch.dtype
    shape: tuple[int, ...] | None = None
    levels: tuple[int, ...] | None = None
    has_targets: bool = True
    loss: str = "custom"

    def __post_init__(self) -> None:
        if self.shape is not None and int(np.prod(self.shape)) != self.columns:
            raise BadInput(
                f"problem.input_shape = {list(self.shape)} holds {int(np.prod(self.shape))} numbers, and samples have "
                f"{self.columns} columns: change one of them"
            )
        if self.levels is not None and len(self.levels) != self.columns:
            raise BadInput(f"{len(self.levels)} columns of codes are declared, and samples have {self.columns}")
        if self.levels is not None and not self.has_targets:
            raise BadInput("codes cannot be their own targets: name the target column in the data")

    def tensors(self, block: Block, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples at ``rows`` (...)."""
        features = torch.as_tensor(block.dense_features[rows])
        # A copy, because torch places its own memory alike for everybody.
        inputs = features.long() if self.levels is not None else features.to(self.dtype, copy=True)
        if self.shape is not None:
            inputs = inputs.reshape(*rows.shape, *self.shape)
        return inputs, torch.as_tensor(bounds.targets_of(block)[rows]).to(self.dtype) if self.has_targets else inputs

    def blank(self, count: int) -> Block:
        """Make a block of one user with so many samples of zeros, or of the last codes."""
        features: Features = np.zeros((count, self.columns), dtype=np.float32)
        if self.levels is not None:
            features = np.tile(np.array(self.levels, dtype=np.int32) - 1, (count, 1))
        targets = np.zeros(count, dtype=np.float32) if self.has_targets else None
        return Block(features, np.array([0, count], dtype=np.int64), targets)

    def corners(self) -> Block:
        """Make a block of one user with two samples, of the first codes and the last; zeros if columns are numbers.

        A module that lacks a code fails on the last one. On a GPU such a failure would end the process, and with it
        everybody's training, so it must show before there are data.
        """
        block = self.blank(2)
        block.dense_features[0] = 0
        return block

    def made_up(self, count: int, seed: int) -> Block:
        """Make a block of one user with so many samples between zero and one, or of random codes; targets are zero."""
        block, random = self.blank(count), np.random.default_rng(seed)
        shape = count, self.columns
        drawn = random.random(shape) if self.levels is None else random.integers(0, self.levels, shape)
        block.dense_features[:] = drawn
        return block

    def shortened(self, most: int) -> Self:
        """Return samples of at most so many codes, for modules that take any number of them; others stay."""
        return self if self.levels is None else replace(self, columns=len(short := self.levels[:most]), levels=short)

    def looks_ahead(self, module: nn.Module) -> bool:
        """Return False: rows have no steps."""
        return False

    def losses(self, loss: SampleLoss, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute (N,) one loss a sample."""
        return loss(outputs, targets)

    def predicted(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return all values."""
        return values

    def bound(self, block: Block, outputs: int) -> tuple[Block, int]:
        """Clip targets of "bce_with_logits" into [0, 1]; set aside samples not finite, of unknown classes or codes."""
        if self.levels is not None:
            block = bounds.coded(block, self.columns, np.array(self.levels))
        else:
            bounds.check_columns(block, self.columns)
        block = bounds.set_aside_not_finite(block, targets=self.has_targets)
        if self.loss in CLASSES:
            return bounds.set_aside(block, bounds.without_class(block, outputs)), 0
        if self.loss != "bce_with_logits":
            return block, 0
        targets, clipped = bounds.clip_targets(block, 0.0, 1.0)
        return bounds.rebuilt(block, block.features, targets), bounds.counted(block, clipped)

    def per_sample(self, block: Block) -> NDArray[np.int64]:
        """Return (N,) the number of predictions of each sample."""
        return np.ones(block.samples, dtype=np.int64)


@dataclass(frozen=True)
class Windows:
    """Samples that are windows of L steps: at every step the last of C channels is predicted from earlier steps.

    A module gets whole numbers: (N, L, C), or (N, L) if the predicted channel is the only one. A code c arrives as c +
    1, and 0 is padding: after the sequence's end, and before its first step. The predicted channel arrives one step
    late and the others are those of the step, so that no module that reads its steps in order can see its targets. A
    module that does not is refused, as far as that shows (`looks_ahead`). ``levels`` is the number of codes of each
    channel.
    """

    steps: int
    levels: tuple[int, ...]
    loss: str = "custom"

    @cached_property
    def columns(self) -> int:
        """The columns of a sample, ``L C``."""
        return self.steps * len(self.levels)

    @property
    def _classes(self) -> int:
        """The codes of the predicted channel that are targets: 0 and 1 for a binary loss, else all."""
        return 2 if self.loss == "bce_with_logits" else self.levels[-1]

    def tensors(self, block: Block, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs, and the predicted channel (..., L): -1 for padding."""
        codes = torch.as_tensor(block.dense_features[rows]).long().reshape(*rows.shape, -1, len(self.levels))
        targets = codes[..., -1].clone()
        inputs = codes + 1
        inputs[..., 1:, -1] = codes[..., :-1, -1] + 1
        inputs[..., 0, -1] = 0
        return (inputs.squeeze(-1) if len(self.levels) == 1 else inputs), targets.where(targets < self._classes, -1)

    def blank(self, count: int) -> Block:
        """Make a block of one user with so many windows of the last codes."""
        last = np.array([*self.levels[:-1], self._classes], dtype=np.int32) - 1
        return self._block(np.tile(last, (count, self.steps)))

    def made_up(self, count: int, seed: int) -> Block:
        """Make a block of one user with so many windows of random codes; the last one ends early."""
        levels = *self.levels[:-1], self._classes
        codes = np.random.default_rng(seed).integers(0, levels, (count, self.steps, len(levels)), dtype=np.int32)
        codes[-1, (self.steps + 1) // 2 :] = -1
        return self._block(codes.reshape(count, -1))

    def _block(self, features: NDArray[np.int32]) -> Block:
        return Block(features, np.array([0, len(features)], dtype=np.int64))

    def shortened(self, most: int) -> Self:
        """Return windows of at most so many steps, for modules that take any number of them."""
        return replace(self, steps=min(self.steps, most))

    def looks_ahead(self, module: nn.Module) -> bool:
        """Return whether a module's result for a step changes with later steps of made-up windows."""
        half = self.steps // 2
        codes = np.random.default_rng(0).integers(0, self.levels, (self.steps, len(self.levels)), dtype=np.int32)
        codes[0] = np.array(self.levels) - 1
        other = codes.copy()
        other[half:] = (codes[half:] + 1) % np.array(self.levels)
        inputs, _ = self.tensors(self._block(np.stack([codes.ravel(), other.ravel()])), np.arange(2))
        with torch.no_grad():
            one, two = module(inputs)[:, :half]
        return not torch.allclose(one, two, rtol=1e-3, atol=1e-5)

    def corners(self) -> Block:
        """Make a block of one user with two windows: of the first codes, and of the last ones; see `Rows.corners`."""
        block = self.blank(2)
        block.dense_features[:] = [np.zeros(self.columns), np.tile(np.array(self.levels) - 1, self.steps)]
        return block

    def losses(self, loss: SampleLoss, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute (N,) means over the steps that are no padding."""
        there = targets >= 0
        each = loss(outputs, targets.clamp(min=0))
        return each.where(there, each.new_zeros(())).sum(-1) / there.sum(-1).clamp(min=1)

    def predicted(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return (S, ...) the values at steps that are no padding."""
        return values[targets >= 0]

    def bound(self, block: Block, outputs: int) -> tuple[Block, int]:
        """Set aside windows with nothing to predict, or unknown codes; `BadInput` for columns that are no codes."""
        bounds.check_columns(block, self.columns, np.integer)
        codes = cast(NDArray[np.int32], block.dense_features).reshape(block.samples, self.steps, -1)
        strange = np.any((codes < -1) | (codes >= np.array(self.levels)), axis=(1, 2))
        return bounds.set_aside(block, strange | (self._there(codes) == 0)), 0

    def _there(self, codes: NDArray[np.int32]) -> NDArray[np.int64]:
        targets = codes[:, :, -1]
        return np.asarray(np.count_nonzero((targets >= 0) & (targets < self._classes), axis=1), dtype=np.int64)

    def per_sample(self, block: Block) -> NDArray[np.int64]:
        """Return (N,) the number of predicted steps of each sample."""
        return self._there(cast(NDArray[np.int32], block.dense_features).reshape(block.samples, self.steps, -1))


Samples = Rows | Windows
"""The kinds of samples."""


class Held:
    """Samples of users (G,) of a block, held on the device if they are at most ``most``, else brought on each use."""

    def __init__(
        self, samples: Samples, block: Block, users: NDArray[np.int64], device: torch.device, most: int
    ) -> None:
        self._samples, self._block, self._device = samples, block, device
        self._first = block.offsets[users][:, None]
        self._tensors: tuple[Tensor, Tensor] | None = None
        sizes = block.sizes[users]
        if sizes.sum() <= most:
            begin = np.cumsum(sizes) - sizes
            rows = np.repeat(self._first[:, 0] - begin, sizes) + np.arange(sizes.sum())
            self._tensors, self._first = self._brought(rows), begin[:, None]

    def _brought(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        inputs, targets = self._samples.tensors(self._block, rows)
        return inputs.to(self._device), targets.to(self._device)

    def at(self, own: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs (G, m, ...) and targets (G, m, ...) on the device, of each user's samples at ``own`` (G, m)."""
        if self._tensors is None:
            return self._brought(self._first + own)
        places = torch.as_tensor(self._first + own).to(self._device)
        inputs, targets = self._tensors
        return inputs[places], targets[places]


def shape_of(given: Several[int] | None) -> tuple[int, ...] | None:
    """Return the shape as a tuple, or None; `BadInput` refuses a number below one."""
    if given is None:
        return None
    if not given or min(given) < 1:
        raise BadInput(f"problem.input_shape = {list(given)}: must be whole numbers, one or more each")
    return tuple(given)
