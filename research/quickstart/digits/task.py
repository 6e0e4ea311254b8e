"""The network, the data of a writer, training and testing."""

from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

BATCH = 16


class Net(nn.Module):
    """A convolution and a linear layer: 3,098 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 5)
        self.pool = nn.MaxPool2d(4)
        self.linear = nn.Linear(288, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (B, 10) scores of (B, 1, 28, 28) images."""
        return self.linear(self.pool(torch.relu(self.convolution(images))).flatten(1))


@cache
def digits(path: str, part: str) -> dict[int, TensorDataset]:
    """Return the digits of each writer of one part, "train" or "test"."""
    table = pd.read_parquet(path, filters=[("part", "==", part)])
    return {int(writer): _tensors(own) for writer, own in table.groupby("writer")}


def _tensors(table: pd.DataFrame) -> TensorDataset:
    pixels = np.frombuffer(b"".join(table["pixels"]), dtype=np.uint8).reshape(-1, 1, 28, 28)
    images = torch.tensor((pixels / 255 - 0.13) / 0.31, dtype=torch.float32)
    return TensorDataset(images, torch.tensor(table["digit"].to_numpy()))


def load_writer(path: str, partition: int) -> TensorDataset:
    """Return the digits of one writer, who is a partition."""
    writers = digits(path, "train")
    return writers[sorted(writers)[partition]]


def train(net: nn.Module, data: TensorDataset, lr: float) -> float:
    """Train for an epoch, and return the loss of the last batch."""
    images, labels = data.tensors
    optimiser, loss = torch.optim.SGD(net.parameters(), lr=lr), torch.tensor(0.0)
    for batch in torch.randperm(len(data)).split(BATCH):
        optimiser.zero_grad()
        loss = cross_entropy(net(images[batch]), labels[batch])
        loss.backward()
        optimiser.step()
    return loss.item()


def accuracy(net: nn.Module, path: str) -> float:
    """Return the share of the test writers' digits that the network reads."""
    writers = digits(path, "test").values()
    with torch.no_grad():
        right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in (own.tensors for own in writers))
    return right / sum(len(own) for own in writers)
