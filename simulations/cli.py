"""The `userdp` command: one verb a purpose.

Exit codes: 0 done; 1 the run failed (what it had written stays); 2 bad input; 130 interrupted. Errors are sentences on
standard error; with `--json` standard output holds the JSON and nothing else.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from userdp.errors import BadInput

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

File = Annotated[Path, typer.Argument(metavar="FILE", help="Configuration file (TOML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, such as privacy.epsilon=2; repeatable. "
        "A whole section: 'strategy={kind=\"non_private\"}'.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output and nothing else.")]
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Show everything about this one.", show_default=False)
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main() -> None:
    """Entry point of the `userdp` command."""
    app()


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
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Overrides output.directory.", show_default=False)
    ] = None,
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
    with _exit_codes(debug), redirect_stdout(sys.stderr):
        _log_warnings()
        given = {"engine.kind": engine, "seed": seed, "output.directory": output, "output.anyway": anyway or None}
        from simulations.records.checkpoints import configuration_file  # noqa: PLC0415
        from simulations.records.released_fields import SHARED, kept  # noqa: PLC0415
        from simulations.reports.console import show_outcome  # noqa: PLC0415

        config = _load(configuration_file(file, resume), [*(overrides or []), *_assignments(given)])
        outcome = _run(config, resume)
        shown = outcome.result if config.shows_private else kept("result.json", outcome.result, SHARED)
    if as_json:
        _print_json(shown)
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
    with _exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.api.plans import show_plan  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.runs.build import make_plan  # noqa: PLC0415
        from strategies.core.declarations import explained  # noqa: PLC0415
        from strategies.registry import STRATEGIES  # noqa: PLC0415

        planned = make_plan(_load(file, overrides or []))
        values, meanings = plain(planned.as_dict()), explained(STRATEGIES[planned.strategy])
    if as_json:
        _print_json(values)
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
    with _exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.api.plans import planning_bar, show_advice  # noqa: PLC0415
        from simulations.records.run_directory import plain  # noqa: PLC0415
        from simulations.runs.advice import advise as rank  # noqa: PLC0415

        config = _load(file, overrides or [])
        with planning_bar() as progress:
            found = rank(config, progress)
    if as_json:
        _print_json([plain(each.as_dict()) for each in found])
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
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Overrides output.directory.", show_default=False)
    ] = None,
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
    """Compare strategies at one guarantee, and write a table and a report; what was run before is not run again.

    Of a file's problems each may set strategies for itself: strategy = { dp_fed_sgd = { rounds = 60 } }.

    [dim]Examples:[/dim]

      userdp compare simulations/configs/compare-quick.toml

      userdp compare my.toml --against-oracle

      userdp compare my.toml --seeds 10 --workers 4 --json | jq '.[] | select(.error_private)'
    """
    with _exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.comparison.config import load_comparison  # noqa: PLC0415
        from simulations.comparison.jobs import compare as run_all  # noqa: PLC0415
        from simulations.comparison.live import live  # noqa: PLC0415

        _log_warnings()
        given = {"seeds": seeds, "output.directory": output, "against_oracle": against_oracle or None}
        comparison = load_comparison(file, [*(overrides or []), *_assignments(given)])
        with live(comparison) as watch:
            outcome = run_all(comparison, workers=workers, watch=watch)
    if as_json:
        from simulations.records.run_directory import plain  # noqa: PLC0415

        _print_json(plain(outcome.rows))
        return
    from simulations.comparison.ranking import rankings  # noqa: PLC0415

    typer.echo(rankings(outcome.directory))
    failed = sum(one["error_private"] is not None for one in outcome.rows)
    typer.echo(f"{len(outcome.rows)} cells, {failed} without a result; {outcome.ran} runs were made now")
    typer.echo(f"Report: {outcome.directory / 'report.html'}")


@app.command()
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A directory of a run or of a comparison.", show_default=False)
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
    """Write the report of a run or a comparison anew, for finished ones and for failed ones.

    [dim]Examples:[/dim]

      userdp report runs/quickstart-auto-seed1

      userdp report runs/quickstart-auto-seed1 --released for-others
    """
    with _exit_codes(debug):
        from simulations.comparison.report import is_comparison, render_comparison  # noqa: PLC0415
        from simulations.reports.report import render  # noqa: PLC0415
        from simulations.runs.released_copy import copy_released  # noqa: PLC0415

        if released is not None:
            typer.echo(copy_released(directory, released))
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
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a table with the model of a run: a prediction for each row, and metrics if the table has user and target.

    [dim]Examples:[/dim]

      userdp predict runs/heights-dp_fed_sgd-seed0 others.csv

      userdp predict runs/heights-dp_fed_sgd-seed0 others.parquet --output scores.parquet --json | jq .metrics
    """
    with _exit_codes(debug), redirect_stdout(sys.stderr):
        from simulations.api.scoring import score, show_scores  # noqa: PLC0415

        _log_warnings()
        scores = score(directory, table, output)
    if as_json:
        _print_json(scores.as_dict())
    else:
        show_scores(scores, Console())


@app.command()
def strategies(name: Name = None, as_json: Json = False) -> None:
    """List the strategies; with a NAME also what it needs, its paper, cost, guarantees and settings."""
    _list("strategies", ("name", "unit", "summary"), name, as_json)


@app.command()
def problems(name: Name = None, as_json: Json = False) -> None:
    """List the problems (losses), with what is certified about each; with a NAME also its settings."""
    _list("problems", ("name", "family", "summary", "certificate"), name, as_json)


@app.command()
def data(name: Name = None, as_json: Json = False) -> None:
    """List the data: synthetic populations, tables, public data sets; with a NAME also its settings."""
    _list("data", ("name", "family", "users", "samples", "summary"), name, as_json)


@contextmanager
def _exit_codes(debug: bool) -> Iterator[None]:
    """Turn errors into a sentence on standard error and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        _complain("interrupted; what the run had written stays in its directory")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            Console(stderr=True).print_exception()
        _complain(_sentence(error))
        raise typer.Exit(BAD_INPUT if isinstance(error, BadInput) else FAILED) from None


def _sentence(error: Exception) -> str:
    from userdp.errors import UserdpError  # noqa: PLC0415

    if isinstance(error, UserdpError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (this is a defect: run again with --debug and report it)"


def _complain(sentence: str) -> None:
    typer.secho(f"userdp: {sentence}", err=True, fg=typer.colors.RED)


def _log_warnings() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("userdp: %(levelname)s: %(message)s"))
    log = logging.getLogger("userdp")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.WARNING)


def _assignments(given: dict[str, Any]) -> list[str]:
    """Overrides of the options that have a name of their own."""
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


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


def _list(what: str, columns: tuple[str, ...], name: str | None, as_json: bool) -> None:
    from simulations import listings  # noqa: PLC0415

    entries: list[dict[str, Any]] = getattr(listings, what)()
    if name is not None:
        with _exit_codes(debug=False):
            entries = [listings.entry(what, entries, name)]
    if as_json:
        _print_json(entries)
    elif name is None:
        Console().print(listings.overview(what, entries, columns))
    else:
        Console().print(listings.details(entries[0]))


def _print_json(values: Any) -> None:
    sys.stdout.write(json.dumps(values, indent=2) + "\n")
