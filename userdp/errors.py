"""Errors, sorted by who has to act.

The user can fix a `BadInput` (exit code 2 of the command line). A `RunFailed` happened to a well specified run (exit
code 1). Every message is one clear sentence or two: the field, the value, the fix.
"""


class UserdpError(Exception):
    """The base of all errors that userdp raises on purpose."""


class BadInput(UserdpError, ValueError):
    """A setting, a file or an argument cannot be used as it is."""


class MissingColumn(BadInput):
    """A table lacks a declared column; the message names it."""


class MissingAssumption(BadInput):
    """A strategy needs an assumption that the problem's certificate does not give."""


class PopulationTooSmall(BadInput):
    """The guarantee or the test needs more users; the message names the number."""


class ContractBroken(BadInput, AssertionError):
    """A class from outside breaks the contract of its kind; the sentence names the class and the remedy."""


class RunFailed(UserdpError, RuntimeError):
    """A run stopped: too few replies, a failing node, a time limit. The files it had written stay on disk."""


def insist(subject: object, held: bool, fault: str) -> None:
    """Raise `ContractBroken` with the fault of the subject's class, a sentence without subject, unless ``held``."""
    if not held:
        raise ContractBroken(f"{type(subject).__name__} {fault}")
