"""The Flower ServerApp of simulations and deployments: ``userdp run`` on the grid that Flower provides."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from simulations.flower import output_directory, run_configuration
from simulations.records.checkpoints import in_use
from simulations.records.run_directory import ended, resumable
from simulations.runs.folder import conclude
from simulations.runs.run import run
from userdp.errors import BadInput

app = ServerApp()
log = logging.getLogger("userdp")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration and write its run directory; resume a run that was killed there."""
    if not log.handlers:
        # Flower sends printed lines to `flwr log`; the root logger would repeat Flower's own lines.
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    config = run_configuration(context)
    deployed = bool(context.run_config.get("deployed", False))
    directory = output_directory(context, config)
    if deployed and ended(directory) and resumable(directory) and not in_use(directory):
        conclude(directory, config)  # it was killed before its report
        return
    if deployed and ended(directory):
        raise BadInput(f"{directory} holds a run that has ended: it was submitted twice, and is not run again")
    outcome = run(
        config,
        grid=grid,
        directory=directory,
        deployed=deployed,
        checkpoint=deployed or config.output.checkpoint,
        resume=resumable(directory),
    )
    log.info("results are in %s", outcome.directory)
