"""Values come back as they were, to the bit, and classes only from where the program names them."""

import json
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from strategies.core.snapshots import Snapshot
from userdp.errors import BadInput

numbers = st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.text()
arrays = st_numpy.arrays(
    st.sampled_from([np.float64, np.float32, np.int32, np.uint64, np.bool_]), st_numpy.array_shapes(min_dims=0)
)
scalars = st.floats().map(np.float64) | st.integers(0, 9).map(np.int64)
values = st.recursive(
    numbers | arrays | scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda held: deque(held, maxlen=7))
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=8,
)


@dataclass
class Part:
    held: object = None


@dataclass(frozen=True)
class Frozen:
    held: object = None


class Below(Part):
    pass


@dataclass
class Whole:
    settings: object
    part: Part | None = None
    late: Frozen = field(init=False)


def there_and_back(value, fresh=None):
    taken = Snapshot()
    taken.add("value", value, fresh)
    return Snapshot(json.loads(json.dumps(taken.values, allow_nan=False)), taken.arrays).get("value", fresh)


def bits(value):
    """The value with everything that could differ unseen: types, bits, shapes, order in memory."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, np.asarray(value).tobytes()
    if isinstance(value, float):
        return "float", "nan" if np.isnan(value) else np.float64(value).tobytes()
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [bits(one) for one in value]
    if isinstance(value, dict):
        return "dict", [(bits(key), bits(one)) for key, one in value.items()]
    return type(value), value


@settings(max_examples=40)
@given(values)
def test_values_come_back_to_the_bit(value):
    assert bits(there_and_back(value)) == bits(value)


def test_arrays_keep_their_order_in_memory():
    assert there_and_back(np.zeros((3, 2), order="F")).flags.f_contiguous


def test_a_generator_goes_on_where_it_stood():
    rng = np.random.default_rng(5)
    rng.integers(0, 10, dtype=np.uint32)  # keeps half a word
    again = there_and_back(rng)
    assert [again.random(), *again.integers(0, 99, 9, dtype=np.uint32)] == [
        rng.random(),
        *rng.integers(0, 99, 9, dtype=np.uint32),
    ]


def test_what_the_settings_make_is_not_written():
    def settings():
        return 1

    whole = Whole(settings, Part(np.ones(2)))
    again = there_and_back(whole, Whole(settings, Part(0)))
    assert again.settings is settings
    assert again.part.held.tolist() == [1, 1]


def test_objects_that_a_fresh_one_lacks_are_of_annotated_classes_or_of_some_below():
    whole = Whole(None, Below(1))
    whole.late = Frozen(2)
    again = there_and_back(whole, Whole(None))
    assert (type(again.part), again.part.held, again.late) == (Below, 1, Frozen(2))


@dataclass
class Stranger:
    held: int = 0


def test_other_classes_are_not_made():
    whole = Whole(None)
    whole.part = Stranger()
    with pytest.raises(BadInput, match="damaged"):
        there_and_back(whole, Whole(None))


@pytest.mark.parametrize("value", [lambda: 1, object(), np.array([object()]), Whole(lambda: 1)])
def test_what_has_no_plain_values_is_refused(value):
    with pytest.raises(TypeError, match="cannot be written down"):
        Snapshot().add("value", value, None)
