"""Objects go on from what they declare; what they do not declare is refused when it is written."""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import pytest

from userdp.errors import BadInput
from userdp.noise import SecureNoise, SeededNoise
from userdp.state import Stateful


@dataclass(frozen=True)
class Inner(Stateful):
    remembered = ("length",)
    length: float = 0.0


class Whole(Stateful):
    remembered = ("counts", "recent")
    parts = ("inner", "late")
    given = ("settings",)

    def __init__(self, settings=print):
        self.settings, self.counts, self.recent, self.inner = settings, {1: 2}, deque(maxlen=3), Inner()

    def new_part(self, attribute, state):
        assert attribute == "late"
        return Inner()


def test_a_fresh_object_goes_on_from_a_state_and_keeps_what_it_was_given():
    one, other = Whole(), Whole(len)
    one.counts, one.inner, one.late = {3: 4}, Inner(5.0), Inner(6.0)
    one.recent.extend([1, 2, 3, 4])
    state = one.state()
    assert state == {"counts": {3: 4}, "recent": [2, 3, 4], "inner": {"length": 5.0}, "late": {"length": 6.0}}
    other.restore(state)
    assert (other.counts, other.recent, other.recent.maxlen) == ({3: 4}, deque([2, 3, 4]), 3)
    assert (other.inner, other.late, other.settings) == (Inner(5.0), Inner(6.0), len)


def test_a_part_that_is_not_there_yet_stays_away():
    one = Whole()
    assert one.state()["late"] is None
    one.restore(one.state())
    assert not hasattr(one, "late")


def test_an_attribute_in_no_list_is_refused_by_name():
    one = Whole()
    one.hidden = 1
    with pytest.raises(BadInput, match=r"Whole\.hidden is not declared.*list 'hidden' in Whole\.remembered"):
        one.state()


@pytest.mark.parametrize("value", [object(), np.array([None]), [print], {"a": (1, 2)}, {(1, 2): 3}, Inner()])
def test_what_is_no_plain_data_is_refused_by_name(value):
    one = Whole()
    one.counts = value
    with pytest.raises(BadInput, match=r"Whole\.counts holds a .*, which a checkpoint cannot hold"):
        one.state()


@pytest.mark.parametrize(
    ("change", "name"),
    [({"recent": 3}, "Whole"), ({"inner": {}}, "Inner"), ({"inner": 1}, "Inner"), ({"late": {"width": 1}}, "Inner")],
)
def test_the_state_of_another_class_is_refused(change, name):
    with pytest.raises(BadInput, match=f"the checkpoint does not fit {name} .*: resume with the version of userdp"):
        Whole().restore(Whole().state() | change)
    for lacks in ("counts", "inner"):
        with pytest.raises(BadInput, match="does not fit Whole"):
            Whole().restore({name: value for name, value in Whole().state().items() if name != lacks})


def test_seeded_noise_goes_on_where_it_stood():
    one, other = (SeededNoise(np.random.default_rng(seed)) for seed in (5, 6))
    one.generator.integers(0, 10, dtype=np.uint32)  # keeps half a word
    other.restore(one.state())
    assert (
        other.generator.integers(0, 99, 9, dtype=np.uint32).tolist()
        == one.generator.integers(0, 99, 9, dtype=np.uint32).tolist()
    )
    assert np.array_equal(other.laplace(np.zeros(3), 1.0), one.laplace(np.zeros(3), 1.0))


def test_secure_noise_remembers_nothing():
    assert SecureNoise(0.01).state() == {}
    other = replace(SecureNoise(0.02))
    other.restore({})
    assert other.slack == 0.02
