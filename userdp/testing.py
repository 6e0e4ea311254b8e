"""Checks of the contract that every strategy must keep, for strategies of your own.

    from userdp.testing import check_strategy

    def test_my_strategy(): check_strategy(MyStrategy)

Like `userdp.train`, this imports `simulations` on first use.
"""

from typing import TYPE_CHECKING

from userdp.lazy import lazily
from userdp.siblings import load_siblings

if TYPE_CHECKING:
    from simulations.testing.strategy_contract import ContractBroken, check_strategy

__all__ = ["ContractBroken", "check_strategy"]

__getattr__, __dir__ = lazily(__name__, before_others=load_siblings)
