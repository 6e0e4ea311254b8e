"""The server averages the writers' models, and tests each average on other writers."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits.task import Net, accuracy
from strategies import DropInFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and save the model."""
    settings = context.run_config

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(net, settings["data"])})

    budget = {"users": settings["users"], "epsilon": settings["epsilon"], "delta": 1e-4}
    strategy = DropInFedAvg(**budget, rounds=settings["rounds"], clip_norm=0.5)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=settings["rounds"],
        train_config=ConfigRecord({"lr": settings["lr"]}),
        evaluate_fn=evaluate,
    )
    print(result.guarantee)
    torch.save(result.arrays.to_torch_state_dict(), settings["output"])
