"""Mechanisms that add noise or select, each with what it costs."""

from userdp.mechanisms.additive import GaussianMechanism, LaplaceMechanism
from userdp.mechanisms.concentration_tests import (
    AboveThreshold,
    ConcentrationTest,
    MinimumScore,
    Session,
    minimum_batch,
)
from userdp.mechanisms.exponential import ExponentialMechanism, private_quantile

__all__ = [
    "AboveThreshold",
    "ConcentrationTest",
    "ExponentialMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "MinimumScore",
    "Session",
    "minimum_batch",
    "private_quantile",
]
