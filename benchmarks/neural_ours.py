"""userdp in benchmarks/neural.py: a node with all users, asked for the sum of their clipped local updates."""

from typing import Any

import numpy as np
from neural_models import MODELS, SEED, STEP_SIZE, STEPS, sample_losses
from neural_worker import Work, asked, serve
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.data import Block
from userdp.data.federation import ColumnarFederation
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import TorchProblem


class FromWindow(nn.Module):
    """A module of codes, on windows of float32 codes whose last character is but a target."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, windows: Tensor) -> Tensor:
        """(N, L + 1) -> the module's outputs."""
        outputs: Tensor = self.module(windows[:, :-1].long())
        return outputs


def window_losses(outputs: Tensor, windows: Tensor) -> Tensor:
    """(N,): of the next character after each."""
    return sample_losses(outputs, windows[:, 1:].long())


def ours(work: Work) -> tuple[TorchProblem, Block]:
    """The model as a problem, and its users as a block: all that knows how sequences are handed over."""
    make = MODELS[work.model].make
    inputs, targets, offsets = work.arrays()
    if MODELS[work.model].data == "digits":
        block = Block(inputs, offsets, targets[:, 0].astype(np.float32))
        return TorchProblem(make, "cross_entropy", inputs.shape[1], seed=SEED), block
    windows = np.column_stack([inputs, targets[:, -1]]).astype(np.float32)
    problem = TorchProblem(lambda: FromWindow(make()), window_losses, windows.shape[1], has_targets=False, seed=SEED)
    return problem, Block(windows, offsets)


def main() -> None:
    work, total = asked()
    problem, block = ours(work)
    users = np.arange(block.users)
    node = Node(problem, ColumnarFederation(block), users)
    computation = Computation(
        "local_update",
        reduce="sum",
        clip_norm=MODELS[work.model].clip_norm,
        parameters={"steps": STEPS, "step_size": STEP_SIZE},
    )
    computation(problem, problem.initial(), block.part(0, 1))  # says why, where a node would count users without

    def run_round() -> NDArray[Any]:
        answer = node.compute(problem.initial(), users, computation)
        if answer.non_finite:
            raise RuntimeError(f"{answer.non_finite} users have no update")
        return np.asarray(answer.values[0])

    serve("userdp", run_round, total)


if __name__ == "__main__":
    main()
