"""The populations that a configuration may name; each takes one line here.

The heavy-tailed and sparse ones of the papers' baselines, like those of other packages, are entry points of the group
``userdp.populations``.
"""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds, below

if TYPE_CHECKING:
    from userdp.data.synthetic.populations import Population

POPULATIONS: "Kinds[type[Population]]" = Kinds(
    {
        "gaussian": "userdp.data.synthetic.locations:Gaussian",
        "bernoulli": "userdp.data.synthetic.locations:BernoulliRates",
        "logistic_regression": "userdp.data.synthetic.regressions:LogisticRegression",
        "linear_regression": "userdp.data.synthetic.regressions:LinearRegression",
        "poisson_regression": "userdp.data.synthetic.regressions:PoissonRegression",
        "categorical": "userdp.data.synthetic.regressions:Categorical",
    },
    "userdp.populations",
    check=below("userdp.data.synthetic.populations:Population", "a population turns noise into samples"),
)
"""Populations of synthetic users; the settings of each are the fields of its class."""
