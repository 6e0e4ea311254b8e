"""Every loss that a configuration may name, with the settings beside it. A new loss takes one line here."""

import re

from userdp.kinds import Kinds, below
from userdp.problems.settings import ProblemSettings

PROBLEMS: Kinds[type[ProblemSettings]] = Kinds(
    {
        "linear": "userdp.problems.separable:LinearSettings",
        "quadratic": "userdp.problems.separable:QuadraticSettings",
        "huber": "userdp.problems.separable:HuberSettings",
        "bernoulli": "userdp.problems.separable:BernoulliSettings",
        "logistic": "userdp.problems.generalised_linear:LogisticSettings",
        "squared": "userdp.problems.generalised_linear:SquaredSettings",
        "softmax": "userdp.problems.softmax:SoftmaxSettings",
        "poisson": "userdp.problems.generalised_linear:PoissonSettings",
        "cloglog": "userdp.problems.generalised_linear:CloglogSettings",
        "one_hot_logistic": "userdp.problems.one_hot:OneHotLogisticSettings",
        "one_hot_squared": "userdp.problems.one_hot:OneHotSquaredSettings",
        "one_hot_poisson": "userdp.problems.one_hot:OneHotPoissonSettings",
        "one_hot_cloglog": "userdp.problems.one_hot:OneHotCloglogSettings",
        "sparse_logistic": "userdp.problems.sparse_linear:SparseLogisticSettings",
        "sparse_squared": "userdp.problems.sparse_linear:SparseSquaredSettings",
        "sparse_cloglog": "userdp.problems.sparse_linear:SparseCloglogSettings",
        "torch": "userdp.neural.settings:TorchSettings",
    },
    "userdp.problems",
    files=True,
    unlisted={"table": "userdp.queries.table:TableSettings"},
    check=below(
        "userdp.problems.settings:ProblemSettings", "a loss is added by its settings, whose build() makes the problem"
    ),
)

_COMMON_NAMES = {
    "squared": "linearregression regression leastsquares ols ridge mse meansquarederror gaussian continuous numeric",
    "logistic": "logisticregression logit binary binaryclassification classification classifier binomial",
    "cloglog": "complementaryloglog hazard discretehazard",
    "softmax": "multiclass multiclassclassification multinomial multinomiallogistic categorical",
    "poisson": "poissonregression count counts countregression",
}


def kind_of_name(name: str) -> str | None:
    """Return the kind of loss that statistics or other libraries call so; None if it is unknown.

    >>> kind_of_name("Linear Regression"), kind_of_name("logistic"), kind_of_name("multi-class")
    ('squared', None, 'softmax')
    """
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for kind, names in _COMMON_NAMES.items() if plain in names.split()), None)
