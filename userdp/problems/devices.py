"""What a loss is computed on: the processor, or a GPU where a loss knows how."""

from typing import Literal, Protocol, runtime_checkable

from userdp.errors import BadInput
from userdp.problems.base import Problem

Device = Literal["auto", "cpu", "cuda"]
"""cuda: an NVIDIA GPU; auto: that where there is one, in each process by itself."""


@runtime_checkable
class ChoosesDevice(Protocol):
    """A problem that can be computed on several devices."""

    def use_device(self, device: Device) -> None:
        """Compute there from now on, in whatever process that is; nothing is looked for yet."""

    def settle_device(self) -> None:
        """Look for the device in this process.

        Raises:
            BadInput: it is not there, or the problem cannot be computed on it.
        """


def use_device(problem: Problem, device: Device) -> None:
    """Say where a problem is to be computed.

    Raises:
        BadInput: a GPU is asked for, and the problem is computed by NumPy.
    """
    if isinstance(problem, ChoosesDevice):
        problem.use_device(device)
    elif device == "cuda":
        raise BadInput(
            f"engine.device = 'cuda': problem.kind = {problem.name!r} is computed on the processor, only torch modules "
            "run on a GPU; leave engine.device out"
        )


def settle_device(problem: Problem) -> None:
    """Look for a problem's device in this process, where it has a choice.

    Raises:
        BadInput: the device is not there, or the problem cannot be computed on it.
    """
    if isinstance(problem, ChoosesDevice):
        problem.settle_device()
