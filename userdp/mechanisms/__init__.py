"""Mechanisms that add noise or select, each with what it costs."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily
from userdp.mechanisms.additive import GaussianMechanism, LaplaceMechanism
from userdp.mechanisms.concentration_tests import AboveThreshold, ConcentrationTest, MinimumScore, Session
from userdp.mechanisms.exponential import ExponentialMechanism
from userdp.mechanisms.passing_batches import minimum_batch

if TYPE_CHECKING:
    from userdp.mechanisms.passing_batches import smallest_passing
    from userdp.mechanisms.set_union import SetUnion
    from userdp.mechanisms.user_quantile import Grid, UserQuantile

__all__ = [
    "AboveThreshold",
    "ConcentrationTest",
    "ExponentialMechanism",
    "GaussianMechanism",
    "Grid",
    "LaplaceMechanism",
    "MinimumScore",
    "Session",
    "SetUnion",
    "UserQuantile",
    "minimum_batch",
    "smallest_passing",
]

__getattr__, __dir__ = lazily(__name__)
