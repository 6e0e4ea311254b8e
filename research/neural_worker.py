"""The common part of the workers of research/neural.py: the users of a model, from the command line.

Needs torch and numpy alone, for it runs in the environment of each tool.
"""

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Work:
    """A model and its data.

    Attributes:
        model: a name of `neural_models.MODELS`.
        data: a file of `neural_data`.
    """

    model: str
    data: Path

    def users(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of each user, as tensors, made once."""
        inputs, targets, offsets = self.arrays()
        borders = itertools.pairwise(offsets)
        return [(torch.from_numpy(inputs[a:b]), torch.from_numpy(targets[a:b])) for a, b in borders]

    def arrays(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Inputs (N, k), targets (N, T) and offsets (U + 1,)."""
        with np.load(self.data) as file:
            return file["inputs"], file["targets"], file["offsets"]


def asked() -> tuple[Work, Path]:
    """The work, and the file for the round's sum, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("total", type=Path)
    arguments = parser.parse_args()
    return Work(arguments.model, arguments.data), arguments.total
