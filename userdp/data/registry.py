"""Every population and every source of data that a configuration may name. Adding one takes a line here."""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds

if TYPE_CHECKING:
    from userdp.data.populations import Population
    from userdp.data.source import DataSettings

POPULATIONS: "Kinds[type[Population]]" = Kinds(
    {
        "gaussian": "userdp.data.locations:Gaussian",
        "student_t": "userdp.data.locations:StudentT",
        "multivariate_t": "userdp.data.locations:MultivariateT",
        "pareto": "userdp.data.locations:Pareto",
        "log_normal": "userdp.data.locations:LogNormal",
        "log_logistic": "userdp.data.locations:LogLogistic",
        "bernoulli": "userdp.data.locations:BernoulliRates",
        "hard_instance": "userdp.data.locations:HardInstance",
        "logistic_regression": "userdp.data.regressions:LogisticRegression",
        "linear_regression": "userdp.data.regressions:LinearRegression",
        "poisson_regression": "userdp.data.regressions:PoissonRegression",
        "heavy_tailed_linear": "userdp.data.heavy_tails:HeavyTailedLinear",
        "heavy_tailed_logistic": "userdp.data.heavy_tails:HeavyTailedLogistic",
        "categorical": "userdp.data.regressions:Categorical",
        "sparse_regression": "userdp.data.sparse_regressions:SparseRegression",
    }
)
"""What synthetic users are drawn from; the settings of each are the fields of its class."""

DATA_SOURCES: "Kinds[type[DataSettings]]" = Kinds(
    {
        "synthetic": "userdp.data.synthetic_source:SyntheticData",
        "table": "userdp.data.table_sources:TableData",
        "public": "userdp.data.table_sources:PublicData",
    }
)
"""Where users come from."""
