"""Shared parts of the `userdp` command's verbs: options, exit codes, errors as sentences, JSON."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup

from userdp.errors import BadInput, UserdpError
from userdp.extras import missing_extra
from userdp.tracebacks import shows_internals, told

Verb = TypeVar("Verb", bound=Callable[..., None])


class Verbs(TyperGroup):
    """Verbs, of which the nearest is offered in place of an unknown one: by this class alone, not by click as well."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click's `Group`."""
        name, verbs = args[0], self.list_commands(ctx)
        if name not in verbs:
            from userdp.data.tables.declared import did_you_mean  # noqa: PLC0415 -- loads NumPy

            near = did_you_mean({"train": "run"}.get(name, name), verbs)  # what Python's `train` does
            ctx.fail(f"{ctx.command_path} has no {name!r}{near or '; there are ' + ', '.join(verbs)}")
        return super().resolve_command(ctx, args)


def argument(metavar: str, text: str) -> Any:
    """Return an argument with a help text."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def option(text: str, *names: str, **settings: Any) -> Any:
    """Return an option with a help text, and without a default in it."""
    return typer.Option(*names, help=text, show_default=False, **settings)


def examples(*lines: str) -> Callable[[Verb], Verb]:
    """Give a verb the examples of its help."""

    def given(call: Verb) -> Verb:
        vars(call)["examples"] = lines
        return call

    return given


File = Annotated[Path, argument("FILE", "Configuration file (TOML).")]
_SET = "Override a key, such as privacy.epsilon=2; repeatable. A whole section: 'strategy={kind=\"non_private\"}'."
Overrides = Annotated[list[str] | None, option(_SET, "--set", metavar="KEY=VALUE")]
Json = Annotated[bool, option("Print JSON to standard output and nothing else.", "--json")]
TrustCode = Annotated[bool, option("Run code that the run's directory names, such as problem.module.", "--trust-code")]
Output = Annotated[str | None, option("Overrides output.directory.", "--output", metavar="DIR")]
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors into a sentence on standard error and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        complain("interrupted; what the run had written stays in its directory")
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        if shows_internals():
            Console(stderr=True).print_exception()
        error = (isinstance(error, ModuleNotFoundError) and missing_extra(error)) or error
        defect = f"unexpected {told(error)} (this is a defect: run userdp --debug with the same words and report it)"
        complain(str(error) if isinstance(error, UserdpError) else defect)
        raise typer.Exit(BAD_INPUT if isinstance(error, BadInput) else FAILED) from None


@contextmanager
def working() -> Iterator[None]:
    """Turn errors into exit codes, show warnings, and keep standard output free for the result."""
    log_warnings()
    with exit_codes(), redirect_stdout(sys.stderr):
        yield


def complain(sentence: str) -> None:
    """Print a sentence on standard error."""
    typer.secho(f"userdp: {sentence}", err=True, fg=typer.colors.RED)


def assignments(given: dict[str, Any]) -> list[str]:
    """Return overrides for options with a name of their own."""
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def answer(as_json: bool, values: Any, show: Callable[[], None]) -> None:
    """Print the result of a verb as JSON and nothing else, or show it."""
    if as_json:
        sys.stdout.write(json.dumps(values, indent=2) + "\n")
    else:
        show()


def log_warnings() -> None:
    """Show the warnings of userdp on standard error."""
    log_to(sys.stderr, logging.WARNING, logging.Formatter("userdp: %(levelname)s: %(message)s"))


def log_to(stream: TextIO, level: int, form: logging.Formatter) -> None:
    """Write what userdp logs to a stream, and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form)
    log = logging.getLogger("userdp")
    log.handlers, log.propagate = [handler], False
    log.setLevel(level)
