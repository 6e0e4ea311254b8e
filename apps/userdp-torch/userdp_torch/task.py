"""The network, its training, and a user's pictures: drawn in a simulation, read from a file in a deployment.

Nothing here knows of privacy: these are the functions of an ordinary Flower app.
"""

import numpy as np
import torch
from flwr.app import Context
from torch import nn
from torch.nn.functional import cross_entropy


def make_model() -> nn.Module:
    """Build a small network. Groups are normalised, because statistics of batches would use up part of the clip."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def draw_pictures(seed: int, examples: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Draw 8 x 8 pictures, (examples, 1, 8, 8), and labels: noise, and a bright column (label 0) or row (label 1)."""
    rng = np.random.default_rng(seed)
    pictures, labels = rng.normal(0, 0.3, (examples, 1, 8, 8)), rng.integers(0, 2, examples)
    for picture, label, line in zip(pictures, labels, rng.integers(1, 7, examples), strict=True):
        picture[0, *((line, slice(None)) if label else (slice(None), line))] += 1.5
    return pictures.astype(np.float32), labels


def load_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this user's pictures and labels, by the keys of the SuperNode's node-config."""
    config = context.node_config
    if "partition-id" in config and "num-partitions" in config:
        pictures, labels = draw_pictures(seed=1 + int(config["partition-id"]))
    else:
        with np.load(str(config["data-path"]), allow_pickle=False) as stored:
            pictures, labels = stored["pictures"], stored["labels"]
    return torch.from_numpy(pictures), torch.from_numpy(labels)


def train(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], epochs: int, learning_rate: float) -> float:
    """Train in place with full batches, and return the last loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    pictures, labels = data
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = cross_entropy(model(pictures), labels)
        loss.backward()
        optimiser.step()
    return loss.item()


def accuracy(model: nn.Module) -> float:
    """Return the share of 400 pictures of the server's own, which belong to no user, that the model gets right."""
    pictures, labels = draw_pictures(seed=0, examples=400)
    with torch.no_grad():
        return float((model(torch.from_numpy(pictures)).argmax(1).numpy() == labels).mean())
