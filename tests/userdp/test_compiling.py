"""Loops are compiled wherever they run, and kept where that may be."""

import sys

import numpy as np
import pytest

from userdp.arrays.compiling import can_compile, compiled
from userdp.data.block import Block
from userdp.problems import Logistic, generalised_linear


def double(values, doubled):
    for place in range(len(values)):
        doubled[place] = 2 * values[place]


def test_a_loop_is_compiled_and_kept():
    loop, doubled = compiled()(double), np.empty(3)
    loop(np.arange(3.0), doubled)
    assert doubled.tolist() == [0, 2, 4]
    assert loop.stats.cache_path is not None


def test_where_nothing_can_be_written_a_loop_is_compiled_by_every_process(monkeypatch):
    import numba

    real = numba.njit

    def refusing(*, cache, **options):
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available for file 'x.py'")
        return real(**options)

    monkeypatch.setattr(numba, "njit", refusing)
    loop, doubled = compiled()(double), np.empty(3)
    loop(np.arange(3.0), doubled)
    assert doubled.tolist() == [0, 2, 4]
    assert loop.stats.cache_path is None


@pytest.mark.parametrize("liberties", [(), ("reassoc", "nsz")])
def test_liberties_are_those_that_are_named(liberties):
    assert compiled(*liberties)(double).targetoptions["fastmath"] == set(liberties)


@pytest.fixture
def without_numba(monkeypatch):
    """The library as in an image without numba."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "userdp.problems.one_pass", raising=False)
    monkeypatch.setattr("userdp.problems.generalised_linear.can_compile", lambda: False)


def gradients():
    """The gradients of users with so much data that loops are compiled for them."""
    features = np.random.default_rng(2).normal(size=(4000, 300)).astype(np.float32)
    block = Block(features, np.arange(0, 4001, 40), np.zeros(4000, dtype=np.float32))
    assert features.nbytes > generalised_linear.COMPILED_BYTES
    return Logistic(300, feature_norm=np.inf, radius=1.0).rough_user_gradients(np.full(300, 0.01), block)


def test_without_numba_numpy_gives_the_same(request):
    assert can_compile()
    compiled_ones = gradients()
    request.getfixturevalue("without_numba")
    np.testing.assert_allclose(gradients(), compiled_ones, atol=1e-6)
