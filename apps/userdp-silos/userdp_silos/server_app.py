"""The ServerApp, which need not be trusted with the data: it sees noisy sums over all silos alone."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from strategies import DPFedSGD, PublicFacts, UserLevelStrategy, model_vector
from userdp import Privacy
from userdp_silos.task import NAMES, PROBLEM

app = ServerApp()


def make_strategy(config: dict) -> UserLevelStrategy:
    """Return the strategy. Silos must say who their people are, so that nobody counts in two silos."""
    strategy = DPFedSGD(
        rounds=config["num-server-rounds"], clip_norm=config["clip-norm"], learning_rate=config["learning-rate"]
    ).strategy(
        PROBLEM,
        PublicFacts(users=config["num-users"]),
        Privacy(epsilon=config["epsilon"], delta=config["delta"], noise="secure", trust="sum"),
    )
    strategy.require_identities = True
    return strategy


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee and the model, and write both if the run-config names a folder."""
    config = context.run_config
    strategy = make_strategy(config)
    result = strategy.start(grid, roster_timeout=config["roster_timeout"])
    model = model_vector(result.arrays)
    print(result.guarantee)
    print(f"epsilon against the server alone: {strategy.plan.numbers['server_epsilon']:.3g}")
    for name, coefficient in zip(NAMES, model, strict=True):
        print(f"{name}: {coefficient:.3f}")
    if config["output"]:
        result.save(Path(config["output"]))
