"""Estimators for scikit-learn, as its pipelines and metrics expect them; docs/scikit-learn.md shows their use.

    from userdp.sklearn import PrivateLogisticRegression

    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 10)).fit(X, y, groups=patients)

Like `userdp.train`, this imports `simulations` on first use. It needs ``pip install 'userdp[sklearn]'``.
"""

from typing import TYPE_CHECKING

from userdp.extras import check_extra
from userdp.lazy import lazily
from userdp.siblings import load_siblings

if TYPE_CHECKING:
    from simulations.api.estimators import (
        PrivateClassifier,
        PrivateLinearRegression,
        PrivateLogisticRegression,
        PrivatePoissonRegressor,
    )

__all__ = ["PrivateClassifier", "PrivateLinearRegression", "PrivateLogisticRegression", "PrivatePoissonRegressor"]


def _prepare() -> None:
    check_extra("sklearn", "userdp.sklearn")
    load_siblings()


__getattr__, __dir__ = lazily(__name__, before_others=_prepare)
