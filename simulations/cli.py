"""The `userdp` command: one verb for each purpose.

Exit codes: 0 done; 1 the run failed (its files so far stay); 2 bad input; 130 interrupted. Errors are sentences on
standard error; with `--json` standard output holds the JSON and nothing else.
"""

from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from simulations.account.command import app as accounts
from simulations.terminal import (
    FAILED,
    Debug,
    File,
    Json,
    Name,
    Output,
    Overrides,
    TrustCode,
    answer,
    argument,
    assignments,
    exit_codes,
    log_warnings,
    option,
    working,
)

if TYPE_CHECKING:
    from simulations.config.run_config import RunConfig
    from simulations.runs.run import RunOutcome

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning with user-level differential privacy: run it, plan it, trust every epsilon.",
    epilog="Start with [bold]userdp plan FILE[/bold] (reads no data), then [bold]userdp run FILE[/bold]. "
    "Ready-made files are in simulations/configs.",
)
app.add_typer(accounts, name="account")
Verb = TypeVar("Verb", bound=Callable[..., None])


def _verb(*examples: str) -> Callable[[Verb], Verb]:
    """Register a verb whose help is its docstring and examples."""

    def register(call: Verb) -> Verb:
        text = "\n\n".join([getdoc(call) or "", "[dim]Examples:[/dim]", *(f"  {example}" for example in examples)])
        return app.command(help=text)(call)

    return register


def main() -> None:
    """Run the `userdp` command."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        from simulations.records.environment import own_version  # noqa: PLC0415

        typer.echo(f"userdp {own_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Federated learning with user-level differential privacy: run it, plan it, trust every epsilon."""


@_verb(
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
    debug: Debug = False,
) -> None:
    """Train a model, and write a run directory with result, guarantee and report."""
    with working(debug):
        log_warnings()
        given = {"engine.kind": engine, "seed": seed, "privacy.account": account}
        given |= {"output.directory": output, "output.anyway": anyway or None}
        from simulations.api.console import show_outcome  # noqa: PLC0415
        from simulations.records.checkpoints import check_resumed, configuration_file  # noqa: PLC0415

        place = configuration_file(file, resume)
        if resume is not None and file is None:
            check_resumed(resume, trusted=trust_code)
        config = _load(place, [*(overrides or []), *assignments(given)])
        outcome, shown = _run(config, resume)
    answer(as_json, shown, lambda: show_outcome(shown, outcome.directory, private=config.shows_private))


@_verb(
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
    debug: Debug = False,
) -> None:
    """Describe a table: counts, means, quantiles, histograms and more, with intervals, from one budget.

    The file declares the table under [data] and the budget under [privacy], and asks one statistic in each [[ask]]. It
    writes a run directory with answers.csv, result.json, guarantee.json and report.html. userdp plan FILE shows the
    guarantee before any data are read.
    """
    with working(debug):
        log_warnings()
        from simulations.api.console import show_outcome  # noqa: PLC0415
        from simulations.api.describing import checked  # noqa: PLC0415

        given = {"engine.kind": engine, "output.directory": output}
        config = checked(_load(file, [*(overrides or []), *assignments(given)]))
        outcome, shown = _run(config)
    answer(as_json, shown, lambda: show_outcome(shown, outcome.directory, private=config.shows_private))


