"""The ServerApp, which need not be trusted with the data: it sees noisy sums over all silos alone."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from strategies import DPFedSGD, PublicFacts, model_vector
from userdp import Privacy
from userdp_silos.task import NAMES, PROBLEM

app = ServerApp()


def make_strategy(config: dict) -> DPFedSGD:
    """Return the strategy. Silos must say who their people are, so that nobody counts in two silos."""
    strategy = DPFedSGD(
        PROBLEM,
        PublicFacts(users=config["num-users"]),
        Privacy(epsilon=config["epsilon"], delta=config["delta"], noise="secure", trust="sum"),
        rounds=config["num-server-rounds"],
        clip_norm=config["clip-norm"],
        learning_rate=config["learning-rate"],
    )
    strategy.require_identities = True
    return strategy


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, print the guarantee and the model, and write both if the run-config names a folder."""
    config = context.run_config
    strategy = make_strategy(config)
    result = strategy.start(grid)
    model = model_vector(result.arrays)
    print(result.guarantee)
    print(f"epsilon against the server alone: {strategy.plan.numbers['server_epsilon']:.3g}")
    for name, coefficient in zip(NAMES, model, strict=True):
        print(f"{name}: {coefficient:.3f}")
    if config["output"]:
        folder = Path(config["output"])
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "model.npz", x=model)
        (folder / "guarantee.json").write_text(json.dumps(result.guarantee.as_dict(), indent=2))
