"""Checks of the contracts that classes from outside must keep: strategies, samplers, statistics, sources and losses.

    from userdp.testing import check_strategy

    def test_my_strategy(): check_strategy(MyStrategy)

Like `userdp.train`, `check_strategy` imports `simulations` on first use.
"""

from typing import TYPE_CHECKING

from userdp.errors import ContractBroken
from userdp.lazy import lazily
from userdp.siblings import load_siblings

if TYPE_CHECKING:
    from simulations.testing.strategy_contract import check_strategy
    from userdp.data.contract import check_source
    from userdp.problems.contract import check_loss
    from userdp.queries.contract import check_statistic
    from userdp.sampling.contract import check_sampler

__all__ = ["ContractBroken", "check_loss", "check_sampler", "check_source", "check_statistic", "check_strategy"]

__getattr__, __dir__ = lazily(__name__, before_others=load_siblings)
