"""Gradients of tables that a module only looks rows up in, such as nn.Embedding's: of the rows looked up, no others.

Gain: a user's gradient takes time and memory by the rows that its samples name, not by the table's; a round takes less
than half as long as torch's loop over users with sparse gradients (`benchmarks/embeddings.py`).

A module gets each such table as a `LookedUp`, which answers torch's embedding and embedding_bag, and refuses any other
use: a table tied to an output layer computes with all its rows. The gradient of an answer, beside the codes it is for,
is all that the backward pass leaves of a table; a code that comes again adds to its row.

Shapes: G users of a call, p parameters, w entries of a table's row.

*Formal guarantees.* *Claim.* `LookUps.rows` are the gradients (G, p) that torch computes for the whole tables, up to
rounding. They add nothing in an order that another user changes, so within `userdp.arrays.fixed_order` a user's row
follows to the last bit from that user's samples if the whole tables' does (`userdp.neural.engine`), and noise may be
secure. *Why.* A function of looked up rows has a gradient by the table that is the sum, over the looks, of its
gradients by the rows that they gave (the chain rule), and no other use gets past `LookedUp`: it raises, and the user
counts as zero. Each look's number has its user's place, whether the codes are the user's or the module's own. A row's
sum is in an order that the user's own looks determine (`userdp.arrays.sparse_rows.summed_rows`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from userdp.arrays.sparse_rows import Sparse, sparse_rows, summed_rows
from userdp.arrays.types import Array
from userdp.neural.kernels.padding import OwnPadding

_Look = tuple[NDArray[np.int64], Array]  # Codes (G, k), and the gradients (G, k, w) of their rows.
_HARMLESS = frozenset(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")) | {
    Tensor.size,
    Tensor.__len__,
}
_WORTH = 4  # Sparse rows take half as much again as dense ones, and more time for each number.


class UsedOtherwise(Exception):
    """The module computes with a table, rather than to look rows up in it; ``name`` is the parameter's."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} is used by {what}, and was only looked up on made-up samples")
        self.name = name


class _LookUp(torch.autograd.Function):
    """Rows (..., w) of a table at codes (...); ``user`` (1,) is each user's own, so that answers are."""

    @staticmethod
    def forward(codes: Tensor, user: Tensor, table: Tensor, note: Callable[[Tensor, Tensor, int], None]) -> Tensor:
        return functional.embedding(codes, table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        codes, user, _, ctx.note = inputs
        ctx.save_for_backward(codes, user)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], codes: Tensor, user: Tensor, *rest: Any) -> tuple[Tensor, int]:
        own = codes.expand(info.batch_size, *codes.shape) if in_dims[0] is None else codes.movedim(in_dims[0], 0)
        return _look_up(own, user, *rest), 0

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        codes, user = ctx.saved_tensors
        ctx.note(codes, gradient, user.numel())
        return None, torch.zeros_like(user), None, None


_look_up: Callable[..., Tensor] = _LookUp.apply


