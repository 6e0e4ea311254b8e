"""torch's operations with products and sums that no order changes, so that users share a call to the last bit.

A library adds up the terms of a product in an order that its shape, its place in memory and the processor choose, and
computes the last few numbers of an array by other code than the others. Within `Exact` neither shows.

*Formal guarantees.* Within `Exact`, on a processor and in float32, each number of a result follows to the last bit from
those numbers alone that it is a mathematical function of: a number of ``A B`` from a row of A and a column of B, a sum
from its terms. So the gradient of a user in a batch of users follows from that user's samples and parameters, and from
the number of samples that it is padded to. *Why.* By induction over operations, each of one of five kinds; any other
raises `NoFixedOrder`, and users are then computed one by one. (1) Numbers that are moved, chosen or compared: nothing
is rounded. (2) One rounded operation for each number (IEEE 754), however it is vectorised; operations that torch may
fuse, such as ``a + b c``, are taken apart first. (3) Products, convolutions and sums: each row of A, each column of B
is rounded to multiples of a power of two, `_grid`, so that products of these multiples, and all sums of up to k of
them, are whole multiples of one number, of at most 53 bits: float64 holds them exactly, so every order of them, fused
or not, gives the same. One rounding to float32 follows. A row alone determines its multiples; one that is not finite is
NaN throughout. (4) Functions such as exp: computed of whole vectors of the processor,
padded with zeros, so that the same instructions compute every number, and no lane reads another. (5) Sums by index
(gradients of embeddings): one addition after the other, in the order of a user's own samples. Padding adds zeros.
*Assumption.* A processor's float64 is IEEE 754's, and libraries compute products by multiplying and adding (as BLAS
does, not by transforms); torch's loops treat all whole vectors alike.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

aten = torch.ops.aten
_LANES = 64  # Numbers of a padded array are a multiple of those that any loop of torch takes at once.


class NoFixedOrder(Exception):
    """The module needs an operation that `Exact` does not know."""


def _grid(values: Tensor, dims: int | tuple[int, ...], bits: int) -> Tensor:
    """Round values to multiples of 2^-bits times a power of two that bounds them along ``dims``, in float64."""
    if values.dtype != torch.float32 or values.numel() == 0:
        raise NoFixedOrder(f"a product of {tuple(values.shape)} numbers of {values.dtype}")
    largest = (values.view(torch.int32) & 0x7F800000).amax(dims, keepdim=True)  # sign and fraction are zero
    bound = largest.view(torch.float32).clamp_min(2.0**-126).double()  # all values are below twice it, or not finite
    shift = bound * (1.5 * 2.0 ** (53 - bits))
    return values.double().add_(shift).sub_(shift)  # the sum keeps as many bits as are asked for; NaN if not finite


def _bits(terms: int, factors: int) -> int:
    """Return the bits of each factor with which sums of so many terms have at most 53, and `_grid` can round."""
    return min(51, (53 - (terms - 1).bit_length()) // factors)


def _product(a: Tensor, b: Tensor) -> Tensor:
    bits = _bits(a.shape[-1], 2)
    return torch.matmul(_grid(a, -1, bits), _grid(b, -2, bits)).to(a.dtype)


def _product_and(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _times(c, beta) + _times(_product(a, b), alpha)


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * factor


def _sum(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    among = tuple(dims) if dims else tuple(range(x.ndim))
    if not x.is_floating_point() or not among:
        return x.sum(among, keepdim, dtype=dtype)
    terms = math.prod(x.shape[one] for one in among)
    return _grid(x, among, _bits(terms, 1)).sum(among, keepdim).to(x.dtype)


def _mean(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    found = _sum(x, dims, keepdim)
    return found / (x.numel() // found.numel())


def _var_mean(
    x: Tensor, dims: Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, **named: float
) -> tuple[Tensor, Tensor]:
    away = x - _mean(x, dims, True)
    found = _sum(away * away, dims, keepdim)
    return found / (x.numel() // found.numel() - named.get("correction", unbiased)), _mean(x, dims, keepdim)


def _by_group(x: Tensor, groups: int, dims: int | tuple[int, ...], terms: int) -> Tensor:
    return _grid(x.reshape(len(x), groups, -1), dims, _bits(terms, 2)).view(x.shape)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    if rest[3]:
        raise NoFixedOrder("a transposed convolution")
    terms = weight[0].numel()
    found: Tensor = aten.convolution(_by_group(x, rest[-1], -1, terms), _by_group(weight, 1, -1, terms), None, *rest)
    found = found.to(x.dtype)
    return found if bias is None else found + bias.view(-1, *[1] * (x.ndim - 2))


def _convolution_back(g: Tensor, x: Tensor, weight: Tensor, sizes: Any, *rest: Any) -> tuple[Tensor | None, ...]:
    *settings, groups, wanted = rest
    if settings[3]:
        raise NoFixedOrder("a transposed convolution")
    back = partial(aten.convolution_backward, bias_sizes=None)
    named = dict(zip(("stride", "padding", "dilation", "transposed", "output_padding"), settings, strict=True))
    found: list[Tensor | None] = [None, None, None]
    if wanted[0]:
        terms = weight[:, 0].numel() // groups
        shares = _grid(weight.reshape(groups, -1), -1, _bits(terms, 2)).view(weight.shape)
        sent = _by_group(g, groups, -1, terms)
        found[0] = back(sent, x.double(), shares, **named, groups=groups, output_mask=[True, False, False])[0]
    if wanted[1]:
        both = (_by_group(one, groups, (0, 2), g[:, 0].numel()) for one in (g, x))
        found[1] = back(*both, weight.double(), **named, groups=groups, output_mask=[False, True, False])[1]
    if wanted[2]:
        found[2] = _sum(g, [axis for axis in range(g.ndim) if axis != 1])
    return tuple(None if one is None else one.to(x.dtype) for one in found)


def _in_whole_vectors(operation: Any) -> Callable[..., Tensor]:
    def computed(x: Tensor) -> Tensor:
        if x.numel() % _LANES == 0 and x.is_contiguous() and x.data_ptr() % _LANES == 0:
            return operation(x)  # type: ignore[no-any-return]
        room = x.new_zeros(-(-x.numel() // _LANES) * _LANES)
        room[: x.numel()] = x.reshape(-1)
        return operation(room)[: x.numel()].view(x.shape)  # type: ignore[no-any-return]

    return computed


_exp, _log = _in_whole_vectors(torch.exp), _in_whole_vectors(torch.log)


def _log_softmax(x: Tensor, axis: int, half: bool) -> Tensor:
    away = x - x.amax(axis, keepdim=True)
    return away - _log(_sum(_exp(away), [axis], True))


def _log_softmax_back(g: Tensor, y: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    return g - _exp(y) * _sum(g, [axis], True)


def _softmax(x: Tensor, axis: int, half: bool) -> Tensor:
    shares = _exp(x - x.amax(axis, keepdim=True))
    return shares / _sum(shares, [axis], True)


def _softmax_back(g: Tensor, y: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    sent = g * y
    return sent - y * _sum(sent, [axis], True)


def _power(x: Tensor, exponent: float) -> Any:
    if exponent not in (0.5, 1, 2, 3):
        raise NoFixedOrder(f"the power {exponent}")
    return x.sqrt() if exponent == 0.5 else math.prod([x] * int(exponent))


def _put(x: Tensor, places: Any, values: Tensor, accumulate: bool = False) -> Any:
    if accumulate:
        raise NoFixedOrder("sums of numbers put at the same place")
    return aten.index_put(x, places, values)


_RULES: dict[Any, Callable[..., Any]] = {
    aten.mm: _product,
    aten.bmm: _product,
    aten.addmm: _product_and,
    aten.baddbmm: _product_and,
    aten.sum: _sum,
    aten.mean: _mean,
    aten.var_mean: _var_mean,
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_back,
    aten.add: lambda a, b, *, alpha=1: torch.add(a, _times(b, alpha)),
    aten.sub: lambda a, b, *, alpha=1: torch.sub(a, _times(b, alpha)),
    aten.rsub: lambda a, b, *, alpha=1: -(_times(a, alpha) - b),
    aten._log_softmax: _log_softmax,
    aten._log_softmax_backward_data: _log_softmax_back,
    aten._softmax: _softmax,
    aten._softmax_backward_data: _softmax_back,
    aten.exp: _exp,
    aten.log: _log,
    aten.pow: _power,
    aten.index_put: _put,
    aten.rsqrt: lambda x: x.sqrt().reciprocal(),
    aten.addcmul: lambda c, a, b, *, value=1: c + _times(a, value) * b,
    aten.lerp: lambda a, b, weight: a + weight * (b - a),
    aten.tanh_backward: lambda g, y: g * (1 - y * y),
    aten.sigmoid_backward: lambda g, y: g * ((1 - y) * y),
    **{getattr(aten, name): _in_whole_vectors(getattr(torch, name)) for name in ("expm1", "log1p", "tanh", "sigmoid")},
}
_MOVES = (
    "view _unsafe_view _reshape_alias expand permute transpose t unsqueeze squeeze select slice split "
    "split_with_sizes unbind as_strided alias detach clone _to_copy copy cat stack index index_select gather "
    "embedding where masked_fill constant_pad_nd new_zeros new_empty new_ones new_full zeros_like empty_like "
    "ones_like full_like zeros ones full empty arange scalar_tensor lift_fresh slice_backward select_backward flip "
    "repeat diagonal triu tril new_empty_strided empty_strided scatter zero fill max_pool2d_with_indices amax amin "
    "argmax sign relu maximum minimum clamp clamp_min clamp_max eq ne lt le gt ge logical_and logical_or logical_not "
    "bitwise_and bitwise_or bitwise_not isnan isfinite any all threshold_backward"
)
_ROUNDED = "mul div neg abs sqrt reciprocal"
_IN_TURN = "embedding_dense_backward scatter_add max_pool2d_with_indices_backward"
_KNOWN = frozenset(f"{_MOVES} {_ROUNDED} {_IN_TURN}".split())


@cache
def _rule(operation: Any) -> Any:
    """Return what computes an operation: a rule, or itself; None to take it apart."""
    name = operation.overloadpacket.__name__
    known = name in _KNOWN or name.removesuffix("_") in _KNOWN
    return _RULES.get(operation.overloadpacket, operation if known else None)


class Exact(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes every operation of torch within its block as the module says."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operation a guard against torch's compiler, which takes as long as the operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operation; `NoFixedOrder` refuses one that is not known."""
        named = kwargs or {}
        rule = _rule(func)
        if rule is func:
            return func(*args, **named)
        if rule is not None:
            out = named.pop("out", named.pop("grad_input", None))
            made = rule(*args, **named)
            return made if out is None else out.copy_(made)
        name = func.overloadpacket.__name__
        with self:
            if name.endswith("_") and hasattr(aten, name[:-1]):
                return args[0].copy_(getattr(aten, name[:-1])(*args, **named))
            made = decomposition_table.get(func, func.decompose)(*args, **named)
        if made is NotImplemented:
            raise NoFixedOrder(str(func))
        return made


def is_exact() -> bool:
    """Return whether the call is within `Exact`."""
    return isinstance(_get_current_dispatch_mode(), Exact)
