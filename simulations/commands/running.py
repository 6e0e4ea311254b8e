"""Verbs that read a configuration: they plan, train, compare, attack, query, and find what to declare."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulations.terminal import (
    FAILED,
    File,
    Json,
    Output,
    Overrides,
    TrustCode,
    answer,
    argument,
    assignments,
    complain,
    examples,
    option,
    working,
)

if TYPE_CHECKING:
    from simulations.config.run_config import RunConfig
    from simulations.runs.run import RunOutcome


@examples(
    "userdp run simulations/configs/quickstart.toml",
    "userdp run simulations/configs/quickstart.toml --engine ray --set engine.workers=2",
    "userdp run my.toml --set privacy.epsilon=2 --seed 1 --json | jq .metrics",
    "userdp run --resume runs/quickstart-auto-seed1",
)
def run(
    file: Annotated[Path | None, argument("[FILE]", "Configuration file (TOML); not needed with --resume.")] = None,
    engine: Annotated[str | None, option("local or ray; overrides engine.kind.")] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, option("Overrides seed.")] = None,
    account: Annotated[
        str | None, option("Enter the run into this account; overrides privacy.account.", metavar="NAME")
    ] = None,
    output: Output = None,
    anyway: Annotated[
        bool, option("Run even if the plan predicts a model far worse than the initial one.", "--anyway")
    ] = False,
    resume: Annotated[
        Path | None,
        option("Resume the killed or failed run in this directory, with the same result.", metavar="DIRECTORY"),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Train a model, and write its result, guarantee and report."""
    with working():
        given = {"engine.kind": engine, "seed": seed, "privacy.account": account}
        given |= {"output.directory": output, "output.anyway": anyway or None}
        from simulations.api.console import show_outcome  # noqa: PLC0415
        from simulations.records.checkpoints import check_resumed, configuration_file  # noqa: PLC0415

        place = configuration_file(file, resume)
        if resume is not None and file is None:
            check_resumed(resume, trusted=trust_code)
        config = _loaded(place, [*(overrides or []), *assignments(given)])
        outcome, shown = _ran(config, resume)
    answer(as_json, shown, lambda: show_outcome(shown, outcome.directory, private=config.shows_private))


