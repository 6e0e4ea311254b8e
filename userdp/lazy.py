"""Public names of a package, each imported on first use, so that importing the package costs nothing."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def names_from(
    package: str, homes: Mapping[str, Sequence[str]], before_others: Callable[[], None] | None = None
) -> Callable[[str], object]:
    """Make the ``__getattr__`` of a package, from its name and its ``homes``: module -> names taken from it.

    ``before_others`` is called before a name is taken from a module of another package.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> object:  # noqa: N807
        if name in home_of:
            if before_others is not None and home_of[name].partition(".")[0] != package:
                before_others()
            return getattr(import_module(home_of[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
