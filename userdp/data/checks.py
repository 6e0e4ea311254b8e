"""Checks of declared numbers."""

import numpy as np

from userdp.errors import BadInput


def require_number(name: str, value: float, above: float, *, strict: bool = True) -> None:
    """Raise `BadInput` unless ``value`` is finite and above ``above`` (at least ``above`` when not strict)."""
    if not (np.isfinite(value) and (value > above if strict else value >= above)):
        raise BadInput(f"{name} must be a finite number {'above' if strict else 'of at least'} {above:g}, got {value}")