@_verb(
    "userdp plan simulations/configs/insteval.toml",
    "userdp plan my.toml --set data.users=100000 --json",
)
def plan(
    file: File,
    overrides: Overrides = None,
    everything: Annotated[bool, option("Plan every strategy, like userdp advise.", "--all")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every number of a run before it reads any data: users needed, noise against signal, the guarantee."""
    if everything:
        advise(file, overrides, as_json, debug)
        return
    with working(debug):
        from simulations.api.console import show_plan  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.runs.build import make_plan  # noqa: PLC0415
        from strategies.core.plan import explained  # noqa: PLC0415
        from strategies.registry import STRATEGIES  # noqa: PLC0415

        planned = make_plan(config := _load(file, overrides or []))
        values, meanings = plain(planned.as_dict()), explained(STRATEGIES[config.strategy.kind].about)
    answer(as_json, values, lambda: show_plan(planned, values, meanings))


@_verb(
    "userdp advise simulations/configs/insteval.toml",
    "userdp advise my.toml --set privacy.epsilon=1 --json | jq '.[0].strategy'",
)
def advise(file: File, overrides: Overrides = None, as_json: Json = False, debug: Debug = False) -> None:
    """Plan every strategy for the declared users, problem and budget, and rank them by predicted excess risk.

    It opens no data. The file's own strategy has the file's settings, all others have their defaults. A prediction is
    for a stand-in as far from the start as the declared bounds allow: it ranks strategies, and promises nothing.
    """
    with working(debug):
        from simulations.api.console import show_advice  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.reports.progress import planning_bar  # noqa: PLC0415
        from simulations.runs.build import advise as rank  # noqa: PLC0415

        config = _load(file, overrides or [])
        with planning_bar() as progress:
            found = rank(config, progress)
    answer(as_json, [plain(each.as_dict()) for each in found], lambda: show_advice(found))


@_verb(
    "userdp compare simulations/configs/compare-quick.toml",
    "userdp compare my.toml --against-oracle",
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
    against_oracle: Annotated[
        bool,
        option(
            "Add clipping strategies tuned on the private data itself; they are NOT private, and only show what "
            "tuning would be worth.",
            "--against-oracle",
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare strategies at one epsilon and delta, and write a table and a report; finished cells are not run again.

    Each problem of a file may have settings for strategies: strategy = { dp_fed_sgd = { rounds = 60 } }.
    """
    with working(debug):
        from simulations.comparison.config import load_comparison  # noqa: PLC0415
        from simulations.comparison.jobs import compare as run_all  # noqa: PLC0415
        from simulations.comparison.jobs import live  # noqa: PLC0415
        from simulations.comparison.ranking import rankings  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415

        log_warnings()
        given = {"seeds": seeds, "output.directory": output, "against_oracle": against_oracle or None}
        comparison = load_comparison(file, [*(overrides or []), *assignments(given)])
        with live(comparison) as watch:
            outcome = run_all(comparison, workers=workers, watch=watch)
    failed = sum(one["error_private"] is not None for one in outcome.rows)
    counts = f"{len(outcome.rows)} cells, {failed} without a result; {outcome.ran} runs were made now"
    place = f"Report: {outcome.directory / 'report.html'}"
    answer(as_json, plain(outcome.rows), lambda: typer.echo(f"{rankings(outcome.directory)}\n{counts}\n{place}"))


@_verb(
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
    debug: Debug = False,
) -> None:
    """Attack a strategy, and show how much of its claimed epsilon the attack proves.

    The strategy runs as configured, many times, for a few made-up people and with fresh noise in each run. Coins decide
    which canaries take part, an attacker guesses the coins from the released models, and the guesses bound epsilon from
    below. A bound above the claim refutes it (exit code 1). A bound below it proves nothing; a bound close to it shows
    that no noise is wasted. It reads no data, except with --one-run.
    """
    with working(debug):
        from simulations.audit.command import Wanted, audit_file, show_audits  # noqa: PLC0415

        log_warnings()
        config = _load(file, [*(overrides or []), *assignments({"output.directory": output})])
        done = audit_file(config, Wanted(one_run, everything, runs, canaries, confidence, workers))
    answer(as_json, done.values, lambda: show_audits(done))
    if done.refuted:
        raise typer.Exit(FAILED)


@_verb(
    "userdp report runs/quickstart-auto-seed1",
    "userdp report runs/quickstart-auto-seed1 --released for-others",
    "userdp report runs/quickstart-auto-seed1 --card",
)
def report(
    directory: Annotated[Path, argument("DIR", "Directory of a run, a comparison or an audit.")],
    released: Annotated[
        Path | None,
        option(
            "Write a copy of the run for others into this new folder: report, model, guarantee, and no field that the "
            "guarantee does not cover.",
            metavar="FOLDER",
        ),
    ] = None,
    card: Annotated[
        bool,
        option(
            "Write card.html and card.json instead: one page for those who decide on a release, in the order of NIST "
            "SP 800-226, with the fields of the Differential Privacy Deployments Registry.",
            "--card",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Write the report of a finished or failed run, comparison or audit again."""
    with exit_codes(debug):
        from simulations.audit.report import AUDIT, render_audit  # noqa: PLC0415
        from simulations.comparison.report import render_comparison  # noqa: PLC0415
        from simulations.comparison.table import SUMMARY  # noqa: PLC0415
        from simulations.reports.card import render_card  # noqa: PLC0415
        from simulations.reports.report import copy_released, render  # noqa: PLC0415

        copied = None if released is None else copy_released(directory, released)
        if card:
            typer.echo(render_card(released or directory))
        elif copied is not None:
            typer.echo(copied)
        elif (directory / AUDIT).is_file():
            typer.echo(render_audit(directory))
        else:
            typer.echo((render_comparison if (directory / SUMMARY).is_file() else render)(directory))


@_verb(
    "userdp predict runs/heights-dp_fed_sgd-seed0 others.csv --keep person",
    "userdp predict runs/heights-dp_fed_sgd-seed0 others.parquet --output scores.parquet --json | jq .metrics",
)
def predict(
    directory: Annotated[Path, argument("RUN_DIRECTORY", "Directory of a run, or a copy made by report --released.")],
    table: Annotated[Path, argument("TABLE", "CSV or Parquet file.")],
    output: Annotated[
        Path | None,
        option("CSV or Parquet file for the predictions; TABLE-predictions.csv here by default.", metavar="FILE"),
    ] = None,
    keep: Annotated[
        list[str] | None, option("Copy this column of TABLE into the predictions; repeatable.", metavar="COLUMN")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a table with the model of a run: a prediction for each row, and metrics if it has user and target."""
    with working(debug):
        from simulations.api.prediction import score, show_scores  # noqa: PLC0415

        log_warnings()
        scores = score(directory, table, output, keep or (), trust_code=trust_code)
    answer(as_json, scores.values, lambda: show_scores(scores, Console()))


@_verb(
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
    debug: Debug = False,
) -> None:
    """Find privately what a run has to declare: ranges of numbers and dates, levels of words, the most samples.

    The file has the sections data (path, user, all_users), find (numbers, dates, words, target) and privacy. Levels are
    those that many users hold. The epsilon adds to that of every later run on the same people.
    """
    with working(debug):
        from simulations.finding.find import find_into, foreseen, show, values  # noqa: PLC0415

        found = foreseen(file, overrides or []) if planned else find_into(output, file, overrides or [])
    answer(as_json, values(found), lambda: show(found, output))


@_verb(
    "userdp explain-model runs/visits-auto-seed0",
    "userdp explain-model runs/visits-auto-seed0 --json | jq '.[] | {coefficient, estimate, interval}'",
)
def explain_model(
    directory: Annotated[Path, argument("RUN_DIRECTORY", "Directory of a run, or a copy made by report --released.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the coefficients of a run's linear model in the units of the table's columns.

    They have standard errors and intervals if the run set a share of its budget aside (strategy.coefficients = 0.5).
    """
    with working(debug):
        from simulations.api.prediction import load_model  # noqa: PLC0415
        from simulations.reports.coefficients import show_coefficients  # noqa: PLC0415

        saved = load_model(directory)
        rows = saved.coefficient_rows
    answer(as_json, list(rows), lambda: show_coefficients(rows, Console()))


@app.command()
def strategies(name: Name = None, as_json: Json = False) -> None:
    """List the strategies; with a NAME also its needs, paper, cost, guarantees and settings."""
    _list("strategies", name, as_json)


@app.command()
def problems(name: Name = None, as_json: Json = False) -> None:
    """List the problems (losses) with their certificates; with a NAME also its settings."""
    _list("problems", name, as_json)


@app.command()
def data(name: Name = None, as_json: Json = False) -> None:
    """List the data: synthetic populations, tables, public data sets; with a NAME also its settings."""
    _list("data", name, as_json)


@app.command()
def explain(
    key: Annotated[str, typer.Argument(help="Such as privacy.epsilon, strategy.clip_norm, or clip_norm alone.")],
    as_json: Json = False,
) -> None:
    """Explain one setting of a configuration: values, default, meaning, effect on privacy, and an example."""
    from simulations.listings import explain as shown  # noqa: PLC0415

    with exit_codes(debug=False):
        shown(key, as_json)


def _list(what: str, name: str | None, as_json: bool) -> None:
    from simulations.listings import show  # noqa: PLC0415

    with exit_codes(debug=False):
        show(what, name, as_json)


def _run(config: "RunConfig", resumed: Path | None = None) -> "tuple[RunOutcome, dict[str, Any]]":
    """Run a configuration with a progress bar, and return the outcome with the part of result.json to show."""
    from simulations.records.released_fields import SHARED, kept  # noqa: PLC0415
    from simulations.reports.progress import progress_bar  # noqa: PLC0415
    from simulations.runs.run import run as started  # noqa: PLC0415

    keep, again = config.output.checkpoint, resumed is not None
    with progress_bar() as progress:
        outcome = started(config, directory=resumed, progress=progress, checkpoint=keep, resume=again)
    return outcome, outcome.result if config.shows_private else kept("result.json", outcome.result, SHARED)


def _load(file: Path, overrides: list[str]) -> "RunConfig":
    from simulations.config.run_config import load_config  # noqa: PLC0415

    return load_config(file, overrides)
