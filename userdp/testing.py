"""Checks that a strategy of your own keeps to what every strategy has to.

    from userdp.testing import check_strategy

    def test_my_strategy():
        check_strategy(MyStrategy)

Like `userdp.train`, this reaches up to `simulations`, when it is first asked for.
"""

from typing import TYPE_CHECKING

from userdp.lazy import names_from
from userdp.siblings import load_siblings

if TYPE_CHECKING:
    from simulations.testing.strategy_contract import ContractBroken, check_strategy

__all__ = ["ContractBroken", "check_strategy"]

__getattr__ = names_from(
    __name__,
    {"simulations.testing.strategy_contract": ("ContractBroken", "check_strategy")},
    before_others=load_siblings,
)
