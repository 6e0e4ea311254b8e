"""Accounts for other accountants: the entries as events of dp-accounting, and the sum as Flower states it."""

import math
from dataclasses import asdict
from typing import Any

from simulations.account.accounts import Account
from userdp.accounting.filter import Price
from userdp.accounting.guarantee import Relation

RELATIONS: dict[Relation, str] = {"replace_one": "REPLACE_ONE", "add_or_remove": "ADD_OR_REMOVE_ONE"}
"""Neighbouring relations, and their names in dp-accounting and Flower."""


def exported(account: Account) -> dict[str, Any]:
    """Return an account as plain values.

    Each entry has ``events``: class names of `dp_accounting.dp_event` with their arguments, for an accountant with
    ``neighboring_relation``. What they cannot say is in ``delta``, which is added to the accountant's own. Flower's
    ``privacy_spent`` is the sum at the total's delta, as if all prices had been fixed beforehand.
    """
    from flwr.serverapp import PrivacySpent  # noqa: PLC0415 -- slow to import

    total, spent, count = account.total, account.spent_epsilon, len(account.entries)
    return {
        "account": account.name,
        "total": asdict(total),
        "neighboring_relation": RELATIONS[total.relation],
        "entries": [
            {"number": entry.number, "what": entry.what, "delta": entry.price.delta}
            | {"events": events(entry.price, total.relation)}
            for entry in account.entries
        ],
        "privacy_spent": asdict(PrivacySpent(spent, total.delta, count, "Gaussian differential privacy filter")),
    }


def events(price: Price, relation: Relation) -> list[dict[str, Any]]:
    """Return a price as events of dp-accounting; its delta apart.

    A pure epsilon is randomised response, which no mechanism of that epsilon exceeds; between neighbours that add or
    remove a user dp-accounting has the same pair of laws as discrete Laplace noise of sensitivity one. Its multipliers
    of Gaussian noise are for adding or removing: replacing moves a sum twice as far.
    """
    replaced, found = relation == "replace_one", list[dict[str, Any]]()
    if price.mu_squared:
        multiplier = (2 if replaced else 1) / math.sqrt(price.mu_squared)
        found.append({"class_name": "GaussianDpEvent", "noise_multiplier": multiplier})
    if price.epsilon and replaced:
        share = 2 / (1 + math.exp(price.epsilon))
        found.append({"class_name": "RandomizedResponseDpEvent", "noise_parameter": share, "num_buckets": 2})
    elif price.epsilon:
        found.append({"class_name": "DiscreteLaplaceDpEvent", "noise_parameter": price.epsilon, "sensitivity": 1})
    return found
