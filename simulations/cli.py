"""The `userdp` command: one verb for each purpose.

Exit codes: 0 done; 1 the run failed (its files so far stay); 2 bad input; 130 interrupted. Errors are sentences on
standard error; with `--json` standard output holds the JSON and nothing else.
"""

from inspect import getdoc
from typing import Annotated

import typer

from simulations.account.command import app as accounts
from simulations.commands.results import explain_model, export, predict, report
from simulations.commands.tables import find, query
from simulations.commands.training import advise, audit, compare, plan, run
from simulations.serving.command import app as queue
from simulations.serving.command import serve
from simulations.terminal import Json, Name, exit_codes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning with user-level differential privacy: run it, plan it, trust every epsilon.",
    epilog="Start with [bold]userdp plan FILE[/bold] (reads no data), then [bold]userdp run FILE[/bold]. "
    "Ready-made files are in simulations/configs.",
)
for verb in (run, plan, advise, compare, audit, report, predict, export, explain_model, query, find, serve):
    text = [getdoc(verb) or "", "[dim]Examples:[/dim]", *(f"  {example}" for example in vars(verb)["examples"])]
    app.command(help="\n\n".join(text))(verb)
app.add_typer(accounts, name="account")
app.add_typer(queue, name="queue")


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
