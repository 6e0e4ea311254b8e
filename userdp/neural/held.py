"""Some users' samples as a module sees them, asked for by their positions among each user's own."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.data.block import Block
from userdp.neural.samples import Samples


class Held:
    """Samples of users of a block: on the device from the start where they are few, else each time they are asked for.

    Args:
        samples: what the module sees of them.
        block: where they are.
        users: (G,) whose.
        device: where they are wanted.
        most: samples that may be held on it.
    """

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
        """Inputs (G, m, ...) and targets (G, m, ...) on the device, of each user's samples at ``own`` (G, m)."""
        if self._tensors is None:
            return self._brought(self._first + own)
        places = torch.as_tensor(self._first + own).to(self._device)
        inputs, targets = self._tensors
        return inputs[places], targets[places]
