"""How a budget is divided among a strategy's own rounds and those before and after them."""

from dataclasses import replace

from strategies.core.around import Around
from strategies.core.last_comparison import LastComparison, check_comparison
from strategies.core.options import StrategyOptions
from strategies.core.preparation import Preparation, prepared
from strategies.core.public_facts import Given
from userdp.accounting import Privacy
from userdp.errors import BadInput


def divided(
    options: StrategyOptions,
    objection: str | None,
    given: Given,
    preparation: type[Preparation] | None,
    *,
    compare: bool,
) -> tuple[Privacy, Around]:
    """(the budget left for the strategy's own rounds, what comes before and after them).

    Args:
        options: the strategy's settings.
        objection: why a last comparison makes no sense for the strategy; None where it does.
        given: with the whole budget.
        preparation: what comes before; None for nothing.
        compare: whether a last comparison comes after.

    Raises:
        BadInput: the strategy, or its nodes, cannot have the one or the other.
    """
    before = after = None
    wanted = compare or preparation is not None
    if wanted and not given.wire.asks_more:
        raise BadInput(
            "compare_with_initial and preparation ask users for more than a step of training, which clients of an "
            "ordinary Flower app cannot tell: leave them out"
        )
    if wanted and given.privacy.trust == "sum":
        raise BadInput(
            "privacy.trust = 'sum': compare_with_initial and preparation ask for sums without noise, with which the "
            "server would have to be trusted; leave them out"
        )
    privacy = given.privacy
    if compare:
        check_comparison(given.strategy, objection)
        privacy, after = LastComparison.within(privacy, given.users)
    if preparation is not None:
        privacy, before = prepared(preparation, options, replace(given, privacy=privacy))
    return privacy, Around(before, after)
