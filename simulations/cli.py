"""The `userdp` command: one verb a purpose.

Exit codes: 0 done; 1 the run failed (what it had written stays); 2 bad input; 130 interrupted. Errors are sentences on
standard error; with `--json` standard output holds the JSON and nothing else.
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from simulations import listing_commands
from simulations.terminal import (
    FAILED,
    Debug,
    File,
    Json,
    Output,
    Overrides,
    TrustCode,
    assignments,
    exit_codes,
    log_warnings,
    print_json,
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
    "Ready-made files lie in simulations/configs.",
)


def main() -> None:
    """Entry point of the `userdp` command."""
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


@app.command()
def run(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Configuration file (TOML); not needed with --resume.", show_default=False
        ),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local or ray; overrides engine.kind.", show_default=False)] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="Overrides seed.", show_default=False)] = None,
    output: Output = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even if the plan predicts a model far worse than the initial one.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Go on with the run of this directory, which was killed or has failed, to the same end.",
            show_default=False,
        ),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model, and write a run directory with result, guarantee and report.

    [dim]Examples:[/dim]

      userdp run simulations/configs/quickstart.toml

      userdp run simulations/configs/quickstart.toml --engine ray --set engine.workers=2

      userdp run my.toml --set privacy.epsilon=2 --seed 1 --json | jq .metrics

      userdp run --resume runs/quickstart-auto-seed1
    """
    with exit_codes(debug), redirect_stdout(sys.stderr):
        log_warnings()
        given = {"engine.kind": engine, "seed": seed, "output.directory": output, "output.anyway": anyway or None}
        from simulations.records.checkpoints import check_resumed, configuration_file  # noqa: PLC0415
        from simulations.records.released_fields import SHARED, kept  # noqa: PLC0415
        from simulations.reports.console import show_outcome  # noqa: PLC0415

        place = configuration_file(file, resume)
        if resume is not None and file is None:
            check_resumed(resume, trusted=trust_code)
        config = _load(place, [*(overrides or []), *assignments(given)])
        outcome = _run(config, resume)
        shown = outcome.result if config.shows_private else kept("result.json", outcome.result, SHARED)
    if as_json:
        print_json(shown)
    else:
        show_outcome(shown, outcome.directory, private=config.shows_private)


