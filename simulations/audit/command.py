"""`userdp audit`: which audits are made, what they leave, and what is printed."""

import csv
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from simulations.audit.finding import Audit
from simulations.audit.many_runs import audit
from simulations.audit.one_run import audit_one_run
from simulations.audit.report import AUDIT, CONFIG, CURVE, render_audit
from simulations.config.run_config import REFERENCE, RunConfig, parse_config
from simulations.records.environment import versions
from simulations.records.run_directory import new_directory, plain
from simulations.reports.explain import shown
from simulations.reports.minutes import Clock, MinuteLines
from strategies.registry import STRATEGIES
from userdp.errors import BadInput


@dataclass(frozen=True)
class Wanted:
    """What a person asked for; see `userdp audit --help`."""

    one_run: bool = False
    everything: bool = False
    runs: int = 1000
    canaries: int | None = None
    confidence: float = 0.95
    workers: int | None = None

    def command(self) -> str:
        """What makes the same audit of a file that is called config.toml."""
        words = ["userdp audit config.toml"]
        if self.one_run:
            words += ["--one-run", *(() if self.canaries is None else (f"--canaries {self.canaries}",))]
        else:
            words += [*(("--all",) if self.everything else ()), f"--runs {self.runs}"]
        return " ".join([*words, f"--confidence {self.confidence:g}"])


@dataclass(frozen=True)
class Done:
    """What came of it.

    Attributes:
        values: plain values: of one audit, or a list of them.
        found: the audits.
        refusals: strategy -> why it was not audited.
        directory: where the files are.
    """

    values: Any
    found: Sequence[Audit]
    refusals: Mapping[str, str]
    directory: Path

    @property
    def refuted(self) -> bool:
        """Whether some claim was."""
        return any(one.refuted for one in self.found)


def audit_file(config: RunConfig, wanted: Wanted) -> Done:
    """Audit a configuration and write audit.json, trade-off.csv, the report and its chart.

    Raises:
        BadInput: nothing to audit, or a setting out of range.
    """
    if wanted.one_run and wanted.everything:
        raise BadInput("--one-run runs the file's own strategy: leave --all out")
    refusals: dict[str, str] = {}
    found: list[Audit] = []
    kind = "all" if wanted.everything else config.strategy.kind
    directory = new_directory(Path(config.output.directory) / f"{config.name}-{kind}-audit", secure=False)
    with audit_bar() as told:
        if wanted.one_run:
            found.append(_one(config, wanted, told))
        elif wanted.everything:
            for one in _all(config, wanted, told, refusals):
                found.append(one)
                # Whoever stops after hours keeps what there is.
                leave(directory, config, wanted, found, refusals)
        else:
            found.append(_many(config, wanted, told))
    values = leave(directory, config, wanted, found, refusals)
    return Done(values, found, refusals, directory)


def _one(config: RunConfig, wanted: Wanted, told: "Told") -> Audit:
    canaries, confidence = wanted.canaries, wanted.confidence
    return audit_one_run(
        config, canaries=canaries, confidence=confidence, progress=told(config.strategy.kind, "rounds")
    )


def _many(config: RunConfig, wanted: Wanted, told: "Told") -> Audit:
    return audit(
        config,
        runs=wanted.runs,
        confidence=wanted.confidence,
        workers=wanted.workers,
        progress=told(config.strategy.kind, "runs"),
    )


def _all(config: RunConfig, wanted: Wanted, told: "Told", refusals: dict[str, str]) -> Iterator[Audit]:
    """Every strategy in turn; bounds hold for all of them together, each with its share of the risk (Bonferroni)."""
    names = [name for name in STRATEGIES if name != REFERENCE]
    wanted = replace(wanted, confidence=1 - (1 - wanted.confidence) / len(names))
    for name in names:
        try:
            yield _many(with_strategy(config, name), wanted, told)
        except BadInput as error:
            refusals[name] = str(error)


def with_strategy(config: RunConfig, name: str) -> RunConfig:
    """The file with another strategy, in a short run; with its own settings, if it is the file's.

    Raises:
        BadInput: the two do not go together.
    """
    if name == config.strategy.kind:
        return config
    strategy = STRATEGIES[name]
    values = config.model_dump(exclude_none=True)
    values["strategy"] = {"kind": name, **strategy.about.example}
    if values["privacy"]["unit"] not in strategy.about.units:
        values["privacy"]["unit"] = strategy.about.units[0]
    return parse_config(values | {"preparation": "none"})


