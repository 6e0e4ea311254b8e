"""What reading a table came to."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class LoadReport:
    """What loading did. Counted from the data, so not covered by any guarantee: for the holder of the data alone.

    Attributes:
        rows: rows of the file.
        users: users of the federation.
        samples: samples of the federation.
        clipped: column -> cells of the federation that lay outside the declared range.
        unknown_levels: categorical column, or channel of sequences -> cells of the federation that hold no declared
            level, or characters that are not in the alphabet.
        unusable: column of numbers, codes or the target -> cells of the federation that hold nothing that a loss could
            use. Each makes its sample weigh nothing.
        imputed: column with a declared value for missing cells -> cells of the federation that got it.
        steps: channel of sequences -> steps of the federation, padding apart.
        small_users: users left out for holding fewer than ``min_samples``.
        surplus_users: eligible users beyond the public number of users.
        surplus_samples: samples of the federation's users left out by ``max_samples``.
        met_nowhere: a sentence for every column of which no cell is what was declared for it, most likely misspelt.
        nothing_usable: a sentence for every column of which no cell can be used, so that every sample weighs nothing.
    """

    rows: int
    users: int
    samples: int
    clipped: Mapping[str, int] = field(default_factory=dict)
    unknown_levels: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, int] = field(default_factory=dict)
    imputed: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    small_users: int = 0
    surplus_users: int = 0
    surplus_samples: int = 0
    met_nowhere: Sequence[str] = ()
    nothing_usable: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without the last four fields that are empty."""
        values = asdict(self)
        for name in ("imputed", "steps", "met_nowhere", "nothing_usable"):
            if not values[name]:
                del values[name]
        return values
