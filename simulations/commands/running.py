"""Loading and running a configuration, for the verbs that do."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.config.run_config import RunConfig
    from simulations.runs.run import RunOutcome


def loaded(file: Path, overrides: list[str]) -> "RunConfig":
    """Load a configuration; `BadInput` says what to change."""
    from simulations.config.run_config import load_config  # noqa: PLC0415

    return load_config(file, overrides)


def ran(config: "RunConfig", resumed: Path | None = None) -> "tuple[RunOutcome, dict[str, Any]]":
    """Run a configuration with a progress bar, and return the outcome with the part of result.json to show."""
    from simulations.records.released_fields import SHARED, kept  # noqa: PLC0415
    from simulations.reports.progress import progress_bar  # noqa: PLC0415
    from simulations.runs.run import run as started  # noqa: PLC0415

    keep, again = config.output.checkpoint, resumed is not None
    with progress_bar() as bar:
        outcome = started(config, directory=resumed, observers=[bar], checkpoint=keep, resume=again)
    return outcome, outcome.result if config.shows_private else kept("result.json", outcome.result, SHARED)
