"""The quickstart app of docs/drop-in.md with and without privacy, and with Flower's own clipping at the same epsilon.

539 writers of digits are users, in each of 8 rounds all of them; the accuracy is that on 297 other writers. The app is
that of research/quickstart; its clients run in this process, one after the other.

    python research/drop_in.py MnistWriters.parquet                 ten minutes of one core

Each finished run is written at once, so that the command can be stopped and started again.
"""

import argparse
import csv
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy
from rich.progress import track

from simulations.engines.grids import InMachineGrid
from strategies import DropInAdaptiveClipping, DropInFedAvg
from userdp.accounting.costs import Cost, calibrate_noise, epsilon_of

sys.path.insert(0, str(Path(__file__).resolve().parent / "quickstart"))
from digits.client_app import app
from digits.task import Net, accuracy

RESULTS = Path(__file__).resolve().parent / "results" / "drop_in.csv"
USERS, ROUNDS, DELTA, CLIP, LR, SEEDS = 539, 8, 1e-4, 0.5, 0.1, range(3)
FIELDS = ("method", "epsilon", "seed", "accuracy")
NO_PRIVACY, FLOWER = "FedAvg", "DifferentialPrivacyServerSideFixedClipping"
CASES = [(NO_PRIVACY, ""), *((kind, "2") for kind in ("DropInFedAvg", "DropInAdaptiveClipping", FLOWER))]


class Writers(InMachineGrid):
    """The app's clients; with ``equal``, each reports one example, so that FedAvg weighs all writers equally."""

    def __init__(self, data: str, *, equal: bool) -> None:
        super().__init__(USERS)
        self._settings, self._equal = {"data": data}, equal

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        for message in messages:
            node = message.metadata.dst_node_id
            partition = {"partition-id": node - 1, "num-partitions": USERS}
            reply = app(message, Context(1, node, partition, RecordDict(), dict(self._settings)))
            if self._equal:
                reply.content["metrics"]["num-examples"] = 1
            yield reply


def flower_multiplier(epsilon: float) -> float:
    """Return the noise multiplier with which Flower's wrapper is (epsilon, DELTA)-DP for replacing one user.

    Its noise is multiplier x CLIP / USERS in each coordinate, and a replaced user moves the mean of equally weighted
    updates by 2 x CLIP / USERS: each round is a Gaussian mechanism of half that multiplier.
    """
    half = calibrate_noise(epsilon, DELTA, ROUNDS)
    assert epsilon_of(Cost(half), ROUNDS, DELTA) <= epsilon
    return 2 * half


def strategy(method: str, epsilon: str, seed: int) -> Strategy:
    """Return the strategy of a case."""
    if method == NO_PRIVACY:
        return FedAvg(fraction_evaluate=0.0)
    if method == FLOWER:
        np.random.seed(seed)  # noqa: NPY002 -- Flower draws its noise there
        within = FedAvg(fraction_evaluate=0.0)
        return DifferentialPrivacyServerSideFixedClipping(within, flower_multiplier(float(epsilon)), CLIP, USERS)
    kind = {"DropInFedAvg": DropInFedAvg, "DropInAdaptiveClipping": DropInAdaptiveClipping}[method]
    return kind(users=USERS, epsilon=float(epsilon), delta=DELTA, rounds=ROUNDS, clip_norm=CLIP, seed=seed)


def tested(data: str, server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy after the last round."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(net, data) if server_round == ROUNDS else 0.0})


def run(data: str, method: str, epsilon: str, seed: int) -> float:
    """Train as the app does, and return the accuracy."""
    torch.manual_seed(seed)
    with Writers(data, equal=method == FLOWER) as grid:
        result = strategy(method, epsilon, seed).start(
            grid=grid,
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=ROUNDS,
            train_config=ConfigRecord({"lr": LR}),
            evaluate_fn=partial(tested, data),
        )
    return float(result.evaluate_metrics_serverapp[ROUNDS]["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the table of writers")
    data = parser.parse_args().data
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    done = set()
    if RESULTS.exists():
        with RESULTS.open(encoding="utf-8", newline="") as file:
            done = {(row["method"], row["epsilon"], int(row["seed"])) for row in csv.DictReader(file)}
    else:
        RESULTS.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    left = [(*case, seed) for seed in SEEDS for case in CASES if (*case, seed) not in done]
    for case in track(left, "runs"):
        found = run(data, *case)
        with RESULTS.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([*case, f"{found:.4f}"])


if __name__ == "__main__":
    main()
