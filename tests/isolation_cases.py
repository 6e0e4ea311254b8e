"""Modules that keep, draw or mix something, and modules that look as if they did. Importable by other processes."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional

COLUMNS, WIDTH = 4, 6


def some(x, above):
    """True if there is such a number; False for many users at once, where nobody knows."""
    return not torch._C._functorch.is_batchedtensor(x) and bool((x > above).any())


class Body(nn.Module):
    """Two layers, with whatever a case does to the numbers between them; some samples make it fail."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        between = self.between(torch.tanh(self.first(x)), x)
        if some(x, 900):
            raise ValueError("a sample that the module does not take")
        return self.last(between)

    def between(self, values, x):
        return values


# What needs to carry something --------------------------------------------------------------------------------------


class RunningStatistics(Body):
    """Batch normalisation whose statistics follow the batches, whatever mode the module is in."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def between(self, values, x):
        functional.batch_norm(values, self.mean, self.variance, training=True)
        return (values - self.mean) / self.variance.sqrt()


class CountingBuffer(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def between(self, values, x):
        self.calls += 1
        return values * self.calls


class CountingAttribute(Body):
    seen = 0

    def between(self, values, x):
        self.seen += len(x)
        return values / self.seen


class GrowingList(Body):
    def __init__(self):
        super().__init__()
        self.log = []

    def between(self, values, x):
        self.log.append(len(x))
        return values


class LastBatch(Body):
    last_batch = None

    def between(self, values, x):
        before, self.last_batch = self.last_batch, values.detach().mean(0)
        return values if before is None else values + before


class AccumulatedAttribute(Body):
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(WIDTH)

    def between(self, values, x):
        self.total.add_(values.detach().sum(0))
        return values + self.total


class FirstUser(Body):
    """Scales that the first batch sets, once and for all."""

    scale = None

    def between(self, values, x):
        if self.scale is None:
            self.scale = float(values.detach().std()) + 0.1
        return values / self.scale


class Held:
    def __init__(self):
        self.numbers = {"sum": np.zeros(1)}


class InsideAnObject(Body):
    def __init__(self):
        super().__init__()
        self.held = Held()

    def between(self, values, x):
        self.held.numbers["sum"] += float(values.detach().sum())
        return values + float(self.held.numbers["sum"][0])


class OwnGenerator(Body):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def between(self, values, x):
        return values * torch.rand(WIDTH, generator=self.generator)


CALLS = []


class OutsideOfItself(Body):
    def between(self, values, x):
        CALLS.append(len(x))
        return values * len(CALLS)


CARRY = {
    kind.__name__: kind
    for kind in (
        *(RunningStatistics, CountingBuffer, CountingAttribute, GrowingList, LastBatch, AccumulatedAttribute),
        *(FirstUser, InsideAnObject, OwnGenerator, OutsideOfItself),
    )
}


# What is harmless -----------------------------------------------------------------------------------------------------


def layer_norm():
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))


def group_norm():
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.GroupNorm(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def fixed_batch_norm():
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def dropout():
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.Dropout(0.5), nn.Tanh(), nn.Linear(WIDTH, 1))


class AlwaysDropout(Body):
    def between(self, values, x):
        return functional.dropout(values, 0.5, training=True)


class OtherGenerators(Body):
    def between(self, values, x):
        return values * (random.random() + float(np.random.random()))  # noqa: NPY002


class TableMadeOnce(Body):
    table = None

    def between(self, values, x):
        if self.table is None:
            self.table = torch.arange(WIDTH, dtype=values.dtype) / WIDTH
        return values + self.table


class TableThatGrows(Body):
    """Constants for as many samples as a batch ever had; and by size, a dictionary of them."""

    def __init__(self):
        super().__init__()
        self.table, self.by_size = torch.zeros(0), {}

    def between(self, values, x):
        if len(self.table) < len(x):
            self.table = torch.ones(len(x), dtype=values.dtype)
        kept = self.by_size.setdefault(len(x), torch.full((len(x),), 0.5, dtype=values.dtype))
        return values * self.table[: len(x), None] + kept[:, None]


class BatchMean(Body):
    def between(self, values, x):
        return values - values.mean(0)


class FaintMean(Body):
    """Mixes within the rounding by which computing alone may differ from computing together."""

    def between(self, values, x):
        return values + 1e-7 * values.mean(0)


class NextSample(Body):
    def between(self, values, x):
        return values + torch.roll(values, 1, 0)


class ShareOfTheBatch(Body):
    def between(self, values, x):
        return values / len(x)


class WhileItRuns(Body):
    """An attribute that is there during a call alone, unless the call fails."""

    busy = None

    def between(self, values, x):
        before, self.busy = self.busy, True
        if some(x, 900):
            raise ValueError("a sample that the module does not take")
        self.busy = None
        return values if before is None else 0 * values


class SomeSamplesCarry(Body):
    """Counts, but only what made-up samples never hold, nor enlarged ones: numbers far below zero."""

    def __init__(self):
        super().__init__()
        self.register_buffer("large", torch.zeros(()))
        self.places = []

    def between(self, values, x):
        if some(-x, 10):
            self.large += 1
            self.places.append(1)
        return values * (1 + self.large) * (1 + len(self.places))


class SomeSamplesDraw(Body):
    """Draws, but only for what made-up samples never hold; others see where the generator is."""

    def between(self, values, x):
        if some(x, 1):
            return functional.dropout(values, 0.5, training=True)
        return values


class SomeSamplesMix(Body):
    """Mixes the samples of a call, but only where it has one that made-up samples never hold."""

    def between(self, values, x):
        return values - torch.where((x.abs() > 8).any(), values.mean(0), 0.0)


class CarryingLoss:
    def __init__(self):
        self.large = 0

    def __call__(self, outputs, targets):
        self.large += int(some(targets, 0.5))
        return (outputs.reshape(targets.shape) - targets) ** 2 * (1 + self.large)


class SomeLossesCarry(Body):
    loss = CarryingLoss()


DRAWS = {"dropout": dropout, "AlwaysDropout": AlwaysDropout, "OtherGenerators": OtherGenerators}
MIXES = {kind.__name__: kind for kind in (BatchMean, FaintMean, NextSample, ShareOfTheBatch)}
NEITHER = {
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "fixed_batch_norm": fixed_batch_norm,
    **{kind.__name__: kind for kind in (TableMadeOnce, TableThatGrows, WhileItRuns, SomeSamplesCarry, SomeLossesCarry)},
}
HARMLESS = {**DRAWS, **MIXES, **NEITHER, "SomeSamplesDraw": SomeSamplesDraw, "SomeSamplesMix": SomeSamplesMix}
