"""The counts of reading a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class LoadReport:
    """Counts of a load. They are exact functions of the data, covered by no guarantee: for the data holder alone.

    Attributes:
        rows: rows of the file.
        users: users of the federation.
        samples: samples of the federation.
        clipped: column -> cells of the federation outside the declared range.
        unknown_levels: categorical column, or channel of sequences -> cells of the federation that hold no declared
            level, or characters outside the alphabet.
        unusable: column of numbers, codes or the target -> cells of the federation that no loss can use; their samples
            have weight zero.
        imputed: column with a declared value for missing cells -> cells of the federation that got it.
        steps: channel of sequences -> steps of the federation, without padding.
        small_users: users left out for holding fewer than ``min_samples``.
        surplus_users: eligible users beyond the public number of users.
        surplus_samples: samples of the federation's users left out by ``max_samples``.
        met_nowhere: a sentence for every column without a single declared cell, most likely misspelt.
        nothing_usable: a sentence for every column without a usable cell: every sample has weight zero.
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
        """Return plain values for JSON, without those of the optional features that are empty."""
        optional = ("imputed", "steps", "met_nowhere", "nothing_usable")
        return {name: value for name, value in asdict(self).items() if value or name not in optional}
