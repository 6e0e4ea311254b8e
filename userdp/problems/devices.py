"""The device that computes a loss: the processor, or a GPU for losses that support one."""

from typing import Literal, Protocol, runtime_checkable

from userdp.errors import BadInput
from userdp.problems.base import Problem

Device = Literal["auto", "cpu", "cuda"]
"""cuda: an NVIDIA GPU; auto: a GPU if this process finds one, else the processor."""


@runtime_checkable
class ChoosesDevice(Protocol):
    """A problem that can be computed on several devices."""

    def use_device(self, device: Device) -> None:
        """Set the device for every process that computes this problem, without looking for it yet."""

    def settle_device(self) -> None:
        """Look for the device in this process; raise `BadInput` if it is missing or cannot compute the problem."""


def use_device(problem: Problem, device: Device) -> None:
    """Set the device of a problem; raise `BadInput` if it is a GPU and NumPy computes the problem."""
    if isinstance(problem, ChoosesDevice):
        problem.use_device(device)
    elif device == "cuda":
        raise BadInput(
            f"engine.device = 'cuda': problem.kind = {problem.name!r} is computed on the processor, only torch modules "
            "run on a GPU; leave engine.device out"
        )


def settle_device(problem: Problem) -> None:
    """Look for a problem's device in this process, if the problem has a choice; see `ChoosesDevice.settle_device`."""
    if isinstance(problem, ChoosesDevice):
        problem.settle_device()
