"""The tuner, on made-up clocks: groups within memory, and a choice that depends on nobody who is asked."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from userdp.neural.tuner import MEBIBYTE, Choice, Tuner

SPEED = {False: 2.0, True: 1.0}


def tuner(execution="auto", sample_bytes=1 << 12, model_bytes=1 << 10, memory=1, typical=32, **options):
    return Tuner(
        execution,
        typical=typical,
        memory=memory,
        sample_bytes=sample_bytes,
        model_bytes=model_bytes,
        **{"own_layers": True, "together": True} | options,
    )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_without_padding_users_share_a_call_with_users_of_their_size(sizes):
    sizes = np.array(sizes)
    groups = list(tuner("grouped", memory=64, padded=False).groups(sizes))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    assert len(groups) == len({*sizes.tolist()})
    assert all(len({*sizes[group].tolist()}) == 1 for group in groups)


class Clock:
    """Seconds that computing takes by a law; a computation of more samples than ``most`` fails."""

    def __init__(self, law, most=math.inf):
        self.now, self.law, self.most, self.seen = 0.0, law, most, []

    def prepare(self, way, users, size):
        def compute():
            self.seen.append((users, size))
            if users * size > self.most:
                raise RuntimeError
            self.now += self.law(way) * users * size

        return compute

    def settled(self, made, device="cpu"):
        made.settle(self.prepare, lambda: self.now, device)
        return made.choice

    def way(self, made, device="cpu"):
        return astuple(self.settled(made, device))[:3]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=40),
    st.integers(1, 1 << 13),
    st.integers(1, 1 << 18),
    st.booleans(),
)
def test_groups_hold_everybody_once_alike_and_within_memory(sizes, sample_bytes, model_bytes, grouped):
    made = tuner("grouped" if grouped else "loop", sample_bytes=sample_bytes, model_bytes=model_bytes)
    groups = list(made.groups(np.array(sizes)))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    for group in groups:
        own = np.array(sizes)[group]
        assert own.max() <= 2 * own.min()
        samples = min(512, made.most_samples)
        assert len(group) == 1 or (grouped and own.max() * len(group) <= samples)
        assert len(group) == 1 or 8 * len(group) * model_bytes <= MEBIBYTE
    assert max(1, made.most_samples - 1) * sample_bytes <= max(MEBIBYTE, sample_bytes)


def test_groups_are_as_large_as_they_may_be():
    groups = list(tuner("grouped", sample_bytes=1 << 10).groups(np.full(600, 1)))
    assert [len(group) for group in groups] == [128] * 4 + [88]  # 8 KiB a user of 1 MiB
    groups = list(tuner("grouped", model_bytes=1).groups(np.full(600, 1)))
    assert [len(group) for group in groups] == [256, 256, 88]  # 4 KiB a sample
    assert [group.tolist() for group in tuner("loop").groups(np.array([3, 1, 2]))] == [[0], [2], [1]]


def test_the_fastest_way_is_taken_and_of_those_alike_the_one_that_needs_least_memory():
    fast = {False: 0.9, True: 1.0}
    assert Clock(lambda way: SPEED[way.grouped] / way.samples).way(tuner(memory=64)) == (True, 4096, True)
    assert Clock(lambda way: 1.0 + 0.01 * way.grouped).way(tuner(memory=64)) == (False, 1, False)
    assert Clock(lambda way: fast[way.grouped] / (1 + way.own_layers)).way(tuner(memory=64)) == (False, 1, True)
    assert Clock(lambda way: SPEED[way.grouped] / way.samples).way(tuner(memory=64), "cuda") == (True, 32768, True)


@pytest.mark.parametrize(
    ("options", "most", "expected"),
    [
        ({"own_layers": False}, math.inf, (True, 4096, False)),
        ({"together": False}, math.inf, (False, 1, False)),
        ({}, 32, (False, 1, False)),  # no rule for many users
    ],
)
def test_ways_that_there_are_not_or_that_fail_are_not_taken(options, most, expected):
    assert Clock(lambda way: SPEED[way.grouped] / way.samples, most).way(tuner(memory=64, **options)) == expected


def test_a_choice_is_made_once_and_anew_where_users_must_be_apart_or_the_device_is_another():
    made, clock = tuner(), Clock(lambda way: SPEED[way.grouped])
    choice = clock.settled(made)
    assert made.settled
    assert clock.settled(made) is choice
    assert not made.unsettled().settled
    assert made.choice is choice
    made.keep_apart()
    assert not made.settled
    assert not clock.settled(made).grouped
    for execution, grouped in (("loop", False), ("grouped", True)):
        asked = tuner(execution)
        assert asked.settled
        assert asked.choice == Choice(grouped=grouped, samples=512, own_layers=grouped)
        asked.keep_apart()
        assert not asked.choice.grouped


def test_made_up_users_are_typical_and_fit_the_memory():
    for memory_of_a_sample, size in ((1 << 12, 32), (1 << 16, 16)):
        clock = Clock(lambda way: 1e-9)
        clock.settled(tuner(sample_bytes=memory_of_a_sample))
        assert {samples for _, samples in clock.seen} == {size}
