"""A GPU beside the processor and beside plain torch on the same card: three models, and a low-rank adapter.

For each, on made-up users of 4 to 64 samples, without a network:

- equal: each user's gradient, and its move in five steps of local training, on both devices;
- speed: local training of all users, clipped and summed, by a userdp node and by a loop of plain torch over users;
- memory: the card's peak during that, beside what ``problem.memory`` allows;
- actors: a run of two actors that share the card beside the same run in one process, for the first model.

What cannot be measured is left out with its reason: memory on a processor, the adapter without transformers and peft.
``python research/gpu.py --json research/results/gpu.json``; ``--device cpu --quick`` tries the script without a card.
"""

import argparse
import copy
import json
import logging
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from neural_models import MODELS, SEED, STEP_SIZE, STEPS, VOCABULARY, WINDOW, average_loss
from numpy.typing import NDArray
from torch import Tensor, nn

from simulations.engines.grids import shards
from simulations.engines.ray_grid import RayGrid
from strategies import DPFedSGD, PublicFacts, model_vector
from userdp import Privacy
from userdp.data import Block
from userdp.data.federation import ColumnarFederation
from userdp.data.shape import Sequence, Shape
from userdp.errors import UserdpError
from userdp.neural.settings import TorchSettings
from userdp.nodes.computations import Computation
from userdp.nodes.local_training import LocalTraining
from userdp.nodes.node import Node
from userdp.problems import TorchProblem
from userdp.problems.base import Device

TOLERANCE = 1e-4
"""Largest relative difference, in l2 norm, between devices and between ways: float32."""
CASES = ("perceptron", "gru", "transformer", "adapter")
USERS, MOST, FEW = 300, 64, 8
CLIP = 0.2
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Trial:
    """What all models have in common.

    Attributes:
        device: beside the processor.
        sizes: (U,) samples of each user.
        memory: mebibytes that gradients may take at once.
        folder: for files.
    """

    device: Device
    sizes: NDArray[np.int64]
    memory: int
    folder: Path


