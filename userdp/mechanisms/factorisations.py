"""The factorisations of prefix sums by name, and the choice of the one that adds the least noise."""

from typing import Literal

from userdp.mechanisms.prefix_sums import Factorisation, Tree
from userdp.mechanisms.toeplitz import BandedInverse, BandedInverseSquareRoot, Buffered, OptimisedBanded, SquareRoot

FactorisationName = Literal["square_root", "tree", "banded", "banded_inverse_square_root", "banded_inverse", "buffered"]
FACTORISATIONS: dict[FactorisationName, type[Factorisation]] = {
    "square_root": SquareRoot,
    "tree": Tree,
    "banded": OptimisedBanded,
    "banded_inverse_square_root": BandedInverseSquareRoot,
    "banded_inverse": BandedInverse,
    "buffered": Buffered,
}

_BY_MEMORY: tuple[FactorisationName, ...] = (
    "buffered",
    "tree",
    "banded",
    "banded_inverse",
    "banded_inverse_square_root",
    "square_root",
)  # From the fewest vectors kept to the most, in a long run.

_EQUAL = 1.001  # Errors with a ratio up to this one count as equal.


def last_error(name: FactorisationName, rounds: int, separation: int) -> float:
    """Return the deviation of the last prefix sum's noise, over noise multiplier times what one participation moves."""
    factorisation = FACTORISATIONS[name](rounds, separation)
    return factorisation.sensitivity(rounds) * float(factorisation.deviations()[-1])


def best_factorisation(rounds: int, separation: int) -> FactorisationName:
    """Return the name of least `last_error`, of equals that of least memory; `BadInput` below one round."""
    errors = {name: last_error(name, rounds, separation) for name in _BY_MEMORY}
    return next(name for name in _BY_MEMORY if errors[name] <= _EQUAL * min(errors.values()))
