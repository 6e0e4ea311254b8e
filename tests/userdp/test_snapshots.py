"""Plain data come back as they were, to the bit; objects are not written, and no class is made from a file."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from userdp.errors import BadInput
from userdp.snapshots import Snapshot

numbers = st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.text()
arrays = st_numpy.arrays(
    st.sampled_from([np.float64, np.float32, np.int32, np.uint64, np.bool_]), st_numpy.array_shapes(min_dims=0)
)
scalars = st.floats().map(np.float64) | st.integers(0, 9).map(np.int64)
values = st.recursive(
    numbers | arrays | scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


def there_and_back(value):
    taken = Snapshot()
    taken.add("value", value)
    return Snapshot(json.loads(json.dumps(taken.values, allow_nan=False)), taken.arrays).get("value")


def bits(value):
    """The value with everything that could differ unseen: types, bits, shapes, order in memory."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, np.asarray(value).tobytes()
    if isinstance(value, float):
        return "float", "nan" if np.isnan(value) else np.float64(value).tobytes()
    if isinstance(value, list):
        return "list", [bits(one) for one in value]
    if isinstance(value, dict):
        return "dict", [(bits(key), bits(one)) for key, one in value.items()]
    return type(value), value


@settings(max_examples=40)
@given(values)
def test_values_come_back_to_the_bit(value):
    assert bits(there_and_back(value)) == bits(value)


def test_arrays_keep_their_order_in_memory():
    assert there_and_back(np.zeros((3, 2), order="F")).flags.f_contiguous


class Part:
    """An object that says nothing of what it remembers."""


@pytest.mark.parametrize("value", [lambda: 1, Part(), Part, (1, 2), {1}, np.array([object()])])
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(TypeError, match="cannot be written down"):
        Snapshot().add("value", value)


def test_what_cannot_be_read_is_not_called_damaged():
    for written in ({"array": "gone"}, {"eval": "1"}, {"list": [{}]}, {"float": "one"}, {"object": ["Popen", {}]}):
        with pytest.raises(BadInput, match="holds no 'value' that can be read: resume with the version") as refused:
            Snapshot({"value": written}).get("value")
        assert "damaged" not in str(refused.value)
