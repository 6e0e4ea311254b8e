"""What can go wrong, sorted by who has to act.

`BadInput` is the user's to fix (the command line turns it into exit code 2), `RunFailed` happened to a
run that was well specified (exit code 1). Every message is one clear sentence or two: the field, the value,
what to do.
"""


class UserdpError(Exception):
    """Base of all errors that userdp raises on purpose."""


class BadInput(UserdpError, ValueError):
    """A setting, a file or an argument cannot be used as it is."""


class MissingColumn(BadInput):
    """A table lacks a column that is declared; the message names it."""


class MissingAssumption(BadInput):
    """A strategy needs an assumption that the problem's certificate does not give."""


class PopulationTooSmall(BadInput):
    """There are fewer users than the guarantee or the test needs; the message names the number it takes."""


class RunFailed(UserdpError, RuntimeError):
    """A run stopped: too few replies, a failing node, a time limit. What it had written stays on disk."""
