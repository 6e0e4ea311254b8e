"""A small table that one function makes."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Sweep:
    """A table of a page.

    Attributes:
        make: the table; its columns' names are what a page shows, with spaces for underscores. It draws its randomness
            from fixed seeds, so that it gives the same numbers again.
        quick: whether it takes seconds, so that a test can make it anew.
        portable: whether every machine finds the same; not where an ascent ends at one of several points that are as
            good but for rounding, which differs from one library of linear algebra to the next.
    """

    make: Callable[[], pd.DataFrame]
    quick: bool = True
    portable: bool = True
