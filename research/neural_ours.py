"""userdp in research/neural.py: a node with all users, asked for the sum of their clipped local updates."""

from typing import Any

import numpy as np
from neural_models import MODELS, SEED, STEP_SIZE, STEPS, VOCABULARY, WINDOW
from neural_worker import Work, asked
from numpy.typing import NDArray
from worker import serve

from userdp.data import Block
from userdp.data.federation import ColumnarFederation
from userdp.data.shape import Sequence
from userdp.nodes.computations import Computation
from userdp.nodes.local_training import local_update
from userdp.nodes.node import Node
from userdp.problems import TorchProblem


def ours(work: Work) -> tuple[TorchProblem, Block]:
    """The model as a problem, and its users as a block."""
    model = MODELS[work.model]
    inputs, targets, offsets = work.arrays()
    if model.each_step:
        problem = TorchProblem(model.make, "cross_entropy", sequence=Sequence(WINDOW, (VOCABULARY,)), seed=SEED)
        return problem, Block(targets.astype(np.int32), offsets)
    last = targets[:, -1].astype(np.float32)
    if model.data == "digits":
        return TorchProblem(model.make, "cross_entropy", inputs.shape[1], seed=SEED), Block(inputs, offsets, last)
    problem = TorchProblem(model.make, "cross_entropy", WINDOW, levels=(VOCABULARY + 1,) * WINDOW, seed=SEED)
    return problem, Block(inputs.astype(np.int32), offsets, last)


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
    # Says why, where a node would count users without.
    local_update(problem, problem.initial(), block.part(0, 1), **computation.parameters)

    def run_round() -> NDArray[Any]:
        answer = node.compute(problem.initial(), users, computation)
        if answer.non_finite:
            raise RuntimeError(f"{answer.non_finite} users have no update")
        return np.asarray(answer.values[0])

    serve(("torch", "numpy", "userdp"), run_round, total)


if __name__ == "__main__":
    main()
