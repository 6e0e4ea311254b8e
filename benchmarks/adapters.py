"""A round of low-rank adapters, every user clipped, beside plain torch and peft without privacy, and pfl's loop.

A Llama of 1.4 million parameters with random weights, an adapter of rank 8 on queries and values, 48 users of 1 to 4
windows of 128 tokens (or of what ``--window`` says). Contestants, interleaved so that a busy machine slows all alike:

- plain: transformers and peft, user after user: forward and backward pass of all of a user's windows, a step of SGD;
- pfl: version 0.6 with its simulation backend and its clipping, if it can be imported; else its way by hand: before
  each user the server's adapter is loaded, afterwards the difference is read and clipped;
- ours: each user's step from the server's adapter, clipped and summed (`TorchProblem.local_updates`).

Processor time of one thread; ratios within a repetition, and their medians. Sums of ours and of pfl's way by hand are
compared. ``python benchmarks/adapters.py --check``.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn import functional

from userdp.arrays.sparse_rows import clip_rows
from userdp.data import Block
from userdp.data.shape import Sequence, Shape
from userdp.neural.settings import TorchSettings
from userdp.nodes.local_training import LocalTraining

TOKENS, USERS, RANK, CLIP, STEP = 259, 48, 8, 0.05, 0.1
TARGETS = ["q_proj", "v_proj"]
LIMIT, LIMIT_PFL = 1.2, 0.9
"""The largest ratio of ours to plain, and to pfl or its way by hand."""


@dataclass(frozen=True)
class Row:
    """One line of the table: median milliseconds of each contestant, and medians of ratios."""

    window: int
    plain: float
    pfl: float
    ours: float
    pfl_is_real: bool
    ours_over_plain: float
    ours_over_pfl: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7, help="measured repetitions (default 7)")
    parser.add_argument("--window", type=int, nargs="*", default=[128], help="tokens of a window (default 128)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 above {LIMIT} or {LIMIT_PFL} times")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1), tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        make_base(folder)
        rows = [measure(folder, window, arguments.repetitions) for window in arguments.window]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    if arguments.check:
        slow = [row for row in rows if row.ours_over_plain > LIMIT or row.ours_over_pfl > LIMIT_PFL]
        sys.exit(1 if slow else 0)


def make_base(folder: str) -> None:
    """Write the base."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 -- slow to import
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 4, "num_attention_heads": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=TOKENS, max_position_embeddings=512, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(folder)


def adapted(folder: str) -> Any:
    """The base with an adapter, as peft's users make it."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 -- slow to import
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    base = AutoModelForCausalLM.from_pretrained(folder)
    settings = LoraConfig(r=RANK, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM")
    return get_peft_model(base, settings).eval()


class WithLoss(nn.Module):
    """The model as pfl wants it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of one user's windows."""
        logits = self.model(input_ids=tokens).logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def metrics(self, tokens: Tensor, targets: Tensor) -> dict[str, Any]:
        """None: no round evaluates."""
        return {}


