"""A node's mask key between messages: Flower may load an app anew for each of them, and keeps the context's state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from flwr.app import ConfigRecord, Context

from userdp.masking.masks import MaskKey

_KEY = "userdp.mask_key"
_COUNTS = ("answered", "lost", "unmasked")  # as `MaskKey` takes them


@contextmanager
def kept_key(context: Context) -> Iterator[MaskKey]:
    """Provide the node's key of this run, and keep it with its answered rounds, before a reply leaves or on failure.

    A node that lost its state has another key, which no message of the run names, so it answers nobody.
    """
    key = MaskKey()
    if _KEY in context.state:
        kept = cast(ConfigRecord, context.state[_KEY])
        key = MaskKey(cast(bytes, kept["secret"]), *(cast(int, kept[name]) for name in _COUNTS))
    try:
        yield key
    finally:
        counts = {name: getattr(key, name) for name in _COUNTS}
        context.state[_KEY] = ConfigRecord({"secret": key.secret, **counts})
