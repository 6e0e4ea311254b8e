"""Noise is opened once in a run and all its resumes, and salts and keys are drawn anew for each run."""

import numpy as np
import pytest
from any_strategy import FACTS, USERS, halves, method_of, problem_of
from helpers import federation_of, make, run
from resumable import Kept

from strategies import STRATEGIES, DPFedSGD, LearnCoordinates
from strategies.core.run_state import Resumed
from strategies.wire.roster import Roster
from userdp.data.stored import SampleFile
from userdp.masking.masks import MaskKey
from userdp.nodes.node import Node
from userdp.problems import Squared

SLOW = {"sparse_exponential", "averaged_clipping", "robust_rounds", "outlier_removal"}
AROUND = {
    "held out": {"held_out": 40, "choose_best": True},
    "prepared": {"preparation": LearnCoordinates, "compare_with_initial": True, "held_out": 40},
}


def made(name):
    if name in AROUND:
        problem = Squared(2, np.inf, 5.0, low=-2.0, high=2.0, intercept=True, feature_bound=1.0)
        return make(DPFedSGD, problem, USERS, 8.0, 1e-4, facts=FACTS, rounds=3, **AROUND[name])
    return method_of(name, epsilon=8.0, unit=STRATEGIES[name].about.units[0])


def opened(name, **start):
    """The keys of the noise that a run opens, but for what its memory goes on with."""
    method, found = made(name), []
    known, streams, resumed = method.streams.open, method.streams, "resumed" in start

    def noted(*place):
        if not resumed or streams._before or not start["resumed"].kept.get("streams")["opened"]:
            found.append(place)

    method.streams.open = lambda seed, *place: noted(seed, *place[:2]) or known(seed, *place)
    data = halves(method.original, USERS + (40 if name in AROUND else 0))
    run(method, data, **start)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in [*STRATEGIES, *AROUND]]
)
def test_a_resumed_run_opens_what_was_left_and_nothing_that_was_opened_before(name):
    keeper = Kept()
    whole = opened(name, keeper=keeper)
    assert len(set(whole)) == len(whole)
    before = set()
    for kept in keeper.kept[:: max(1, len(keeper.kept) // 3)]:
        before = {tuple(place) for place in kept.get("streams")["opened"]}
        left = opened(name, resumed=Resumed(kept), keeper=Kept())
        assert not before & {place[1:] for place in left}
        assert [place for place in whole if place[1:] not in before] == left
    assert before or not whole or name == "non_private"


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: Roster(4)._salt,
        lambda: SampleFile(1, 1, "f4", targets=False)._key,
        lambda: MaskKey().secret,
        lambda: Node(problem_of("dp_fed_sgd"), federation_of(np.zeros((1, 2))), np.arange(1)).key.secret,
    ],
    ids=["salt", "file", "mask key", "node"],
)
def test_what_is_to_be_drawn_anew_is_never_the_same_and_never_plain(drawn):
    found = [drawn() for _ in range(8)]
    assert len(set(found)) == 8
    assert all(len(set(one)) > 4 for one in found)  # bytes that somebody wrote down would repeat


def test_each_run_of_one_seed_asks_for_labels_under_a_salt_of_its_own():
    salts = {made("dp_fed_sgd")._roster._salt for _ in range(4)}
    assert len(salts) == 4
