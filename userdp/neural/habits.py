"""Habits of a module beyond computing each sample by itself, found on made-up samples before any data are read.

Their importance for privacy: `userdp.neural.isolation`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.neural.chance import drawn_from, seed_from
from userdp.neural.contents import Marks, described, difference
from userdp.neural.isolation import Pair
from userdp.neural.samples import Samples

PROCESSOR = torch.device("cpu")  # The device of trials.
MADE_UP = _FEW, _MORE = 3, 5  # Samples of two made-up users.
_LARGE = 1e2, 1e6  # Made-up numbers are between zero and one, and times these.
# Differences that rounding may cause in calls of other sizes, relative to each result, and to the largest: of float32,
# and of bfloat16, which keeps eight bits.
_ALIKE, _ALIKE_MIXED = (1e-3, 1e-6), (3e-2, 3e-2)


@dataclass(frozen=True)
class Habits:
    """The habits of a module: it draws random numbers; it mixes samples, so that they change each other's results."""

    draws: bool
    mixes: bool

    @property
    def apart(self) -> bool:
        """True if a call must hold samples of one user alone."""
        return self.draws or self.mixes

    def __str__(self) -> str:
        return (
            "draws random numbers" if self.draws else "mixes the samples of a batch" if self.mixes else "does neither"
        )


Compute = Callable[[Pair, Block, Tensor, bool], list[Tensor]]
"""The module's results on weighted samples, at the first model or another one: a gradient, or numbers per sample."""


def habits(
    make: Callable[[], Pair], samples: Samples, compute: Compute, *, by_sample: bool, mixed: bool = False
) -> Habits:
    """Find a module's habits by a trial on made-up users A, B, A, B of unequal sizes, one that fails among them.

    Call it within `userdp.neural.chance.own_randomness`. ``make`` makes a copy of the module as the factory made it.
    ``by_sample`` says that results are numbers of each sample, rather than one gradient, ``mixed`` that the module
    computes in bfloat16. Results for A must not depend
    on earlier users, and the module's contents must not depend on anybody's numbers, else `BadInput`. A table that is
    made once, or grows to the largest size, is fine.
    """
    trial = _Trial(make, samples, compute)
    first, more, other, others = map(trial.user, (_FEW, _MORE, _FEW, _MORE), range(4))
    pair = make()
    once = [trial.run(pair, first), trial.run(pair, more, elsewhere=True)]
    held = described(pair)
    again = [trial.run(pair, first), trial.run(pair, more, elsewhere=True)]
    moved = difference(held, described(pair))
    pair = make()
    trial.run(pair, other, elsewhere=True)
    trial.run(pair, others)
    moved = difference(held, described(pair)) if moved is None else moved
    if moved is not None:
        raise BadInput(_carries(f"{moved!r} changes"))
    marks = Marks(pair)
    trial.fail(pair, first)
    pair = pair if marks.hold() else make()
    again += [trial.run(pair, first), trial.run(pair, more, elsewhere=True)]
    if not all(map(_same, once * 2, again)):
        raise BadInput(_carries("equal samples do not give equal results"))
    alike = _ALIKE_MIXED if mixed else _ALIKE
    return Habits(trial.drew, not trial.drew and trial.mixes(pair, first, by_sample, *alike))


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0]


def _carries(what: str) -> str:
    return (
        f"problem.module carries something from one computation to the next ({what}), which would leak one user's data "
        "to the next: compute it anew in forward; if a layer does so in training mode alone, call eval() on that layer "
        "in the factory"
    )


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return [each.cpu().numpy().tobytes() for each in one] == [each.cpu().numpy().tobytes() for each in other]


class _Trial:
    """Made-up users of a module; ``drew`` says whether it drew random numbers so far."""

    def __init__(self, make: Callable[[], Pair], samples: Samples, compute: Compute) -> None:
        self._samples, self._compute, self.drew, self._any_numbers = samples, compute, False, True
        try:
            self.run(make(), self.user(_MORE, 1))
        except BadInput:  # it takes certain numbers only; zeros were tried before
            self._any_numbers = False

    def user(self, count: int, seed: int) -> Block:
        return self._samples.made_up(count, seed) if self._any_numbers else self._samples.blank(count)

    def run(self, pair: Pair, block: Block, weights: Tensor | None = None, *, elsewhere: bool = False) -> list[Tensor]:
        """Compute a block with its own coins; `BadInput` if the module fails."""
        if weights is None:
            weights = torch.full((block.samples,), 1 / block.samples, dtype=torch.float64)
        seed_from(PROCESSOR, repr((block.samples, elsewhere)).encode())
        before = drawn_from(PROCESSOR)
        try:
            return self._compute(pair, block, weights, elsewhere)
        except Exception as error:  # any error of the module
            said = f"{type(error).__name__}: {first_line(error)}"
            raise BadInput(f"problem.module fails on made-up samples: {said}") from error
        finally:
            self.drew |= drawn_from(PROCESSOR) != before

    def fail(self, pair: Pair, block: Block) -> None:
        """Have the module compute samples that raise in most modules, and are not finite in others."""
        inputs, _ = self._samples.tensors(block, np.arange(block.samples))
        with torch.no_grad():
            for broken in (inputs[..., :0], inputs * torch.nan if inputs.is_floating_point() else inputs[:0]):
                with suppress(Exception):
                    pair.module(broken)

    def mixes(self, pair: Pair, own: Block, by_sample: bool, alike: float, alike_to_all: float) -> bool:
        """Return whether the results of ``own`` change with samples before and behind it in the same call.

        Where results are numbers of each sample, which many users share a call for, others are tried at large, too.
        """
        count, found = own.samples, []
        others = [[self.user(_MORE, seed), self.user(_MORE, seed + 1)] for seed in (10, 20)]
        weights = torch.zeros(2 * _MORE + count, dtype=torch.float64)
        weights[_MORE : _MORE + count] = 1 / count
        try:
            found = [self.run(pair, _joined(first, own, last), weights) for first, last in others]
            alone = self.run(pair, own)
            if by_sample:
                with suppress(BadInput):  # it takes certain numbers only, which tells nothing
                    for times in _LARGE:
                        joined = _joined(_enlarged(others[0][0], times), own, others[0][1])
                        found.append(self.run(pair, joined, weights))
                found = [[each.reshape(len(weights), -1)[_MORE : _MORE + count] for each in one] for one in found]
                alone = [each.reshape(count, -1) for each in alone]
        except (BadInput, RuntimeError):  # it takes no other sizes
            return True
        exact, close = partial(_near, rtol=0.0, atol=0.0), partial(_near, rtol=alike, atol=alike_to_all)
        return not (all(all(map(exact, found[0], one)) for one in found) and all(map(close, found[0], alone)))


def _near(one: Tensor, other: Tensor, *, rtol: float, atol: float) -> bool:
    scale = float(torch.nan_to_num(other).abs().max()) if other.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol * scale, equal_nan=True)


def _enlarged(block: Block, times: float) -> Block:
    """Return a block with its numbers multiplied; codes stay."""
    features = block.dense_features
    return replace(block, features=np.multiply(features, np.float32(times))) if features.dtype == np.float32 else block


def _joined(*blocks: Block) -> Block:
    features = np.concatenate([block.dense_features for block in blocks])
    targets = [block.targets for block in blocks if block.targets is not None]
    return Block(features, np.array([0, len(features)]), np.concatenate(targets) if targets else None)
