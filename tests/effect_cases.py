"""Made-up people in an experiment, for the tests of effects and of variance components."""

import numpy as np

from userdp.data import Block
from userdp.data.shape import Column, Shape
from userdp.queries.answers import Sums
from userdp.queries.registry import STATISTICS
from userdp.queries.statistics import Facts

SHAPE = Shape(
    6,
    has_target=False,
    bound=1.0,
    named=(
        Column("cost", (0,), (0.0, 100.0)),
        Column("weight", (0,), (50.0, 100.0)),  # the same cells in other units
        Column("arm", (1, 2), levels=("usual", "new")),
        Column("sex", (3, 4, 5), levels=("f", "m", "x")),
    ),
)
FACTS = Facts(SHAPE, 3, users_known=True)
EFFECT = {"statistic": "effect", "of": "cost", "by": "arm"}
STRATIFIED = EFFECT | {"stratum": "sex"}
QUANTILES = EFFECT | {"bins": list(range(0, 101, 10)), "at": [0.25, 0.5]}
COMPONENTS = {"statistic": "variance_components", "of": "cost"}


def made(asked):
    return STATISTICS[asked["statistic"]].model_validate(asked)


def block(users):
    """A block of users, each a list of samples (number in [-1, 1] or NaN, arm or -1, sex or -1)."""
    samples = np.array([sample for user in users for sample in user], dtype=np.float64).reshape(-1, 3)
    return _block(*samples.T, [len(user) for user in users])


def drawn(rng, users):
    """People with one to four samples, whose cost depends on who they are, on their arm and on their sex."""
    sizes, arm = rng.integers(1, 5, users), rng.integers(0, 2, users)
    owners, sex = np.repeat(np.arange(users), sizes), rng.choice(3, users, p=[0.5, 0.35, 0.15])
    own = rng.beta(2 - 0.3 * arm + 0.4 * (sex == 1), 2)[owners]
    cost = 2 * rng.beta(4 * own + 0.05, 4.05 - 4 * own) - 1
    cost[rng.random(len(cost)) < 0.05] = np.nan
    return _block(cost, arm[owners], sex[owners], sizes)


def answers(asked, sums, users, deviation=0.0):
    """The answers that follow from the sums of so many users' rows with noise of that deviation."""
    return made(asked).answers(Sums.of(sums, deviation, float(users)), users, FACTS)


def exact(asked, people):
    """The answers without noise, by level."""
    found = answers(asked, made(asked).rows(people, FACTS).sum(axis=0), people.users)
    return {one.level: one.estimate for one in found}


def _block(cost, arm, sex, sizes):
    features = np.zeros((len(cost), 6), dtype=np.float32)
    features[:, 0] = cost
    for first, codes in ((1, arm), (3, sex)):
        features[codes >= 0, first + codes[codes >= 0].astype(int)] = 1.0
    return Block(features, np.concatenate([[0], np.cumsum(sizes)]))
