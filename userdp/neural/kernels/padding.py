"""Embeddings with padding, for many users in one call.

`torch.func.vmap` has no rule for ``padding_idx``: padding gets a gradient for all users of a call but the first, so a
user's row would depend on its place among the others.
"""

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class OwnPadding(TorchFunctionMode):
    """Within it padding has no gradient, for any user; ``padded`` says whether any embedding had padding."""

    padded = False

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Look rows up without padding, and keep those of padding out of the gradient."""
        named = dict(kwargs or {})
        if func is not functional.embedding or named.get("padding_idx") is None:
            return func(*args, **named)
        self.padded, padding = True, named.pop("padding_idx")
        codes, table = args
        rows = functional.embedding(codes, table, **named)
        return rows.where(torch.ne(codes, padding % len(table)).unsqueeze(-1), rows.detach())
