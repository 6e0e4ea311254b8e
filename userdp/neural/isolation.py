"""Users of a module kept apart: no user's computation changes another's.

A module is anybody's code. From one call to the next it can keep something (a buffer, an attribute), draw from random
generators that the whole process shares, and mix the samples of a batch. So `userdp.neural.habits` tries it on made-up
samples, and refuses one that needs to carry something on.

Formal guarantees:
    Unit: a user; for gradients of single samples, a sample. Claim: a row (a gradient, an update, losses) is a function
    of the problem's seed, the model and that user's samples alone, up to rounding. So replacing a user changes that
    user's row and no other, and a clip at C bounds the change of a sum by 2C; of adding or removing one by C. Proof:
    (1) State. Before each user, `Copies.fresh` compares the copy with its initial state. If anything differs, also
    after a user whose computation raised, a new copy takes its place. Parameters are passed as the user's own copy. (2)
    Chance. A module that draws gets each user's own stream (`userdp.neural.chance`), keyed by a digest of seed, model
    and that user's samples; the generators of the process are put back afterwards. Coins are public and part of the
    row's function: a clip bounds the row for all coins, and no noise of a mechanism comes from them, so secure noise
    loses nothing. (3) Batches. Users share a call only if a sample's result does not change with other samples of the
    call: on made-up samples bit for bit, for losses also beside far larger ones, and with the size of the call by
    rounding alone. Under `torch.func.vmap` a
    user shares a call with padding, which repeats one of its own samples at weight zero; what torch's rules for it get
    wrong is mended (`userdp.neural.kernels.padding`). A module that takes users side
    by side (`userdp.neural.shared`) computes all their samples in one call, each by its own user's parameters. Losses
    of several users that changed the copy are computed again, user by user. Assumptions, about behaviour for some data
    that never shows on made-up samples: the module keeps things in itself (not in globals, files or closures), and
    changes them by setting attributes, by methods of lists and dictionaries, or by torch's in-place operations; it
    draws from torch's generators, not from those of numpy and Python; it does not mix samples; one whose copies share
    the memory of parameters never writes to them (a write on made-up samples is refused).
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from userdp.errors import BadInput
from userdp.neural.contents import Marks
from userdp.neural.losses import SampleLoss
from userdp.neural.shared import SharedModule


@dataclass(eq=False)
class Pair:
    """A module and its loss, copied and compared as one; a loss object may keep something, too."""

    module: nn.Module
    loss: SampleLoss


def as_trained(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Copy a module, each layer in the mode that the factory left it in; normalisation keeps its statistics.

    Raises `BadInput` for batch normalisation by the statistics of the batch, a layer without shapes, a compiled module,
    or one that is on a GPU or cannot be copied.
    """
    if places := {str(one.device) for one in (*module.parameters(), *module.buffers())} - {"cpu"}:
        raise BadInput(
            f"problem.module is on {min(places)}: give it on the processor, by module.cpu(), and set engine.device = "
            "'cuda' to compute users on a GPU"
        )
    for name, layer in module.named_modules():
        if "_orig_mod" in dict(layer.named_children()) or getattr(layer, "_compiled_call_impl", None) is not None:
            raise BadInput(
                f"problem.module is compiled by torch.compile (layer {name!r}), for all samples of a batch together, "
                "and users' gradients are computed apart: have the factory return the module itself"
            )
        if any(map(is_lazy, layer.parameters(recurse=False))):
            raise BadInput(
                f"problem.module has a layer without shapes (layer {name!r}, {type(layer).__name__}): every node makes "
                "the same model before it sees data, so give the number of inputs, such as nn.Linear(3, 8)"
            )
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            raise BadInput(
                f"problem.module has batch normalisation with track_running_stats = False (layer {name!r}), which "
                "mixes the samples of a batch: use nn.GroupNorm or nn.LayerNorm, or leave track_running_stats = True; "
                "its statistics stay as the factory sets them"
            )
    try:
        own = copy.deepcopy(module)
    except Exception as error:  # any error of the module
        raise BadInput(
            f"problem.module cannot be copied ({type(error).__name__}): keep no results of computations, open files or "
            "locks in its attributes"
        ) from error
    for layer in own.modules():
        if isinstance(layer, _NormBase):
            layer.eval()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False  # the same gradient, in one vector with the others
    return own if isinstance(own, SharedModule) and own.mixed else own.to(dtype)


class Copies:
    """Copies that ``make`` makes, each used until it changes; ``warm`` computes made-up samples on a new one."""

    def __init__(self, make: Callable[[], Pair], warm: Callable[[Pair], object]) -> None:
        self._make, self._warm = make, warm
        self._now: tuple[Pair, Marks] | None = None

    @property
    def now(self) -> Pair:
        """The present copy, changed or not."""
        return self.fresh() if self._now is None else self._now[0]

    @property
    def unchanged(self) -> bool:
        """True if the copy is the same as before anybody's samples were computed."""
        return self._now is not None and self._now[1].hold()

    def fresh(self) -> Pair:
        """Return a copy that is the same as before anybody's samples were computed."""
        if self._now is None or not self.unchanged:
            pair = self._make()
            with suppress(Exception):  # any error of the module shows again with users
                self._warm(pair)
            self._now = pair, Marks(pair)
        return self._now[0]
