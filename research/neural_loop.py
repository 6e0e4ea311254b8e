"""The plain loop of research/neural.py: user by user, autograd and torch.optim.SGD, nothing else."""

import copy
from functools import cache
from typing import Any

import torch
from neural_models import MODELS, STEP_SIZE, STEPS, average_loss, initial_module
from neural_worker import Work, asked
from numpy.typing import NDArray
from torch import Tensor, nn
from worker import serve


@cache
def prepared(work: Work) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """The module that users start from, and their samples; once per process."""
    return initial_module(work.model), work.users()


def clipped_update(module: nn.Module, inputs: Tensor, targets: Tensor, clip_norm: float) -> list[Tensor]:
    """The clipped change of a copy of the module after some steps on one user's samples."""
    own = copy.deepcopy(module)
    optimizer = torch.optim.SGD(own.parameters(), lr=STEP_SIZE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(average_loss(own(inputs), targets))
        optimizer.step()
    with torch.no_grad():
        moved = [after - before for after, before in zip(own.parameters(), module.parameters(), strict=True)]
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in moved]))
        factor = min(1.0, clip_norm / max(float(length), 1e-30))
        return [part * factor for part in moved]


def main() -> None:
    work, total = asked()
    module, users = prepared(work)
    clip_norm = MODELS[work.model].clip_norm

    def run_round() -> NDArray[Any]:
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for inputs, targets in users:
            for whole, part in zip(sums, clipped_update(module, inputs, targets, clip_norm), strict=True):
                whole.add_(part)
        return torch.cat([whole.flatten() for whole in sums]).numpy()

    serve(("torch", "numpy"), run_round, total)


if __name__ == "__main__":
    main()
