"""The privacy asked for, the guarantees given, and the composition of mechanisms' costs."""

from typing import TYPE_CHECKING

from userdp.accounting.composition import (
    add_or_remove_to_replace_one,
    group_privacy,
    largest_rho,
    rho_for,
    rho_of,
    zcdp_to_epsilon,
)
from userdp.accounting.costs import ACCOUNTANT, Cost, calibrate_noise, delta_of, epsilon_of
from userdp.accounting.guarantee import Guarantee, NoiseKind, Privacy, Relation, Unit
from userdp.accounting.ledger import AnyLedger, Ledger, RoundLedger
from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.accounting.amplified import calibrate_amplified, poisson_epsilon
    from userdp.accounting.checks import check_delta, check_guarantee, check_least, check_positive, check_rate
    from userdp.accounting.filter import Price, Total
    from userdp.accounting.guarantee import ONE_GAUSSIAN
    from userdp.accounting.sampled_gaussian import SampledRounds

__all__ = [
    "ACCOUNTANT",
    "ONE_GAUSSIAN",
    "AnyLedger",
    "Cost",
    "Guarantee",
    "Ledger",
    "NoiseKind",
    "Price",
    "Privacy",
    "Relation",
    "RoundLedger",
    "SampledRounds",
    "Total",
    "Unit",
    "add_or_remove_to_replace_one",
    "calibrate_amplified",
    "calibrate_noise",
    "check_delta",
    "check_guarantee",
    "check_least",
    "check_positive",
    "check_rate",
    "delta_of",
    "epsilon_of",
    "group_privacy",
    "largest_rho",
    "poisson_epsilon",
    "rho_for",
    "rho_of",
    "zcdp_to_epsilon",
]

__getattr__, __dir__ = lazily(__name__)
