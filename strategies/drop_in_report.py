"""The plan of a drop-in strategy for people, and its log, which goes to Flower's logger.

The log holds no number that depends on users' data: counts of non-finite updates stay in the result, and of cohorts,
which may be secret, it has the planned size.
"""

import logging
from collections.abc import Set as AbstractSet
from dataclasses import replace

from flwr.app import MetricRecord

from strategies.core.plan import Plan
from strategies.core.results import PrivateResult, RoundRecord
from userdp.accounting.guarantee import rounded_up

log = logging.getLogger("flwr")

_SIZE_UNKNOWN = (
    "the noise depends on the number of the model's parameters, which is known once start has initial_arrays: "
    "plan_for(initial_arrays) states it before"
)


def shown(plan: Plan, by_clients: AbstractSet[str], by_size: AbstractSet[str], *, known: bool) -> Plan:
    """Return the plan as people see it, without the clients' options; ``known`` says whether the model is known.

    Before that the plan is one for a single parameter, and lacks the numbers ``by_size``, its noise and its forecast.
    Afterwards it warns if noise drowns the updates, in the place of a forecast, which has remedies for other losses.
    """
    hidden = by_clients if known else by_clients | by_size
    plan = replace(plan, numbers={name: value for name, value in plan.numbers.items() if name not in hidden})
    if not known:
        return replace(plan, noise=None, forecast=None, warnings=(_SIZE_UNKNOWN,))
    of_forecast = () if plan.forecast is None else plan.forecast.warnings()
    plan = replace(plan, warnings=tuple(warning for warning in plan.warnings if warning not in of_forecast))
    if not plan.drowned:
        return plan
    drowned = (
        f"noise drowns the updates: its expected l2 norm is {plan.noise:.3g}, and what it is added to has at most "
        f"{plan.signal:.3g}; bring more users, raise epsilon, or train fewer parameters with frozen="
    )
    return replace(plan, warnings=(*plan.warnings, drowned))


def run_begins(name: str, plan: Plan) -> None:
    """Log the plan; its warnings are logged by the strategy within."""
    log.info("Starting %s strategy: %d rounds of %d of %d users", name, plan.rounds, plan.cohort, plan.users)
    log.info("\t├── Noise: expected l2 norm %s, on updates of at most %s", _short(plan.noise), _short(plan.signal))
    log.info("\t└── Guarantee: %s", plan.guarantee)


def waiting(connected: int, users: int) -> None:
    """Log that some users have no node yet."""
    log.info("Waiting for nodes to connect: %d connected (required: %d)", connected, users)


def round_begins(server_round: int, plan: Plan) -> None:
    """Log the beginning of a round."""
    log.info("[ROUND %d/%d]", server_round, plan.rounds)
    log.info("configure_train: Planned cohort of %d users (out of %d)", plan.cohort, plan.users)


def round_ends(record: RoundRecord, plan: Plan, held_out: MetricRecord | None) -> None:
    """Log the end of a round, its cost, and what held-out clients reported, with its noise."""
    log.info("aggregate_train: %d failures, %s s", record.missing_users, _short(record.seconds))
    spent = "none" if record.spent_epsilon is None else rounded_up(record.spent_epsilon)
    whole = rounded_up(plan.guarantee.epsilon)
    log.info("\t└──> Privacy: epsilon %s of %s is spent", spent, whole)
    if held_out:
        log.info("\t└──> Held-out clients: %s", dict(held_out))
    if record.metrics:
        log.info("\t└──> Global evaluation: %s", record.metrics)


def run_ends(result: PrivateResult, seconds: float) -> None:
    """Log the end of the run, and its guarantee."""
    log.info("Strategy execution finished in %s s", _short(seconds))
    log.info("Guarantee: %s", result.guarantee)


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