class LookedUp(Tensor):
    """A table of which a module can have rows, and nothing else; see `UsedOtherwise`."""

    parameter: str
    look_up: Callable[[Tensor], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look up; describe the table; refuse what else there is."""
        named = kwargs or {}
        table = next(one for one in (*args, *named.values()) if isinstance(one, LookedUp))
        if func in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **named)
        unusual = named.get("max_norm") is not None or named.get("scale_grad_by_freq")
        if len(args) > 1 and args[1] is table and not unusual:
            if func is functional.embedding and named["padding_idx"] is not None:
                with OwnPadding():
                    return func(*args, **named)
            if func is functional.embedding:
                return table.look_up(args[0])
            plain = func is functional.embedding_bag and args[0].ndim == 2 and named["offsets"] is None
            if plain and named["mode"] in ("sum", "mean"):
                return _bag(table, args[0], **named)
        raise UsedOtherwise(table.parameter, getattr(func, "__name__", str(func)))


def _bag(
    table: LookedUp, codes: Tensor, mode: str, per_sample_weights: Tensor | None, padding_idx: int | None, **_: Any
) -> Tensor:
    """Return the sum or mean (N, w) of the rows of codes (N, k) that are no padding; zero where all are."""
    rows = table.look_up(codes)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.sum(-2) if mode == "sum" else rows.mean(-2)
    there = (codes != padding_idx % len(table)).unsqueeze(-1)
    sums = rows.where(there, rows.new_zeros(())).sum(-2)
    return sums if mode == "sum" else sums / there.sum(-2).clamp(min=1)


class LookUps:
    """The tables ``looked`` of a model, whose parameters are ``named``, for G ``users``, and gradients of those.

    Attributes:
        models: (G, d + 1) users' own parameters outside of these tables, and a zero.
        entries: the numbers of the tables that are looked up.
        numbers: those of all rows that were looked up so far.
    """

    def __init__(self, named: Mapping[str, Tensor], looked: frozenset[str], users: int) -> None:
        self._named, self._looked = named, {name: list[_Look]() for name in looked}
        rest = [one.reshape(-1) for name, one in named.items() if name not in looked]
        self._sizes = [*map(len, rest), 1]
        self.models = torch.cat([*rest, next(iter(named.values())).new_zeros(1)]).expand(users, -1)
        self._of_models = torch.zeros_like(self.models)
        self._sums: dict[str, Sparse] = {name: csr_array((users, named[name].numel())) for name in looked}
        self.entries, self.numbers = sum(named[name].numel() for name in looked), 0

    def named(self, models: Tensor) -> dict[str, Tensor]:
        """Return parameters by name: those outside of tables at users' ``models`` (..., d + 1), and the tables."""
        *rest, user = torch.split(models, self._sizes, dim=-1)
        left, lead = iter(rest), models.shape[:-1]
        return {
            name: self._table(name, user) if name in self._looked else next(left).reshape(*lead, *one.shape)
            for name, one in self._named.items()
        }

    def _table(self, name: str, user: Tensor) -> LookedUp:
        values = self._named[name]
        table = values.as_subclass(LookedUp)
        table.parameter = name
        table.look_up = lambda codes: _look_up(codes, user, values, partial(self._note, name))
        return table

    def _note(self, name: str, codes: Tensor, gradients: Tensor, users: int) -> None:
        values = gradients.reshape(users, -1, gradients.shape[-1]).cpu().double().numpy()
        self._looked[name].append((codes.reshape(users, -1).cpu().numpy(), values))
        self.numbers += values.size

    def add(self, loss: Callable[..., Tensor], *samples: Tensor) -> None:
        """Add the gradients of users' loss of samples, a sum over users at their models (G, d + 1)."""
        leaf = self.models.detach().clone().requires_grad_()  # a module may write to its parameters
        self._of_models += torch.autograd.grad(loss(leaf, *samples), leaf)[0]
        for name, looks in self._looked.items():
            if looks:
                self._sums[name] = self._sums[name] + _summed(looks, self._named[name].numel())
            looks.clear()

    def rows(self) -> Sparse:
        """Return (G, p) the gradients of everything that was added."""
        rest = iter(np.split(self._of_models.cpu().double().numpy(), np.cumsum(self._sizes[:-1]), axis=1))
        parts = [self._sums[name] if name in self._looked else csr_array(next(rest)) for name in self._named]
        whole = hstack(parts, format="csr")
        return sparse_rows(whole.data, whole.indices, whole.indptr, whole.shape[1])


@dataclass(frozen=True)
class Looked:
    """Tables that a module only looks rows up in."""

    names: frozenset[str] = frozenset()
    entries: int = 0
    """Numbers in all of them."""
    numbers: float = 0.0
    """Numbers that a made-up sample looks up."""

    def worth(self, dimension: int, samples: int) -> bool:
        """Return whether rows of so many samples are far fewer than the ``dimension`` numbers of a whole gradient."""
        return bool(self.names) and _WORTH * (dimension - self.entries + self.numbers * samples) <= dimension


NO_TABLES = Looked()


def only_looked_up(names: frozenset[str], gradients: Callable[[frozenset[str]], LookUps], samples: int) -> Looked:
    """Return those of the tables for which a trial's ``gradients`` of made-up samples are the whole table's.

    A table that is used otherwise is left out, and the others are tried again.
    """
    while names:
        try:
            found, whole = gradients(names), gradients(frozenset())
        except UsedOtherwise as error:
            names -= {error.name}
            continue
        except Exception:  # any error of the module
            break
        one, other = (each.rows().toarray() for each in (found, whole))
        if np.allclose(one, other, rtol=1e-3, atol=1e-3 * float(np.abs(other).max())):
            return Looked(names, found.entries, found.numbers / samples)
        break
    return NO_TABLES


def _summed(looks: list[_Look], entries: int) -> Sparse:
    """Return (G, entries) users' sums of the gradients of what they looked up in a table."""
    codes, values = (np.concatenate(each, axis=1) for each in zip(*looks, strict=True))
    users, width = len(codes), values.shape[2]
    columns = (codes[:, :, None] * width + np.arange(width)).ravel()
    ends = np.arange(users + 1) * (values.size // users)
    return summed_rows(csr_array((values.ravel(), columns, ends), shape=(users, entries)), np.arange(users + 1))
