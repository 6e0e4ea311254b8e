"""Users' rows of survival: one cell for each user, by brute force over all small users; and what is refused."""

import math
from itertools import product

import numpy as np
import pytest

from userdp.data import Block
from userdp.data.shape import Column, Shape
from userdp.errors import BadInput
from userdp.queries.table import TableSettings

SHAPE = Shape(
    6,
    has_target=False,
    bound=1.0,
    named=(
        Column("day", (0,), (0.0, 100.0)),
        Column("dead", (1,), (0.0, 1.0)),
        Column("arm", (2, 3), levels=("a", "b")),
        Column("state", (4, 5), levels=("well", "ill")),
    ),
)
AT = [10, 20, 40, 80]
PERIODS = len(AT) - 1
ASKED = {"statistic": "survival", "time": "day", "event": "dead", "at": AT}
DAYS = (0, 10, 19, 20, 79, 80, 100, math.nan)  # before the first edge, on edges, beyond the last one, none
SAMPLES = [*product(DAYS, (0, 1, math.nan), (-1, 0, 1))]


def query(**keys):
    section = {"kind": "table", "ask": [ASKED | keys]}
    return TableSettings.model_validate(section).build(SHAPE, 0)


def block(users):
    """A block of users, each a list of samples (day, dead, arm or -1)."""
    samples = [sample for user in users for sample in user]
    features = np.zeros((len(samples), 6), dtype=np.float32)
    features[:, 0] = np.array([day for day, _, _ in samples]) / 50 - 1
    for row, (_, dead, arm) in zip(features, samples, strict=True):
        row[1] = 2 * dead - 1
        if arm >= 0:
            row[2 + arm] = 1.0
        if not math.isnan(dead):
            row[4 + dead] = 1.0
    return Block(features, np.concatenate([[0], np.cumsum([len(user) for user in users])]))


def rows(problem, them):
    return problem.user_shares(problem.bound(them)[0])


def place(user, *, by):
    """The cell of a user by plain loops: events, then people who left, by period, then those at the last edge."""
    usable = [(day, dead) for day, dead, _ in user if day >= AT[0] and not math.isnan(dead)]
    arms = [arm for _, _, arm in user if arm >= 0] if by else [0]
    cells = 2 * PERIODS + 1
    if not usable or not arms:
        return cells * (2 if by else 1)
    events = [day for day, dead in usable if dead == 1 and day < AT[-1]]
    end = min(events) if events else max(day for day, _ in usable)
    period = sum(end >= edge for edge in AT) - 1
    return arms[0] * cells + (period if events else PERIODS + period)


@pytest.mark.parametrize("keys", [{}, {"by": "arm"}, {"event": "state", "event_level": "ill", "by": "arm"}])
def test_all_users_of_up_to_two_samples_have_one_cell_alone_and_in_company(keys):
    """Each row is one cell of 1, so that any two differ by sqrt(2) at most, and sums by 1 for a user more."""
    users = [[one] for one in SAMPLES] + [list(pair) for pair in product(SAMPLES, repeat=2)]
    problem = query(**keys)
    found = rows(problem, block(users))
    inside = 1 - 2.0**-40
    assert set(np.unique(found)) == {0.0, inside}
    np.testing.assert_array_equal((found > 0).sum(axis=1), 1)
    expected = [place(user, by="by" in keys) for user in users]
    np.testing.assert_array_equal(found.argmax(axis=1), expected)
    assert len(set(expected)) == found.shape[1]  # all cells occur
    apart = {
        round(float(np.linalg.norm(one - other)), 12) for one, other in product(np.unique(found, axis=0), repeat=2)
    }
    assert apart == {0.0, round(math.sqrt(2) * inside, 12)}
    for number in range(0, len(users), 7):
        np.testing.assert_array_equal(rows(problem, block(users[number : number + 1]))[0], found[number])


def test_three_samples_in_any_order_of_time():
    samples = [(15, 0, 1), (30, 1, 0), (50, 1, 1), (70, 0, -1), (90, 0, 0)]
    users = [list(three) for three in product(samples, repeat=3)]
    found = rows(query(by="arm"), block(users))
    np.testing.assert_array_equal(found.argmax(axis=1), [place(user, by=True) for user in users])


def test_an_event_on_the_last_edge_of_the_range_counts_as_none():
    found = rows(query(at=[0, 100]), block([[(100, 1, 0)], [(99.5, 1, 0)], [(0, 1, 0)], [(0, 0, 0)]]))
    assert found.argmax(axis=1).tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"at": [0, 50, 120]}, "ask.at = [0.0, 50.0, 120.0]: an edge lies outside of data.ranges.day = [0.0, 100.0]"),
        ({"at": [0, 50, 50]}, "ask.at = [0.0, 50.0, 50.0]: must be two or more edges that rise"),
        ({"event": "day"}, "declare data.ranges.day = [0, 1]"),
        ({"event": "state"}, "ask.event = 'state': the column holds levels; name that of an event: event_level"),
        (
            {"event": "state", "event_level": "il"},
            "ask.event_level = 'il': there is no such level; did you mean 'ill'?",
        ),
        ({"event": "dead", "event_level": "1"}, "ask.event = 'dead': the column holds numbers"),
        ({"event": "deed"}, "ask.event = 'deed': there is no such column; did you mean 'dead'?"),
        ({"time": "arm"}, "ask.time = 'arm': the column holds levels"),
        ({"by": "day"}, "ask.by = 'day': the column holds numbers"),
    ],
)
def test_refusals_name_the_key_and_the_remedy(keys, sentence):
    with pytest.raises(BadInput) as error:
        query(**keys)
    assert sentence in str(error.value)


def test_votes_of_samples_are_refused():
    with pytest.raises(ValueError, match="Input should be 'user'"):
        query(per="sample")
