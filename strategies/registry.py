"""The registry of strategies, by name, in the order for a newcomer.

The baselines of papers, like strategies of other packages, are entry points of the group ``userdp.strategies``.
``strategy.kind`` may also name a class in a file: "my_file.py:MyStrategy".
"""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds, below

if TYPE_CHECKING:
    from strategies.core.recipe import Recipe


STRATEGIES: "Kinds[type[Recipe]]" = Kinds(
    {
        "auto": "strategies.auto.auto:Auto",
        "dp_fed_sgd": "strategies.clipping.dp_fed_sgd:DPFedSGD",
        "dp_fed_avg": "strategies.clipping.dp_fed_avg:DPFedAvg",
        "adaptive_clipping": "strategies.clipping.adaptive_clipping:AdaptiveClipping",
        "recentred_clipping": "strategies.clipping.recentred_clipping:RecentredClipping",
        "dp_ftrl": "strategies.clipping.dp_ftrl:DPFTRL",
        "localized_clipping": "strategies.localized.localized_clipping:LocalizedClipping",
        "localized_weighting": "strategies.localized.localized_weighting:LocalizedWeighting",
        "local_dp": "strategies.clipping.local_dp:LocalDP",
        "robust_rounds": "strategies.robust.robust_rounds:RobustRounds",
        "vote_descent": "strategies.robust.vote_descent:VoteDescent",
        "non_private": "strategies.non_private:NonPrivate",
    },
    "userdp.strategies",
    unlisted={"statistics": "strategies.queries.statistics:Statistics"},
    files=True,
    check=below("strategies.core.recipe:Recipe", "docs/extend.md shows how a strategy is made"),
)
