"""The populations that a configuration may name; each takes one line here."""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds

if TYPE_CHECKING:
    from userdp.data.synthetic.populations import Population

POPULATIONS: "Kinds[type[Population]]" = Kinds(
    {
        "gaussian": "userdp.data.synthetic.locations:Gaussian",
        "student_t": "userdp.data.synthetic.locations:StudentT",
        "multivariate_t": "userdp.data.synthetic.locations:MultivariateT",
        "pareto": "userdp.data.synthetic.locations:Pareto",
        "log_normal": "userdp.data.synthetic.locations:LogNormal",
        "log_logistic": "userdp.data.synthetic.locations:LogLogistic",
        "bernoulli": "userdp.data.synthetic.locations:BernoulliRates",
        "hard_instance": "userdp.data.synthetic.locations:HardInstance",
        "logistic_regression": "userdp.data.synthetic.regressions:LogisticRegression",
        "linear_regression": "userdp.data.synthetic.regressions:LinearRegression",
        "poisson_regression": "userdp.data.synthetic.regressions:PoissonRegression",
        "heavy_tailed_linear": "userdp.data.synthetic.heavy_tails:HeavyTailedLinear",
        "heavy_tailed_logistic": "userdp.data.synthetic.heavy_tails:HeavyTailedLogistic",
        "categorical": "userdp.data.synthetic.regressions:Categorical",
        "sparse_regression": "userdp.data.synthetic.sparse_regressions:SparseRegression",
        "sparse_blocks": "userdp.data.synthetic.sparse_vectors:SparseBlocks",
        "sparse_packing": "userdp.data.synthetic.sparse_vectors:SparsePacking",
    }
)
"""Populations of synthetic users; the settings of each are the fields of its class."""
