"""Users with periods at risk, and losses of hazards by period."""

import numpy as np

from userdp.problems import Cloglog, Logistic

PERIODS = 4
KINDS = {"cloglog": Cloglog, "logistic": Logistic}


def problem_of(kind, columns=2, periods=PERIODS):
    return KINDS[kind](columns + periods + 1, np.inf, 5.0, feature_bound=1.0).by_period(columns, columns + periods)


def rows_of(features, ends, periods=PERIODS):
    """(U K, k + K + 1) samples of users with these features (U, k) who are at risk in their first periods (U,)."""
    at_risk = np.arange(periods) < ends[:, None]
    each = np.concatenate(
        [
            np.repeat(features[:, None], periods, axis=1),
            np.tile(np.eye(periods), (len(features), 1, 1)),
            np.ones((len(features), periods, 1)),
        ],
        axis=2,
    )
    return (each * at_risk[:, :, None]).reshape(-1, features.shape[1] + periods + 1)
