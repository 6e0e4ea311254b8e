"""Small tables of users and queries of them, for several test files."""

import numpy as np

from userdp.data import Block
from userdp.data.shape import Column, Shape
from userdp.queries.table import TableSettings

SHAPE = Shape(
    7,
    has_target=False,
    bound=1.0,
    named=(
        Column("age", (0,), (0.0, 100.0)),
        Column("visits", (1,), (0.0, 10.0), complete=True),
        Column("city", (2, 3, 4), levels=("Rome", "Oslo", "Bonn")),
        Column("often", (5, 6), levels=("no", "yes")),
    ),
)
SUMS = [
    {"statistic": "count"},
    {"statistic": "mean", "of": "age", "weight": 2.0},
    {"statistic": "mean", "of": "visits"},
    {"statistic": "variance", "of": "age"},
    {"statistic": "histogram", "of": "visits", "bins": [0, 1, 2, 5, 8]},
    {"statistic": "counts", "of": "city"},
    {"statistic": "group_means", "of": "age", "by": "city"},
    {"statistic": "correlation", "of": ["age", "visits"]},
    {"statistic": "effect", "of": "age", "by": "city"},
    {"statistic": "effect", "of": "visits", "by": "city", "bins": [0, 1, 2, 5, 8]},
    {"statistic": "variance_components", "of": "age"},
]
FILTER = {"city": ["Rome", "Oslo"], "age": [30, 90]}
PAIR = ["city", "often"]
SUMS += [{"statistic": "sum", "of": "age", "bound": 120.0}, {"statistic": "shares", "of": "city"}]
SUMS += [{"statistic": "counts", "of": PAIR}, {"statistic": "group_means", "of": "visits", "by": PAIR}]
SUMS += [one | {"per": "sample"} for one in SUMS]
SUMS += [{"statistic": "survival", "time": "age", "event": "city", "event_level": "Rome", "at": [0, 30, 50, 100]}]
FILTERED = [one | {"where": FILTER} for one in SUMS]
SUMS += [one for one in FILTERED if one["statistic"] in ("count", "mean", "sum")]
QUANTILES = [{"statistic": "quantiles", "of": "age", "bins": [0, 20, 30, 100]}]


def query(asked, relation="replace_one"):
    section = {"kind": "table", "ask": asked, "relation": relation, "max_samples": 3}
    return TableSettings.model_validate(section).build(SHAPE, 0)


def people(users):
    """A block of users, each a list of samples (age in [-1, 1] or NaN, visits, level or -1); often: above 5 visits."""
    samples = [sample for user in users for sample in user]
    features = np.zeros((len(samples), 7), dtype=np.float32)
    for row, (age, visits, level) in zip(features, samples, strict=True):
        row[:2] = age, visits
        row[5 + (visits > 0)] = 1.0
        if level >= 0:
            row[2 + level] = 1.0
    return Block(features, np.concatenate([[0], np.cumsum([len(user) for user in users])]))
