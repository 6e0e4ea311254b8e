"""The round of research/peers.py: its users, its loss and its numbers. Needs numpy alone."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLIP, RIDGE, NOISE = 0.05, 0.05, 1e-3
"""l2 norm that users' gradients are clipped to, ridge of the loss, standard deviation of the noise on their mean."""


@dataclass(frozen=True)
class Work:
    """Users who hold m samples each.

    Attributes:
        features: (U, m, d) float32.
        targets: (U, m) float32, 0 or 1.
        model: (d,) float64, at which gradients are taken.
    """

    features: NDArray[np.float32]
    targets: NDArray[np.float32]
    model: NDArray[np.float64]


def asked() -> tuple[Work, Path]:
    """The work, and the file for the round's sum, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("total", type=Path)
    arguments = parser.parse_args()
    with np.load(arguments.data) as file:
        return Work(file["features"], file["targets"], file["model"]), arguments.total


def clipped_gradient(x: NDArray[np.float32], features: NDArray[np.float32], targets: NDArray[np.float32]) -> NDArray:
    """(d,) one user's average gradient, clipped."""
    slopes = 1 / (1 + np.exp(-(features @ x))) - targets
    gradient = slopes @ features / len(targets) + np.float32(RIDGE) * x
    return gradient * min(1.0, CLIP / max(float(np.linalg.norm(gradient)), 1e-30))
