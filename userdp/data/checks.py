"""Checks of declared numbers."""

import numpy as np

from userdp.errors import BadInput

# Bounds that `require_number` checks, as metadata of fields.
POSITIVE = {"above": 0.0}
NOT_NEGATIVE = {"above": 0.0, "strict": False}
AT_LEAST_ONE = {"above": 1.0, "strict": False}


def require_number(name: str, value: float, above: float, *, strict: bool = True) -> None:
    """Raise `BadInput` unless ``value`` is finite and above ``above`` (at least ``above`` when not strict)."""
    if not (np.isfinite(value) and (value > above if strict else value >= above)):
        raise BadInput(f"{name} must be a finite number {'above' if strict else 'of at least'} {above:g}, got {value}")
