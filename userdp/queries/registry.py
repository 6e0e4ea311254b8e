"""The statistics that a query may ask for; each takes one line here."""

from userdp.kinds import Kinds, below
from userdp.queries.statistics import Statistic

STATISTICS: Kinds[type[Statistic]] = Kinds(
    {
        "count": "userdp.queries.statistics:Count",
        "mean": "userdp.queries.statistics:Mean",
        "variance": "userdp.queries.statistics:Variance",
        "histogram": "userdp.queries.statistics:Histogram",
        "counts": "userdp.queries.statistics:Counts",
        "shares": "userdp.queries.totals:Shares",
        "sum": "userdp.queries.totals:Sum",
        "group_means": "userdp.queries.statistics:GroupMeans",
        "effect": "userdp.queries.effects:Effect",
        "variance_components": "userdp.queries.components:VarianceComponents",
        "correlation": "userdp.queries.statistics:Correlation",
        "quantiles": "userdp.queries.statistics:Quantiles",
        "survival": "userdp.queries.survival:Survival",
    },
    "userdp.statistics",
    files=True,
    check=below(
        "userdp.queries.statistics:Statistic", "a statistic turns users' samples into rows, see docs/extend.md"
    ),
)
