"""The ServerApp: a strategy of userdp in the place of FedAvg makes the run private."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from strategies import DropInAdaptiveClipping, DropInFedAvg, DropInRecentredClipping
from userdp import BadInput
from userdp_torch.task import accuracy, make_model

app = ServerApp()
KINDS = (DropInFedAvg, DropInAdaptiveClipping, DropInRecentredClipping)
STRATEGIES = {kind.strategy.about.name: kind for kind in KINDS}


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a released model on the server's own pictures."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee and the accuracies, and write the model if the run-config names a folder."""
    config = context.run_config
    if config["strategy"] not in STRATEGIES:
        raise BadInput(f"strategy = {config['strategy']!r}: must be one of {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[config["strategy"]](
        users=config["num-users"],
        epsilon=config["epsilon"],
        delta=config["delta"],
        rounds=config["num-server-rounds"],
        clip_norm=config["clip-norm"],
        noise=config["noise"],
    )
    model = ArrayRecord(make_model().state_dict())
    result = strategy.start(grid, model, evaluate_fn=evaluate, roster_timeout=config["roster_timeout"])
    print(result.guarantee)
    for server_round, metrics in result.evaluate_metrics_serverapp.items():
        print(f"accuracy after round {server_round}: {metrics['accuracy']:.3f}")
    if config["output"]:
        result.save(Path(config["output"]))
