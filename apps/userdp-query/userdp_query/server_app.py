"""The ServerApp: it asks all statistics from one budget, and prints the answers with their intervals."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from strategies import PublicFacts, Statistics, UserLevelStrategy
from userdp import Privacy
from userdp_query.task import make_query

app = ServerApp()


def make_strategy(config: dict) -> UserLevelStrategy:
    """Return the strategy. Silos must say who their people are, so that nobody counts in two silos."""
    privacy = Privacy(epsilon=config["epsilon"], delta=config["delta"], noise="secure", trust=config["trust"])
    strategy = Statistics().strategy(make_query(config["trust"]), PublicFacts(users=config["num-users"]), privacy)
    strategy.require_identities = True
    return strategy


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask, print the guarantee and the answers, and write both if the run-config names a folder."""
    config = context.run_config
    result = make_strategy(config).start(grid, roster_timeout=config["roster_timeout"])
    print(result.guarantee)
    for one in result.report["answers"]:
        name = " ".join(filter(None, (one["statistic"], one["column"], one["level"], one["where"])))
        print(f"{name}: {one['estimate']:.4g} {one['unit']}, 95 % in [{one['low']:.4g}, {one['high']:.4g}]")
    if config["output"]:
        result.save(Path(config["output"]))
