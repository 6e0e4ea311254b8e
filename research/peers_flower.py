"""Flower's own engine in research/peers.py: a SuperNode for each user, clients in Ray's processes."""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from numpy.typing import NDArray
from peers_work import asked, clipped_gradient
from worker import serve, spent_by_all

REGISTERED = 600.0
"""Seconds until all SuperNodes must be there."""


def client_app(path: Path) -> ClientApp:
    """A user: its clipped gradient at the model that it is sent."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        features, targets = (
            np.load(path.with_suffix(".features.npy"), mmap_mode="r"),
            np.load(path.with_suffix(".targets.npy"), mmap_mode="r"),
        )
        x = message.content.array_records["model"]["x"].numpy()
        gradient = clipped_gradient(x, features[user], targets[user])
        return Message(RecordDict({"update": ArrayRecord({"g": Array(gradient)})}), reply_to=message)

    return app


def main() -> None:
    path = Path(sys.argv[1])
    work, total = asked()
    np.save(path.with_suffix(".features.npy"), work.features)
    np.save(path.with_suffix(".targets.npy"), work.targets)
    server, users = ServerApp(), len(work.features)

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        def run_round() -> NDArray[Any]:
            content = RecordDict({"model": ArrayRecord({"x": Array(work.model.astype(np.float32))})})
            nodes = list(grid.get_node_ids())
            if len(nodes) != users:
                raise RuntimeError(f"{len(nodes)} of {users} SuperNodes are there")
            messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
            replies = [reply.content.array_records["update"]["g"].numpy() for reply in grid.send_and_receive(messages)]
            return np.sum(replies, axis=0, dtype=np.float64)

        serve(("flwr", "ray", "numpy"), run_round, total, spent_by_all)

    run_simulation(
        server, client_app(path), users, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    )


if __name__ == "__main__":
    main()