def leave(
    directory: Path, config: RunConfig, wanted: Wanted, found: Sequence[Audit], refusals: Mapping[str, str]
) -> Any:
    """Write the files of an audit into its directory.

    Returns:
        What audit.json holds: of one audit, or a list with the strategies that were refused.
    """
    made = {"name": config.name, "seed": config.seed, "versions": versions(), "command": wanted.command()}
    values: Any = [plain(one.as_dict() | made) for one in found]
    values += [{"strategy": name, "refused": why} | made for name, why in refusals.items()]
    values = values if wanted.everything else values[0]
    (directory / AUDIT).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    (directory / CONFIG).write_text(config.toml(), encoding="utf-8")
    _write_curves(directory / CURVE, [one for one in found if len(one.false_positives)])
    render_audit(directory)
    return values


def _write_curves(path: Path, found: Sequence[Audit]) -> None:
    """The measured trade-off of each strategy, and the claimed one; no file where there is none."""
    if not found:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["strategy", "false_positives", "false_negatives", "claimed_false_negatives"])
        for one in found:
            least = one.claim.false_negatives(one.false_positives)
            for point in zip(one.false_positives, one.false_negatives, least, strict=True):
                table.writerow([one.strategy, *(f"{value:.6g}" for value in point)])


# On a terminal -----------------------------------------------------------------------------------------------------


def show_audits(done: Done) -> None:
    """Print claims against what was measured, and what a claim means."""
    console = Console()
    table = Table(
        Column("strategy", no_wrap=True),
        Column("claimed epsilon", justify="right"),
        Column("delta", justify="right"),
        Column("measured epsilon, at least", justify="right"),
        Column("share", justify="right"),
        Column("confidence", justify="right"),
        "verdict",
        title="privacy claims under attack",
    )
    for one in done.found:
        claimed = one.guarantee.epsilon
        verdict = "[bold red]REFUTED[/bold red]" if one.refuted else "[green]stands[/green]"
        table.add_row(
            one.strategy,
            shown(claimed),
            f"{one.guarantee.delta:.2g}",
            shown(one.measured),
            f"{one.measured / claimed:.0%}",
            f"{one.confidence:.4g}",
            verdict,
        )
    console.print(table)
    for name, why in done.refusals.items():
        console.print(f"  {name}: not audited: {why}", highlight=False, markup=False)
    if len(done.found) == 1:
        _explain(done.found[0], console)
    console.print(f"Report: {done.directory / 'report.html'}", highlight=False, soft_wrap=True)


def _explain(one: Audit, console: Console) -> None:
    values, runs = one.as_dict(), "one run" if one.runs == 1 else f"{one.runs} runs"
    if one.mu is not None:
        console.print("The claim is that of one Gaussian mechanism, and was tested as such.", highlight=False)
    if one.exact is not None:
        console.print(
            f"Of the worst canaries a test or choice of one round alone costs epsilon = {shown(one.exact)}, exactly.",
            highlight=False,
        )
    console.print(f"[bold]Attack.[/bold] {one.attack}; {one.users} users, {runs}.", highlight=False)
    console.print(f"[bold]Guarantee.[/bold] {one.guarantee.sentence()}", highlight=False)
    console.print(
        f"[bold]What it means.[/bold] Whoever tells two equally likely data sets apart, which differ in one "
        f"{one.guarantee.unit}, is right with probability {values['most_membership_accuracy']:.1%} at most.",
        highlight=False,
    )
    for rate, most in values["most_guess_success"].items():
        console.print(
            f"  a guess about a {one.guarantee.unit} that is right with probability {float(rate):.0%} without their "
            f"data is right with {most:.1%} at most",
            highlight=False,
        )


Told = Callable[[str, str], Callable[[int, int], None]]
"""From the name of what is audited, and what is counted, to what is called with (done, of)."""


@contextmanager
def audit_bar(clock: Clock = time.monotonic) -> Iterator[Told]:
    """What tells how far audits are, on standard error: a bar on a terminal, a line a minute elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = MinuteLines(clock)

        def counted(name: str, what: str) -> Callable[[int, int], None]:
            lines.count_from(0)
            return lambda done, of: lines.tell(done, of, lambda: f"audit of {name}: {done} of {of} {what} done")

        yield counted
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:

        def told(name: str, _: str) -> Callable[[int, int], None]:
            task = bar.add_task(name, total=None)
            return lambda done, of: bar.update(task, completed=done, total=of)

        yield told
