"""The `userdp` command: one verb for each purpose.

Exit codes: 0 done; 1 the run failed (its files so far stay); 2 bad input; 130 interrupted. Errors are sentences on
standard error; with `--json` standard output holds the JSON and nothing else.
"""

from inspect import getdoc
from typing import Annotated

import typer
import typer.core

from simulations.account.command import app as accounts
from simulations.commands.results import export, predict, report
from simulations.commands.running import audit, compare, find, plan, query, run
from simulations.serving.command import app as serving
from simulations.terminal import Json, Verbs, argument, exit_codes
from userdp.tracebacks import DEBUG, with_internals

typer.core.HAS_RICH = False  # help is plain text: quick, whole in brackets, and without typer's marks for rich
app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated learning with user-level differential privacy: run it, plan it, trust every epsilon.",
    epilog="Start with userdp plan FILE (reads no data), then userdp run FILE. "
    "Ready-made files are in simulations/configs.",
)
for verb in (run, plan, compare, audit, report, predict, export, query, find):
    text = [getdoc(verb) or "", "Examples:", *(f"  {example}" for example in vars(verb)["examples"])]
    app.command(help="\n\n".join(text))(verb)
app.add_typer(accounts, name="account")
app.add_typer(serving, name="serve")


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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help=f"Show the traceback of an error, like {DEBUG}=1.")] = False,
) -> None:
    """Federated learning with user-level differential privacy: run it, plan it, trust every epsilon."""
    if debug:
        context.with_resource(with_internals())


@app.command(name="list", no_args_is_help=True)
def listed(
    what: Annotated[str, argument("WHAT", "strategies, problems (losses), data, or settings of a configuration.")],
    name: Annotated[str | None, argument("[NAME]", "Show everything about this one.")] = None,
    as_json: Json = False,
) -> None:
    """List strategies, problems, data or settings, or explain one.

    userdp list strategies dp_fed_sgd: its needs, paper, cost, guarantee and settings

    userdp list problems: losses with their certificates

    userdp list data insteval: users, samples, license, and where the file comes from

    userdp list settings privacy.epsilon: values, default, meaning, effect on privacy
    """
    with exit_codes():
        from simulations.listings import show  # noqa: PLC0415

        show(what, name, as_json)