@examples(
    "userdp plan simulations/configs/insteval.toml",
    "userdp plan my.toml --set data.users=100000 --json",
    "userdp plan my.toml --all --json | jq '.[0].strategy'",
)
def plan(
    file: File,
    overrides: Overrides = None,
    everything: Annotated[
        bool, option("Plan every strategy for the same users, problem and budget, and rank them.", "--all")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show every number of a run before it reads any data.

    Among them are the users needed, noise against signal, and the guarantee.
    With --all the file's strategy has the file's settings, all others have their defaults, and the rank is by predicted
    excess risk. A prediction is for a stand-in as far from the start as the declared bounds allow: it ranks strategies,
    and promises nothing.
    """
    with working():
        from simulations.api.console import show_advice, show_plan  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.reports.progress import counting_bar  # noqa: PLC0415
        from simulations.runs.advice import advise  # noqa: PLC0415
        from simulations.runs.build import make_plan  # noqa: PLC0415
        from strategies.core.plan import explained  # noqa: PLC0415
        from strategies.registry import STRATEGIES  # noqa: PLC0415

        config = _loaded(file, overrides or [])
        values: Any
        if everything:
            with counting_bar("planning", "{done} of {of} strategies planned") as progress:
                ranked = advise(config, progress)
            values, show = [plain(each.as_dict()) for each in ranked], partial(show_advice, ranked)
        else:
            planned, meanings = make_plan(config), explained(STRATEGIES[config.strategy.kind].about)
            values = plain(planned.as_dict())
            show = partial(show_plan, planned, values, meanings)
    answer(as_json, values, show)


@examples(
    "userdp compare simulations/configs/compare-quick.toml",
    "userdp compare my.toml --seeds 10 --workers 4 --json | jq '.[] | select(.error_private)'",
)
def compare(
    file: File,
    overrides: Overrides = None,
    seeds: Annotated[int | None, option("Number of seeds; overrides seeds.")] = None,
    workers: Annotated[
        int | None, option("Ray processes, one CPU each; all CPUs by default, 0 for none.", min=0)
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Compare strategies at one epsilon and delta.

    It writes a table and a report. Finished cells are not run again. Each problem of a file may have settings for
    strategies: strategy = { dp_fed_sgd = { rounds = 60 } }.
    """
    with working():
        from simulations.comparison.config import load_comparison  # noqa: PLC0415
        from simulations.comparison.jobs import compare as run_all  # noqa: PLC0415
        from simulations.comparison.jobs import live  # noqa: PLC0415
        from simulations.comparison.ranking import rankings  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415

        given = assignments({"seeds": seeds, "output.directory": output})
        comparison = load_comparison(file, [*(overrides or []), *given])
        with live(comparison) as watch:
            outcome = run_all(comparison, workers=workers, watch=watch)
    failed = sum(one["error_private"] is not None for one in outcome.rows)
    counts = f"{len(outcome.rows)} cells, {failed} without a result; {outcome.ran} runs were made now"
    place = f"Report: {outcome.directory / 'report.html'}"
    answer(as_json, plain(outcome.rows), lambda: typer.echo(f"{rankings(outcome.directory)}\n{counts}\n{place}"))
    if failed == len(outcome.rows):
        reasons = dict.fromkeys(str(one["error_private"]) for one in outcome.rows)
        complain("\n".join(["no cell has a result:", *reasons]))
        raise typer.Exit(FAILED)


@examples(
    "userdp audit simulations/configs/quickstart.toml",
    "userdp audit my.toml --runs 5000 --set privacy.epsilon=4",
    "userdp audit my.toml --all --json | jq '.[] | {strategy, claimed_epsilon, measured_epsilon}'",
    "userdp audit my.toml --one-run --canaries 500",
)
def audit(
    file: File,
    overrides: Overrides = None,
    one_run: Annotated[
        bool, option("Audit one run of the file's own users and model, with many canaries.", "--one-run")
    ] = False,
    everything: Annotated[bool, option("Audit every strategy at the file's budget.", "--all")] = False,
    runs: Annotated[int, typer.Option(help="Runs of the small instance; more runs tighten the bound.")] = 1000,
    canaries: Annotated[
        int | None, option("Canaries of --one-run; by default one for each model parameter, 1000 at most.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    workers: Annotated[int | None, option("Processes; all CPUs by default, 0 for none.", min=0)] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Attack a strategy, and show how much epsilon the attack proves.

    The strategy runs as configured, many times, for a few made-up people and with fresh noise in each run. Coins decide
    which canaries take part, an attacker guesses the coins from the released models, and the guesses bound epsilon from
    below. A bound above the claim refutes it (exit code 1). A bound below it proves nothing; a bound close to it shows
    that no noise is wasted. It reads no data, except with --one-run.
    """
    with working():
        from simulations.audit.command import Wanted, audit_file, show_audits  # noqa: PLC0415

        config = _loaded(file, [*(overrides or []), *assignments({"output.directory": output})])
        done = audit_file(config, Wanted(one_run, everything, runs, canaries, confidence, workers))
    answer(as_json, done.values, lambda: show_audits(done))
    if done.refuted:
        raise typer.Exit(FAILED)


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
        config = checked(_loaded(file, [*(overrides or []), *assignments(given)]))
        outcome, shown = _ran(config)
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


def _loaded(file: Path, overrides: list[str]) -> "RunConfig":
    """Load a configuration; `BadInput` says what to change."""
    from simulations.config.run_config import load_config  # noqa: PLC0415

    return load_config(file, overrides)


def _ran(config: "RunConfig", resumed: Path | None = None) -> "tuple[RunOutcome, dict[str, Any]]":
    """Run a configuration with a progress bar, and return the outcome with the part of result.json to show."""
    from simulations.records.released_fields import SHARED, kept  # noqa: PLC0415
    from simulations.reports.progress import progress_bar  # noqa: PLC0415
    from simulations.runs.run import run as started  # noqa: PLC0415

    keep, again = config.output.checkpoint, resumed is not None
    with progress_bar() as bar:
        outcome = started(config, directory=resumed, observers=[bar], checkpoint=keep, resume=again)
    return outcome, outcome.result if config.shows_private else kept("result.json", outcome.result, SHARED)
