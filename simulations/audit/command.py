"""`userdp audit`: which audits are made, what they leave, and what is printed."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from simulations.audit.many_runs import Audit, audit, claim_of
from simulations.audit.one_run import OneRun, audit_one_run
from simulations.config.run_config import REFERENCE, RunConfig, parse_config
from simulations.records.run_directory import new_directory, plain
from simulations.reports.explain import shown
from simulations.reports.plots import BLUE, ORANGE, figure_and_axes
from strategies.registry import STRATEGIES
from userdp.errors import BadInput

BASE_RATES = (0.01, 0.1, 0.5)
"""Of guesses about a user, for which an epsilon is translated into success."""


@dataclass(frozen=True)
class Wanted:
    """What a person asked for; see `userdp audit --help`."""

    one_run: bool = False
    everything: bool = False
    runs: int = 1000
    canaries: int | None = None
    confidence: float = 0.95
    workers: int | None = None


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
    found: Sequence[Audit | OneRun]
    refusals: Mapping[str, str]
    directory: Path

    @property
    def refuted(self) -> bool:
        """Whether some claim was."""
        return any(one.refuted for one in self.found)


def audit_file(config: RunConfig, wanted: Wanted) -> Done:
    """Audit a configuration and write audit.json, trade-off.csv and the chart of both.

    Raises:
        BadInput: nothing to audit, or a setting out of range.
    """
    if wanted.one_run and wanted.everything:
        raise BadInput("--one-run runs the file's own strategy: leave --all out")
    refusals: dict[str, str] = {}
    with _bar() as told:
        if wanted.one_run:
            found: list[Audit | OneRun] = [_one(config, wanted, told)]
        elif wanted.everything:
            found = list(_all(config, wanted, told, refusals))
        else:
            found = [_many(config, wanted, told)]
    values: Any = [plain(one.as_dict() | translated(one)) for one in found]
    values += [{"strategy": name, "refused": why} for name, why in refusals.items()]
    values = values if wanted.everything else values[0]
    kind = "all" if wanted.everything else config.strategy.kind
    directory = new_directory(Path(config.output.directory) / f"{config.name}-{kind}-audit", secure=False)
    write(directory, values, found)
    return Done(values, found, refusals, directory)


def _one(config: RunConfig, wanted: Wanted, told: "Told") -> OneRun:
    canaries, confidence = wanted.canaries, wanted.confidence
    return audit_one_run(config, canaries=canaries, confidence=confidence, progress=told(config.strategy.kind))


def _many(config: RunConfig, wanted: Wanted, told: "Told") -> Audit:
    return audit(
        config,
        runs=wanted.runs,
        confidence=wanted.confidence,
        workers=wanted.workers,
        progress=told(config.strategy.kind),
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
    values["strategy"] = {"kind": name, **strategy.example}
    if values["privacy"]["unit"] not in strategy.units:
        values["privacy"]["unit"] = strategy.units[0]
    return parse_config(values | {"preparation": "none"})


# What it means -----------------------------------------------------------------------------------------------------


def translated(one: Audit | OneRun) -> dict[str, Any]:
    """What the claim leaves an attacker: most success of telling a member from others, and of guesses about a user."""
    claim = claim_of(one.guarantee)
    return {
        "most_membership_accuracy": claim.membership_accuracy,
        "most_guess_success": {str(rate): claim.guess_success(rate) for rate in BASE_RATES},
    }


def write(directory: Path, values: Any, found: Sequence[Audit | OneRun]) -> None:
    """audit.json, and of audits by many runs trade-off.csv, trade-off.svg and trade-off.png."""
    (directory / "audit.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    measured = [one for one in found if isinstance(one, Audit)]
    if not measured:
        return
    with (directory / "trade-off.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["strategy", "false_positives", "false_negatives", "claimed_false_negatives"])
        for one in measured:
            least = claim_of(one.guarantee).false_negatives(one.false_positives)
            for point in zip(one.false_positives, one.false_negatives, least, strict=True):
                table.writerow([one.strategy, *(f"{value:.6g}" for value in point)])
    if len(measured) == 1:
        for kind in ("svg", "png"):
            _chart(measured[0]).savefig(directory / f"trade-off.{kind}", dpi=160)


def _chart(one: Audit) -> Figure:
    """The two errors of an attacker: the least that is claimed, and what was measured."""
    with mpl.rc_context({"font.size": 11.0, "axes.spines.right": False, "axes.spines.top": False}):
        figure, axes = figure_and_axes(height=4.0)
        alarms = np.linspace(0, 1, 401)
        axes.fill_between(alarms, 0, claim_of(one.guarantee).false_negatives(alarms), color=BLUE, alpha=0.12)
        axes.plot(alarms, claim_of(one.guarantee).false_negatives(alarms), color=BLUE, label="least by the claim")
        axes.plot([0, 1], [1, 0], color="0.6", linestyle=":", label="blind guessing")
        points = one.false_positives, one.false_negatives
        axes.plot(*points, color=ORANGE, marker="o", markersize=2.5, linestyle="none", label="measured")
        axes.set(xlabel="false positives", ylabel="false negatives", xlim=(0, 1), ylim=(0, 1))
        axes.set_title(f"{one.strategy}: epsilon {shown(one.guarantee.epsilon)} at delta {one.guarantee.delta:.2g}")
        axes.legend(frameon=False, loc="upper right")
        return figure


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
    console.print(f"Files: {done.directory}", highlight=False, soft_wrap=True)


def _explain(one: Audit | OneRun, console: Console) -> None:
    claim, runs = claim_of(one.guarantee), "one run" if isinstance(one, OneRun) else f"{one.runs} runs"
    if isinstance(one, Audit) and one.mu is not None:
        console.print("The claim is that of one Gaussian mechanism, and was tested as such.", highlight=False)
    console.print(f"[bold]Attack.[/bold] {one.attack}; {one.users} users, {runs}.", highlight=False)
    console.print(f"[bold]Guarantee.[/bold] {one.guarantee.sentence()}", highlight=False)
    console.print(
        f"[bold]What it means.[/bold] Whoever tells two equally likely data sets apart, which differ in one "
        f"{one.guarantee.unit}, is right with probability {claim.membership_accuracy:.1%} at most.",
        highlight=False,
    )
    for rate in BASE_RATES:
        most = claim.guess_success(rate)
        console.print(
            f"  a guess about a {one.guarantee.unit} that is right with probability {rate:.0%} without their data is "
            f"right with {most:.1%} at most",
            highlight=False,
        )


Told = Callable[[str], Callable[[int, int], None]]
"""From the name of what is done to what is called with (done, of)."""


@contextmanager
def _bar() -> Iterator[Told]:
    """A progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda name: lambda done, of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:

        def told(name: str) -> Callable[[int, int], None]:
            task = bar.add_task(name, total=None)
            return lambda done, of: bar.update(task, completed=done, total=of)

        yield told
