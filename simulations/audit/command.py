"""`userdp audit`: run the audits, write their files, print the results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.audit.finding import Audit
from simulations.audit.many_runs import audit
from simulations.audit.one_run import audit_one_run
from simulations.audit.report import AUDIT, CONFIG, CURVE, render_audit
from simulations.config.run_config import REFERENCE, RunConfig, parse_config
from simulations.records.environment import versions
from simulations.records.run_directory import as_json, new_directory, plain, write_text, write_whole
from simulations.reports.explain import assumptions_of, shown
from simulations.reports.progress import Bar, audit_bar
from strategies.registry import STRATEGIES
from userdp.accounting.guarantee import rounded_up
from userdp.errors import BadInput


@dataclass(frozen=True)
class Wanted:
    """The options of the command; see `userdp audit --help`."""

    one_run: bool = False
    everything: bool = False
    runs: int = 1000
    canaries: int | None = None
    confidence: float = 0.95
    workers: int | None = None

    def command(self) -> str:
        """Return the command that repeats the audit with a file named config.toml."""
        words = ["userdp audit config.toml"]
        if self.one_run:
            words += ["--one-run", *(() if self.canaries is None else (f"--canaries {self.canaries}",))]
        else:
            words += [*(("--all",) if self.everything else ()), f"--runs {self.runs}"]
        return " ".join([*words, f"--confidence {self.confidence:g}"])


@dataclass(frozen=True)
class Done:
    """The result of the command: content of audit.json, audits, reasons for missing audits, and the directory."""

    values: Any
    found: Sequence[Audit]
    refusals: Mapping[str, str]
    directory: Path

    @property
    def refuted(self) -> bool:
        """True if the audit refutes its claim."""
        return any(one.refuted for one in self.found)


def audit_file(config: RunConfig, wanted: Wanted) -> Done:
    """Audit a configuration and write its files; BadInput for nothing to audit, or a setting out of range."""
    if wanted.one_run and wanted.everything:
        raise BadInput("--one-run audits the file's own strategy: remove --all or --one-run")
    refusals, found, kind = dict[str, str](), list[Audit](), config.strategy.kind
    name = f"{config.name}-{'all' if wanted.everything else kind}-audit"
    directory = new_directory(Path(config.output.directory) / name, secure=False)
    with audit_bar() as bar:
        if wanted.one_run:
            count, progress = wanted.canaries, bar(kind, "rounds")
            found.append(audit_one_run(config, canaries=count, confidence=wanted.confidence, progress=progress))
        elif not wanted.everything:
            found.append(_audit(config, wanted, bar))
        else:
            names = [name for name in STRATEGIES if name != REFERENCE]
            # The bounds of all strategies hold together, each with its share of the risk (Bonferroni).
            each = replace(wanted, confidence=1 - (1 - wanted.confidence) / len(names))
            for name in names:
                try:
                    found.append(_audit(with_strategy(config, name), each, bar))
                except BadInput as error:
                    refusals[name] = str(error)
                # An audit that is stopped after hours leaves its results so far.
                leave(directory, config, wanted, found, refusals)
    values = leave(directory, config, wanted, found, refusals)
    return Done(values, found, refusals, directory)


def _audit(config: RunConfig, wanted: Wanted, bar: Bar) -> Audit:
    progress = bar(config.strategy.kind, "runs")
    return audit(config, runs=wanted.runs, confidence=wanted.confidence, workers=wanted.workers, progress=progress)


def with_strategy(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration with another strategy in a short run; BadInput if the rest of the file does not fit."""
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
    """Write the files of an audit into its directory; return the content of audit.json, a list for ``--all``."""
    made = {"name": config.name, "seed": config.seed, "versions": versions(), "command": wanted.command()}
    values: Any = [plain(one.as_dict() | made) for one in found]
    values += [{"strategy": name, "refused": why} | made for name, why in refusals.items()]
    values = values if wanted.everything else values[0]
    write_text(directory / AUDIT, as_json(values))
    write_text(directory / CONFIG, config.toml())
    curves = [
        pd.DataFrame(
            {
                "strategy": one.strategy,
                "false_positives": one.false_positives,
                "false_negatives": one.false_negatives,
                "claimed_false_negatives": one.claim.false_negatives(one.false_positives),
            }
        )
        for one in found
        if len(one.false_positives)
    ]
    if curves:
        write = partial(pd.concat(curves).to_csv, index=False, float_format="%.6g", lineterminator="\r\n")
        write_whole(directory / CURVE, write)
    render_audit(directory)
    return values


# On a terminal -----------------------------------------------------------------------------------------------------


def show_audits(done: Done) -> None:
    """Print claimed and measured epsilons, and the meaning of a single claim."""
    console = Console()
    table = Table(Column("strategy", no_wrap=True), title="privacy claims under attack")
    for name in ("claimed epsilon", "delta", "measured epsilon, at least", "measured / claimed", "confidence"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for one in done.found:
        table.add_row(
            one.strategy,
            rounded_up(one.guarantee.epsilon),
            rounded_up(one.guarantee.delta, 2),
            shown(one.measured),
            f"{one.measured / one.guarantee.epsilon:.0%}",
            f"{one.confidence:.4g}",
            "[bold red]REFUTED[/bold red]" if one.refuted else "[green]stands[/green]",
        )
    console.print(table)
    for name, why in done.refusals.items():
        console.print(f"  {name}: not audited: {why}", highlight=False, markup=False)
    several = map(escape, assumptions_of({one.strategy: one.guarantee for one in done.found}))
    for line in _explanation(done.found[0]) if len(done.found) == 1 else several:
        console.print(line, highlight=False)
    console.print(f"Report: {done.directory / 'report.html'}", highlight=False, soft_wrap=True)


def _explanation(one: Audit) -> Iterator[str]:
    values, runs, unit = one.as_dict(), "one run" if one.runs == 1 else f"{one.runs} runs", one.guarantee.unit
    if one.mu is not None:
        yield "The claim is that of one Gaussian mechanism, and was tested as such."
    if one.exact is not None:
        yield f"For the worst canaries, one round's test or choice alone costs epsilon = {shown(one.exact)}, exactly."
    yield f"[bold]Attack.[/bold] {one.attack}; {one.users} users, {runs}."
    yield f"[bold]Guarantee.[/bold] {escape(str(one.guarantee))}"
    yield (
        f"[bold]Meaning.[/bold] An attacker who guesses which of two equally likely data sets, which differ in one "
        f"{unit}, was used is right with probability at most {values['most_membership_accuracy']:.1%}."
    )
    for rate, most in values["most_guess_success"].items():
        yield (
            f"  A guess about a {unit} that is right with probability {float(rate):.0%} without their data is right "
            f"with probability at most {most:.1%}."
        )
