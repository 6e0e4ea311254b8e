"""The declared levels that too few people hold to be seen through the noise of a run."""

from collections.abc import Sequence
from typing import Any

from simulations.config.run_config import RunConfig

MEANING = "so few people hold them that noise hides their share: predictions for them rest on next to nobody"


def with_level_names(config: RunConfig, told: dict[str, Any]) -> dict[str, Any]:
    """Return what a strategy reports, with "hidden_levels" by name in place of the places of hidden columns."""
    told = dict(told)
    places: Sequence[int] = told.pop("hidden_columns", ())
    if not len(places):
        return told
    from userdp.data.tables.sources import TableSource  # noqa: PLC0415 -- slow to import

    names: Sequence[str] = config.data.columns.samples.level_names if isinstance(config.data, TableSource) else ()
    hidden = [names[place] for place in places if place < len(names) and names[place]]
    return told | ({"hidden_levels": hidden} if hidden else {})
