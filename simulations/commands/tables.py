"""Verbs that query a table, and find what a run has to declare about it."""

from pathlib import Path
from typing import Annotated

from simulations.commands.running import loaded, ran
from simulations.terminal import (
    File,
    Json,
    Output,
    Overrides,
    answer,
    assignments,
    examples,
    option,
    working,
)


@examples(
    "userdp query simulations/configs/query.toml",
    "userdp query my.toml --set privacy.epsilon=2 --json | jq '.answers[] | {statistic, column, estimate, low, high}'",
    "userdp plan my.toml",
)
def query(
    file: File,
    engine: Annotated[str | None, option("local or ray; overrides engine.kind.")] = None,
    overrides: Overrides = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Query a table: statistics with intervals, from one budget.

    There are counts, means, quantiles, histograms and more. The file declares the table under [data] and the budget
    under [privacy], and asks one statistic in each [[ask]]. It writes a run directory with answers.csv, result.json,
    guarantee.json and report.html. userdp plan FILE shows the guarantee before any data are read.
    """
    with working():
        from simulations.api.console import show_outcome  # noqa: PLC0415
        from simulations.api.querying import checked  # noqa: PLC0415

        given = {"engine.kind": engine, "output.directory": output}
        config = checked(loaded(file, [*(overrides or []), *assignments(given)]))
        outcome, shown = ran(config)
    answer(as_json, shown, lambda: show_outcome(shown, outcome.directory, private=config.shows_private))


@examples(
    "userdp find facts.toml --plan",
    "userdp find facts.toml --set privacy.epsilon=0.5 --output declared.toml",
    "userdp find facts.toml --json | jq .data.ranges",
)
def find(
    file: File,
    overrides: Overrides = None,
    output: Annotated[Path, option("New file for what a run declares; declared.toml by default.")] = Path(
        "declared.toml"
    ),
    planned: Annotated[bool, option("Show the cost, and how far noise lets see; read no data.", "--plan")] = False,
    as_json: Json = False,
) -> None:
    """Find privately what a run has to declare, such as ranges.

    These are ranges of numbers and dates, levels of words, and the most samples. The file has the sections data (path,
    user, all_users), find (numbers, dates, words, target) and privacy. Levels are those that many users hold. The
    epsilon adds to that of every later run on the same people.
    """
    with working():
        from simulations.finding.find import find_into, foreseen, show, values  # noqa: PLC0415

        found = foreseen(file, overrides or []) if planned else find_into(output, file, overrides or [])
    answer(as_json, values(found), lambda: show(found, output))
