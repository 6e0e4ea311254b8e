"""The plan of a drop-in strategy as people see it, and its log, which goes to Flower's logger.

No line of the log holds a number that depends on users' data: how many updates were not finite stays in the result, and
of cohorts, which may be secret, the planned size is logged.
"""

import logging
from collections.abc import Set as AbstractSet
from dataclasses import replace

from strategies.core.plan import Plan
from strategies.core.results import PrivateResult, RoundRecord

log = logging.getLogger("flwr")

_SIZE_UNKNOWN = (
    "the noise depends on the number of the model's parameters, which is known once start has initial_arrays: "
    "plan_for(initial_arrays) states it before"
)


def without(plan: Plan, names: AbstractSet[str]) -> Plan:
    """The plan without these of its numbers."""
    return replace(plan, numbers={name: value for name, value in plan.numbers.items() if name not in names})


def before_the_model(plan: Plan) -> Plan:
    """A plan made for one parameter, without what depends on their number."""
    return replace(plan, noise=None, forecast=None, warnings=(_SIZE_UNKNOWN,))


def with_warning(plan: Plan) -> Plan:
    """The plan, with a warning if noise drowns the updates: the loss is not known, so no forecast warns of it."""
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
    log.info("\t└── Guarantee: %s", plan.guarantee.sentence())


def waiting(connected: int, users: int) -> None:
    """Log that some users have no node yet."""
    log.info("Waiting for nodes to connect: %d connected (required: %d)", connected, users)


def round_begins(server_round: int, plan: Plan) -> None:
    """Log what is asked in a round."""
    log.info("[ROUND %d/%d]", server_round, plan.rounds)
    log.info("configure_train: Planned cohort of %d users (out of %d)", plan.cohort, plan.users)


def round_ends(record: RoundRecord, plan: Plan) -> None:
    """Log how a round went and what it cost."""
    log.info("aggregate_train: %d failures, %s s", record.missing_users, _short(record.seconds))
    spent, whole = _short(record.spent_epsilon), _short(plan.guarantee.epsilon)
    log.info("\t└──> Privacy: epsilon %s of %s is spent", spent, whole)
    if record.metrics:
        log.info("\t└──> Global evaluation: %s", record.metrics)


def run_ends(result: PrivateResult, seconds: float) -> None:
    """Log what is promised for the rounds that were run."""
    log.info("Strategy execution finished in %s s", _short(seconds))
    log.info("Guarantee: %s", result.guarantee.sentence())


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
