"""Flower's own engine in research/neural.py: a SuperNode for each user, clients in Ray's processes."""

import os
from collections.abc import Iterable
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from neural_loop import clipped_update, prepared
from neural_models import MODELS
from neural_worker import Work, asked
from numpy.typing import NDArray
from worker import serve, spent_by_all


def client_app(work: Work) -> ClientApp:
    """A user: its clipped update of the model that it is sent."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module, users = prepared(work)
        module.load_state_dict(message.content.array_records["model"].to_torch_state_dict())
        moved = clipped_update(module, *users[int(context.node_config["partition-id"])], MODELS[work.model].clip_norm)
        reply = ArrayRecord([part.numpy() for part in moved])
        return Message(RecordDict({"update": reply}), reply_to=message)

    return app


def total_of(replies: Iterable[Message]) -> NDArray[Any]:
    """(p,): the sum of what users sent.

    Raises:
        RuntimeError: a user did not answer.
    """
    total = None
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        update = np.concatenate([part.ravel() for part in reply.content.array_records["update"].to_numpy_ndarrays()])
        total = update if total is None else total + update
    assert total is not None
    return np.asarray(total)


def main() -> None:
    work, total = asked()
    module, users = prepared(work)
    server = ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        def run_round() -> NDArray[Any]:
            content = RecordDict({"model": ArrayRecord(module.state_dict())})
            nodes = list(grid.get_node_ids())
            if len(nodes) != len(users):
                raise RuntimeError(f"{len(nodes)} of {len(users)} SuperNodes are there")
            messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
            return total_of(grid.send_and_receive(messages))

        serve(("torch", "numpy", "flwr"), run_round, total, spent_by_all)

    run_simulation(
        server, client_app(work), len(users), backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    )


if __name__ == "__main__":
    main()