def measure(folder: str, window: int, repetitions: int) -> Row:
    """One size; the first repetition is warm-up."""
    random = np.random.default_rng(1)
    sizes = random.integers(1, 5, USERS)
    codes = random.integers(0, TOKENS, (sizes.sum(), window)).astype(np.int32)
    block = Block(codes, np.concatenate([[0], np.cumsum(sizes)]))
    adapter = {"kind": "lora", "rank": RANK, "targets": TARGETS}
    given = {"kind": "torch", "loss": "cross_entropy", "model": f"hf:{folder}", "adapter": adapter}
    problem: Any = TorchSettings.model_validate(given).build(
        Shape(window, has_target=False, sequence=Sequence(window, (TOKENS,))), seed=0
    )
    start = problem.initial()
    seen = torch.cat([torch.ones((len(codes), 1), dtype=torch.long), torch.as_tensor(codes[:, :-1]).long()], 1)
    wanted = torch.as_tensor(codes).long()
    users = [(seen[own], wanted[own]) for own in map(slice, block.offsets[:-1], block.offsets[1:])]
    module = WithLoss(adapted(folder))
    trained = [one for one in module.parameters() if one.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=STEP)
    server = list(torch.split(torch.as_tensor(start).float(), [one.numel() for one in trained]))

    def step(tokens: Tensor, targets: Tensor) -> None:
        optimiser.zero_grad()
        module.loss(tokens, targets).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    def plain() -> None:
        for user in users:
            step(*user)

    def by_hand() -> NDArray[Any]:
        total = torch.zeros(len(start))
        for user in users:
            with torch.no_grad():
                for one, values in zip(trained, server, strict=True):
                    one.copy_(values.view(one.shape))
            step(*user)
            moved = torch.cat([one.detach().flatten() for one in trained]) - torch.cat(server)
            total += moved * min(1.0, CLIP / float(moved.norm()))
        return total.numpy()

    def ours() -> NDArray[Any]:
        training = LocalTraining(step_size=STEP, steps=1)
        return np.asarray(clip_rows(problem.local_updates(start, block, training), CLIP).sum(0))

    ours()  # the way to compute is chosen here
    np.testing.assert_allclose(ours(), by_hand(), rtol=1e-3, atol=1e-6)
    real = find_spec("pfl") is not None
    contestants = {"plain": plain, "pfl": by_pfl(module, users) if real else by_hand, "ours": ours}
    times = timed(contestants, repetitions)
    middle = {name: 1000 * statistics.median(each) for name, each in times.items()}
    return Row(
        window,
        **middle,
        pfl_is_real=real,
        ours_over_plain=ratio(times, "plain"),
        ours_over_pfl=ratio(times, "pfl"),
    )


def by_pfl(module: WithLoss, users: list[tuple[Tensor, Tensor]]) -> Callable[[], Any]:
    """A round of pfl's simulation backend."""
    from pfl.aggregate.simulate import SimulatedBackend  # noqa: PLC0415 -- optional
    from pfl.algorithm.base import NNAlgorithmParams  # noqa: PLC0415
    from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: PLC0415
    from pfl.data.federated_dataset import FederatedDataset  # noqa: PLC0415
    from pfl.data.pytorch import PyTorchTensorDataset  # noqa: PLC0415
    from pfl.data.sampling import get_user_sampler  # noqa: PLC0415
    from pfl.hyperparam import NNTrainHyperParams  # noqa: PLC0415
    from pfl.model.pytorch import PyTorchModel  # noqa: PLC0415
    from pfl.privacy.privacy_mechanism import NormClippingOnly  # noqa: PLC0415

    datasets = [PyTorchTensorDataset(user, user_id=str(place)) for place, user in enumerate(users)]
    sampler = get_user_sampler("minimize_reuse", list(range(len(datasets))))
    federation = FederatedDataset(datasets.__getitem__, sampler)
    backend = SimulatedBackend(federation, federation, postprocessors=[NormClippingOnly(2.0, CLIP)])
    trained = [one for one in module.parameters() if one.requires_grad]
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(trained, lr=1.0))
    algorithm = FederatedAveraging()
    rounds = NNAlgorithmParams(
        central_num_iterations=2, evaluation_frequency=2, train_cohort_size=len(datasets), val_cohort_size=None
    )
    local = NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=STEP)

    def run_round() -> Any:
        contexts, _, _ = algorithm.get_next_central_contexts(model, 1, rounds, local)
        return backend.gather_results(model, algorithm, central_context=contexts[0])

    return run_round


def timed(contestants: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, list[float]]:
    """Processor seconds of each, in turns, without the first turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions + 1):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: each[1:] for name, each in times.items()}


def ratio(times: dict[str, list[float]], other: str) -> float:
    """The median of ours over another within a repetition."""
    return statistics.median(mine / theirs for mine, theirs in zip(times["ours"], times[other], strict=True))


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| window | plain, ms | pfl, ms | ours, ms | ours / plain | ours / pfl |", "|---|---|---|---|---|---|"]
    for row in rows:
        way = "" if row.pfl_is_real else " (by hand)"
        numbers = f"{row.plain:.0f} | {row.pfl:.0f}{way} | {row.ours:.0f}"
        lines.append(f"| {row.window} | {numbers} | {row.ours_over_plain:.2f} | {row.ours_over_pfl:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
