"""The ServerApp: it trains with a strategy of userdp and prints the guarantee."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from strategies import Auto, DPFedSGD, PublicFacts, UserLevelStrategy, model_vector
from userdp import BadInput, Privacy
from userdp_quickstart.task import PROBLEM, SAMPLES, accuracy

app = ServerApp()


def make_strategy(config: dict) -> UserLevelStrategy:
    """Return the strategy that the run-config names. Its noise comes from the operating system, not from a seed."""
    privacy = Privacy(epsilon=config["epsilon"], delta=config["delta"], noise="secure")
    facts = PublicFacts(users=config["num-users"], min_samples=SAMPLES, max_samples=SAMPLES)
    if config["strategy"] == "auto":
        return Auto().strategy(PROBLEM, facts, privacy)
    if config["strategy"] == "dp_fed_sgd":
        return DPFedSGD(
            rounds=config["num-server-rounds"], clip_norm=config["clip-norm"], learning_rate=config["learning-rate"]
        ).strategy(PROBLEM, facts, privacy)
    raise BadInput(f"strategy = {config['strategy']!r}: must be 'dp_fed_sgd' or 'auto'")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a released model on people of the server's own, who take no part in the training."""
    return MetricRecord({"accuracy": accuracy(model_vector(arrays))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee and the accuracy, and write both if the run-config names a folder."""
    config = context.run_config
    result = make_strategy(config).start(grid, evaluate_fn=evaluate, roster_timeout=config["roster_timeout"])
    model = model_vector(result.arrays)
    print(result.guarantee)
    print(f"accuracy: {accuracy(model):.3f}")
    if config["output"]:
        result.save(Path(config["output"]))