@dataclass
class Row:
    """One model; differences are relative, in l2 norm, seconds are medians of the clock.

    Attributes:
        parameters: trained.
        gradients, updates: the largest difference of a user's row between the device and the processor.
        total: the difference of ours from the loop's sum.
        ours, loop: seconds of local training of all users.
        memory_mib: what gradients may take at once.
        peak_mib: the card's peak above what was held before; None on a processor.
        actors: the difference of the shared card's model from that of one process; None where it was not tried.
    """

    model: str
    users: int
    parameters: int
    gradients: float
    updates: float
    total: float
    ours: float
    loop: float
    memory_mib: int
    peak_mib: float | None = None
    actors: float | None = None

    @property
    def wrong(self) -> bool:
        """True if any difference is beyond float32's."""
        found = (self.gradients, self.updates, self.total, self.actors or 0.0)
        return not max(found) <= TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="beside the processor (cuda)")
    parser.add_argument("--minutes", type=float, default=8.0, help="models not begun by then are left out (default 8)")
    parser.add_argument("--models", nargs="*", choices=CASES, default=CASES, help="some of them (default all)")
    parser.add_argument("--quick", action="store_true", help="few users: only for a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("userdp").setLevel(logging.ERROR)  # a run that ends after two rounds learns nothing
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --device cpu --quick tries the script")
    users, most, memory = (FEW, FEW, 32) if arguments.quick else (USERS, MOST, 1024)
    sizes = np.random.default_rng(SEED).integers(4, most + 1, users)
    end, rows, left_out = time.monotonic() + 60 * arguments.minutes, list[Row](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(arguments.device, sizes, memory, Path(folder))
        for name in arguments.models:
            try:
                if time.monotonic() < end:
                    rows.append(measured(name, trial))
                    print(told(rows[-1]), flush=True)
                else:
                    left_out[name] = "no time was left"
            except (ImportError, UserdpError) as error:
                left_out[name] = str(error)
            if arguments.json:  # after every model: a machine that is lent may be taken back
                report = {"machine": machine(arguments.device), "rows": [asdict(row) for row in rows]}
                arguments.json.write_text(json.dumps(report | {"left_out": left_out}, indent=2) + "\n")
    print("".join(f"{name} is left out: {reason}\n" for name, reason in left_out.items()), end="")
    sys.exit(1 if any(row.wrong for row in rows) else 0)


def measured(name: str, trial: Trial) -> Row:
    """All of one model."""
    near, block, each_step = made(name, replace(trial, device="cpu"))
    far, _, _ = made(name, trial)
    users, device = block.users, trial.device
    training = LocalTraining(step_size=STEP_SIZE, steps=STEPS)
    x, few = near.initial(), block.part(0, min(users, 50))
    gradients = [problem.user_gradients(x, few) for problem in (far, near)]
    updates = [problem.local_updates(x, few, training) for problem in (far, near)]
    node = Node(far, ColumnarFederation(block), np.arange(users))
    everybody = Computation(
        "local_update", reduce="sum", clip_norm=CLIP, parameters={"steps": STEPS, "step_size": STEP_SIZE}
    )

    def ours() -> NDArray[Any]:
        return np.asarray(node.compute(x, np.arange(users), everybody).values[0])

    loop = plain(far, block, each_step, device)
    (total, mine), (wanted, theirs) = timed(ours, device, 3), timed(loop, device, 1)
    return Row(
        name,
        users,
        far.dimension,
        *(largest(*pair) for pair in (gradients, updates, ([total], [wanted]))),
        mine,
        theirs,
        trial.memory,
        peak(ours) if device == "cuda" else None,
        shared(name, trial, block) if name == CASES[0] else None,
    )


def made(name: str, trial: Trial) -> tuple[TorchProblem, Block, bool]:
    """The model as a problem, its users, and whether it predicts every step of a window."""
    random = np.random.default_rng(SEED)
    offsets = np.concatenate([[0], np.cumsum(trial.sizes)])
    options: dict[str, Any] = {"seed": SEED, "device": trial.device, "memory": trial.memory}
    if name == "perceptron":
        pixels, labels = random.uniform(size=(offsets[-1], 64)), random.integers(10, size=offsets[-1])
        block = Block(pixels.astype(np.float32), offsets, labels.astype(np.float32))
        return TorchProblem(MODELS[name].make, "cross_entropy", 64, **options), block, False
    block = Block(random.integers(VOCABULARY, size=(offsets[-1], WINDOW)).astype(np.int32), offsets)
    windows = Sequence(WINDOW, (VOCABULARY,))
    if name == "adapter":
        adapter = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}
        given = {"kind": "torch", "loss": "cross_entropy", "model": f"hf:{base(trial.folder)}", "adapter": adapter}
        settings = TorchSettings.model_validate(given | {"memory": trial.memory})
        problem: Any = settings.build(Shape(WINDOW, has_target=False, sequence=windows), seed=SEED)
        problem.use_device(trial.device)
        return problem, block, True
    return TorchProblem(MODELS[name].make, "cross_entropy", sequence=windows, **options), block, True


def base(folder: Path) -> Path:
    """A small Llama of random weights, written once."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 -- an extra, and slow to import
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    place = folder / "base"
    if not place.exists():
        disable_progress_bar()
        torch.manual_seed(SEED)
        sizes = {"hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 4, "num_attention_heads": 4}
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **ends)).save_pretrained(place)
    return place


def plain(problem: TorchProblem, block: Block, each_step: bool, device: Device) -> Callable[[], NDArray[Any]]:
    """The same sum by a loop over users, autograd and torch.optim.SGD; all tensors on the device before."""
    original = problem.engine.model.original
    module = copy.deepcopy(original.module).train().to(device)
    for name, one in module.named_parameters():
        one.requires_grad_(name in original.parameters.shapes)
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    samples = torch.as_tensor(block.features, device=device)
    if each_step:
        targets = samples.long()
        inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1] + 1], 1)
    else:
        inputs, targets = samples, torch.as_tensor(block.targets, device=device).long()[:, None]
    users = [(inputs[own], targets[own]) for own in map(slice, block.offsets[:-1], block.offsets[1:])]
    trained = [one for one in module.parameters() if one.requires_grad]
    start = [one.detach().clone() for one in trained]

    def run() -> NDArray[Any]:
        sums: list[Tensor] = [torch.zeros_like(one) for one in start]
        for inputs, targets in users:
            optimiser = torch.optim.SGD(trained, lr=STEP_SIZE)
            for _ in range(STEPS):
                optimiser.zero_grad()
                torch.autograd.backward(average_loss(module(inputs), targets))
                optimiser.step()
            with torch.no_grad():
                moved = [after - before for after, before in zip(trained, start, strict=True)]
                length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in moved]))
                factor = min(1.0, CLIP / max(float(length), 1e-30))
                for whole, part, one, before in zip(sums, moved, trained, start, strict=True):
                    whole.add_(part, alpha=factor)
                    one.copy_(before)
        return torch.cat([one.flatten() for one in sums]).cpu().numpy()

    return run


def timed(run: Callable[[], NDArray[Any]], device: Device, calls: int) -> tuple[NDArray[Any], float]:
    """The result, and the median seconds of calls after one that is not counted."""
    seconds, result = [], run()
    for _ in range(calls):
        settle(device)
        start = time.perf_counter()
        result = run()
        settle(device)
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def settle(device: Device) -> None:
    """Wait for the card."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak(run: Callable[[], object]) -> float:
    """Mebibytes that the call takes on the card at most, beyond what is held before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / MEBIBYTE


def shared(name: str, trial: Trial, block: Block) -> float:
    """The difference of two rounds by two actors, each on half of a card, from the same rounds by one actor."""
    models = []
    for actors in (2, 1):
        problem, _, _ = made(name, trial)
        recipe = DPFedSGD(rounds=2, clip_norm=CLIP, learning_rate=STEP_SIZE)
        strategy = recipe.strategy(problem, PublicFacts(block.users), Privacy(8.0, 1e-6, noise="seeded"), seed=SEED)
        share = 1 / actors if trial.device == "cuda" else 0.0
        with RayGrid(problem, ColumnarFederation(block), shards(block.users), actors, gpus=share) as grid:
            models.append(model_vector(strategy.start(grid).arrays) - problem.initial())
    return largest([models[0]], [models[1]])


def largest(found: Any, wanted: Any) -> float:
    """The largest difference of two rows, relative to the second."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-12)) for one, other in pairs)


def told(row: Row) -> str:
    """The row for people."""
    memory = "" if row.peak_mib is None else f", peak {row.peak_mib:.0f} of {row.memory_mib} MiB"
    together = "" if row.actors is None else f", two actors differ by {row.actors:.1e}"
    differences = f"gradients {row.gradients:.1e}, updates {row.updates:.1e}, sum {row.total:.1e}"
    return f"{row.model}: {row.ours:.3f} s, loop {row.loop:.3f} s; {differences}{memory}{together}"


def machine(device: Device) -> dict[str, str]:
    """What it was measured on."""
    card = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"device": card, "torch": str(torch.__version__), "python": platform.python_version()}


if __name__ == "__main__":
    main()