@app.command()
def plan(
    file: File,
    overrides: Overrides = None,
    everything: Annotated[bool, typer.Option("--all", help="Plan every strategy: the same as userdp advise.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every number of a run before it touches any data: users needed, noise against signal, the guarantee.

    [dim]Examples:[/dim]

      userdp plan simulations/configs/insteval.toml

      userdp plan my.toml --set data.users=100000 --json
    """
    if everything:
        advise(file, overrides, as_json, debug)
        return
    with exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.api.plans import show_plan  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.runs.build import make_plan  # noqa: PLC0415
        from strategies.core.descriptions import explained  # noqa: PLC0415
        from strategies.registry import STRATEGIES  # noqa: PLC0415

        planned = make_plan(config := _load(file, overrides or []))
        values, meanings = plain(planned.as_dict()), explained(STRATEGIES[config.strategy.kind])
    if as_json:
        print_json(values)
        return
    show_plan(planned, values, meanings)


@app.command()
def advise(file: File, overrides: Overrides = None, as_json: Json = False, debug: Debug = False) -> None:
    """Plan every strategy for the declared users, problem and budget, and rank them by what they predict.

    Opens no data. Other strategies than the file's own have their defaults. What is predicted is a scale, made for a
    stand-in that is as far from the start as the declared bounds allow: it orders strategies, and promises nothing.

    [dim]Examples:[/dim]

      userdp advise simulations/configs/insteval.toml

      userdp advise my.toml --set privacy.epsilon=1 --json | jq '.[0].strategy'
    """
    with exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.api.plans import show_advice  # noqa: PLC0415
        from simulations.api.progress import planning_bar  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.runs.advice import advise as rank  # noqa: PLC0415

        config = _load(file, overrides or [])
        with planning_bar() as progress:
            found = rank(config, progress)
    if as_json:
        print_json([plain(each.as_dict()) for each in found])
    else:
        show_advice(found)


@app.command()
def compare(
    file: File,
    overrides: Overrides = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; overrides seeds.", show_default=False)] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Ray processes, one CPU each; all CPUs if not given, 0 for none.", show_default=False),
    ] = None,
    output: Output = None,
    against_oracle: Annotated[
        bool,
        typer.Option(
            "--against-oracle",
            help="Also run clipping strategies tuned by looking at the answers, which is NOT private and not something "
            "you may do: it shows what tuning would be worth.",
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare strategies at one epsilon and delta, and write a table and a report; what was run is not run again.

    Of a file's problems each may set strategies for itself: strategy = { dp_fed_sgd = { rounds = 60 } }.

    [dim]Examples:[/dim]

      userdp compare simulations/configs/compare-quick.toml

      userdp compare my.toml --against-oracle

      userdp compare my.toml --seeds 10 --workers 4 --json | jq '.[] | select(.error_private)'
    """
    with exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.comparison.config import load_comparison  # noqa: PLC0415
        from simulations.comparison.jobs import compare as run_all  # noqa: PLC0415
        from simulations.comparison.live import live  # noqa: PLC0415

        log_warnings()
        given = {"seeds": seeds, "output.directory": output, "against_oracle": against_oracle or None}
        comparison = load_comparison(file, [*(overrides or []), *assignments(given)])
        with live(comparison) as watch:
            outcome = run_all(comparison, workers=workers, watch=watch)
    if as_json:
        from simulations.records.run_directory import plain  # noqa: PLC0415

        print_json(plain(outcome.rows))
        return
    from simulations.comparison.ranking import rankings  # noqa: PLC0415

    typer.echo(rankings(outcome.directory))
    failed = sum(one["error_private"] is not None for one in outcome.rows)
    typer.echo(f"{len(outcome.rows)} cells, {failed} without a result; {outcome.ran} runs were made now")
    typer.echo(f"Report: {outcome.directory / 'report.html'}")


@app.command()
def audit(
    file: File,
    overrides: Overrides = None,
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="One run of the file's own users and model, with many canaries among them."),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Audit every strategy at the file's budget.")] = False,
    runs: Annotated[int, typer.Option(help="Runs of the small instance; more of them bring the bound closer.")] = 1000,
    canaries: Annotated[
        int | None,
        typer.Option(help="With --one-run; as many as the model has parameters, 1000 at most.", show_default=False),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes; all CPUs if not given, 0 for none.", show_default=False)
    ] = None,
    output: Output = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Attack a strategy, and show how much of the epsilon that it claims the attack proves.

    The strategy runs as configured, many times, for a few made-up people and with noise of its own in each run.
    Canaries are thrown in by coins, an attacker guesses these from the released models, and the guesses bound epsilon
    from below. A bound above the claim refutes it (exit code 1). One below proves nothing; close to it, no noise is
    wasted. Reads no data, but with --one-run.

    [dim]Examples:[/dim]

      userdp audit simulations/configs/quickstart.toml

      userdp audit my.toml --runs 5000 --set privacy.epsilon=4

      userdp audit my.toml --all --json | jq '.[] | {strategy, claimed_epsilon, measured_epsilon}'

      userdp audit my.toml --one-run --canaries 500
    """
    with exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.audit.command import Wanted, audit_file, show_audits  # noqa: PLC0415

        log_warnings()
        config = _load(file, [*(overrides or []), *assignments({"output.directory": output})])
        done = audit_file(config, Wanted(one_run, everything, runs, canaries, confidence, workers))
    if as_json:
        print_json(done.values)
    else:
        show_audits(done)
    if done.refuted:
        raise typer.Exit(FAILED)


@app.command()
def report(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A directory of a run, of a comparison or of an audit.", show_default=False),
    ],
    released: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a copy of the run into this new folder that may be handed on: report, model, guarantee, and no "
            "field that the guarantee does not cover.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the report of a run, a comparison or an audit anew, for finished ones and for failed ones.

    [dim]Examples:[/dim]

      userdp report runs/quickstart-auto-seed1

      userdp report runs/quickstart-auto-seed1 --released for-others
    """
    with exit_codes(debug):
        from simulations.audit.report import is_audit, render_audit  # noqa: PLC0415
        from simulations.comparison.report import is_comparison, render_comparison  # noqa: PLC0415
        from simulations.reports.report import render  # noqa: PLC0415
        from simulations.runs.released_copy import copy_released  # noqa: PLC0415

        if released is not None:
            typer.echo(copy_released(directory, released))
        elif is_audit(directory):
            typer.echo(render_audit(directory))
        else:
            typer.echo(render_comparison(directory) if is_comparison(directory) else render(directory))


@app.command()
def predict(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIRECTORY", help="Of a run, or of a copy made by report --released.", show_default=False
        ),
    ],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV or Parquet file for the predictions; TABLE-predictions.csv here if not given.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Copy this column of TABLE into the predictions; repeatable.", show_default=False
        ),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a table with the model of a run: a prediction for each row, and metrics if the table has user and target.

    [dim]Examples:[/dim]

      userdp predict runs/heights-dp_fed_sgd-seed0 others.csv --keep person

      userdp predict runs/heights-dp_fed_sgd-seed0 others.parquet --output scores.parquet --json | jq .metrics
    """
    with exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.api.scoring import score, show_scores  # noqa: PLC0415

        log_warnings()
        scores = score(directory, table, output, keep or (), trust_code=trust_code)
    if as_json:
        print_json(scores.as_dict())
    else:
        show_scores(scores, Console())


app.add_typer(listing_commands.app)


def _load(file: Path, overrides: list[str]) -> "RunConfig":
    from simulations.config.run_config import load_config  # noqa: PLC0415

    return load_config(file, overrides)


def _run(config: "RunConfig", resume: Path | None) -> "RunOutcome":
    from simulations.api.progress import progress_bar  # noqa: PLC0415
    from simulations.runs.run import run  # noqa: PLC0415

    with progress_bar() as progress:
        return run(
            config,
            directory=resume,
            progress=progress,
            checkpoint=config.output.checkpoint,
            resume=resume is not None,
        )
