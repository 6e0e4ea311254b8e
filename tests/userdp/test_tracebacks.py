"""Errors of public functions end at the caller's line; defects, and whoever asks, get the whole traceback."""

import os
import traceback

import pytest

from userdp.errors import BadInput, RunFailed
from userdp.tracebacks import DEBUG, shows_internals, with_internals, without_internals


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    monkeypatch.delenv(DEBUG, raising=False)


def internal(error, cause=None):
    try:
        _ = {}["deep inside"]
    except LookupError:
        if cause is not None:
            raise error from cause
        raise error  # noqa: B904 -- the exception that is being handled is what must not show


@without_internals
def asked(error, *, cause=None):
    """The only function that callers see in a traceback."""
    internal(error, cause)


def functions(error):
    """Names of the functions in a traceback below this file's test, and what is printed of it."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return frames[1:], "".join(traceback.format_exception(error))


def test_an_error_keeps_type_and_sentence_and_no_frame_below_the_public_function():
    error = BadInput("epsilon = -1: must be positive")
    with pytest.raises(BadInput) as caught:
        asked(error)
    assert caught.value is error
    below, printed = functions(error)
    assert below == ["public"]
    assert "deep inside" not in printed
    assert "USERDP_DEBUG=1 shows the whole traceback" in printed  # the line that raised it
    assert printed.endswith("BadInput: epsilon = -1: must be positive\n")


def test_a_cause_that_an_error_names_stays():
    with pytest.raises(RunFailed) as caught:
        asked(RunFailed("stopped"), cause=KeyError("of the caller's module"))
    below, printed = functions(caught.value)
    assert below == ["public"]
    assert "of the caller's module" in printed
    assert "deep inside" not in printed


@pytest.mark.parametrize(("debug", "error"), [("0", ZeroDivisionError()), ("1", BadInput("no"))])
def test_a_defect_keeps_its_traceback_and_whoever_asks_gets_all_of_it(monkeypatch, debug, error):
    monkeypatch.setenv(DEBUG, debug)
    with pytest.raises(type(error)) as caught:
        asked(error)
    below, printed = functions(caught.value)
    assert below == ["public", "asked", "internal"]
    assert "deep inside" in printed


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_a_block_of_whole_tracebacks_leaves_the_environment_as_it_was(monkeypatch, before):
    if before is not None:
        monkeypatch.setenv(DEBUG, before)
    assert shows_internals() is (before == "1")
    with with_internals():
        assert shows_internals()
    assert os.environ.get(DEBUG) == before


def test_a_public_function_is_still_itself():
    assert (asked.__name__, asked.__module__) == ("asked", __name__)
    assert asked.__doc__ == "The only function that callers see in a traceback."
