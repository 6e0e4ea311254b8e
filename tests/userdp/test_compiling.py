"""Loops are compiled wherever they run, and kept where that may be."""

import numpy as np
import pytest

from userdp.arrays import compiling
from userdp.arrays.compiling import compiled


def double(values, doubled):
    for place in range(len(values)):
        doubled[place] = 2 * values[place]


def test_a_loop_is_compiled_and_kept():
    loop, doubled = compiled()(double), np.empty(3)
    loop(np.arange(3.0), doubled)
    assert doubled.tolist() == [0, 2, 4]
    assert loop.stats.cache_path is not None


def test_where_nothing_can_be_written_a_loop_is_compiled_by_every_process(monkeypatch):
    real = compiling.njit

    def refusing(*, cache, **options):
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available for file 'x.py'")
        return real(**options)

    monkeypatch.setattr(compiling, "njit", refusing)
    loop, doubled = compiled()(double), np.empty(3)
    loop(np.arange(3.0), doubled)
    assert doubled.tolist() == [0, 2, 4]
    assert loop.stats.cache_path is None


@pytest.mark.parametrize("liberties", [(), ("reassoc", "nsz")])
def test_liberties_are_those_that_are_named(liberties):
    assert compiled(*liberties)(double).targetoptions["fastmath"] == set(liberties)
