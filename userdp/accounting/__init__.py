"""The privacy asked for, the guarantees given, and the composition of mechanisms' costs."""

from userdp.accounting.composition import (
    add_or_remove_to_replace_one,
    group_privacy,
    largest_rho,
    rho_for,
    share_of_group,
    zcdp_to_epsilon,
)
from userdp.accounting.costs import ACCOUNTANT, Cost, calibrate_noise, calibrate_steps, delta_of, epsilon_of
from userdp.accounting.guarantee import Guarantee, NoiseKind, Privacy, Relation, Unit
from userdp.accounting.ledger import (
    AnyLedger,
    Ledger,
    LedgerState,
    ReleaseLedger,
    RoundLedger,
    RoundLedgerState,
    Scheme,
)

__all__ = [
    "ACCOUNTANT",
    "AnyLedger",
    "Cost",
    "Guarantee",
    "Ledger",
    "LedgerState",
    "NoiseKind",
    "Privacy",
    "Relation",
    "ReleaseLedger",
    "RoundLedger",
    "RoundLedgerState",
    "Scheme",
    "Unit",
    "add_or_remove_to_replace_one",
    "calibrate_noise",
    "calibrate_steps",
    "delta_of",
    "epsilon_of",
    "group_privacy",
    "largest_rho",
    "rho_for",
    "share_of_group",
    "zcdp_to_epsilon",
]
