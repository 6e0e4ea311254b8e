"""docs/configuration.md, made from the models that check a configuration."""

from collections.abc import Iterable
from typing import Any

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulations.comparison.sections import (
    ComparisonConfig,
    ComparisonOutput,
    ProblemEntry,
    StrategyEntry,
    TuningSection,
)
from simulations.config.keys import shown, values
from simulations.config.run_config import EngineSection, OutputSection, PrivacySection, RunConfig, strategy_section
from strategies import STRATEGIES, StrategyOptions
from userdp.data import POPULATIONS
from userdp.data.synthetic.source import SyntheticData, synthetic_settings
from userdp.data.tables.csv_form import CsvForm
from userdp.data.tables.derived import Derivation
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.sources import PublicData, TableData, TableSource
from userdp.problems.registry import PROBLEMS
from userdp.problems.settings import ProblemSettings

INTRODUCTION = """\
# Configuration

This page lists every key of a configuration file, with its values, its default and its meaning. You need it when you
write such a file, or when a message names a key. This is a complete run:

```toml
{smallest}```

| section | says |
|---|---|
| [top level](#top-level) | name and seed |
| [`[problem]`](#problem) | the loss |
| [`[data]`](#data) | whose data: a table of yours, a public set, or made-up people |
| [`[privacy]`](#privacy) | epsilon, delta, and what is protected |
| [`[strategy]`](#strategy) | how to train; `auto` if it is left out |
| [`[engine]`](#engine), [`[output]`](#output) | where to run, and what to write |
| [comparisons](#comparisons) | a file of its own, for many runs |

## How a file is read

- Unknown keys are refused, with the nearest name.
- Every number that privacy rests on comes from the file, never from the data: `userdp plan FILE` computes the whole
  run without opening them.
- `--set section.key=value` overrides a key (repeatable; the value is TOML, a bare word is a string), and
  `--set 'strategy={{kind="non_private"}}'` replaces a section. `--engine`, `--seed` and `--output` are short for
  `engine.kind`, `seed` and `output.directory`.
- The files in [simulations/configs](../simulations/configs) explain their settings line by line.

This page is made by `docs/make.py` from the models that check the file.
"""
SMALLEST: dict[str, Any] = {
    "name": "smallest",
    "problem": {"kind": "quadratic", "bound": 3.0},
    "data": {"kind": "synthetic", "population": "gaussian", "dimension": 2, "users": 2000},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
}
"""A complete run with as few keys as can be."""
COMPARISON = """\
## Comparisons

`userdp compare FILE` reads a file with these sections, and runs every strategy at every point of the grid with every
seed, all at the same unit, epsilon and delta. `compare-*.toml` in the same folder explain their settings.
"""


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION.format(smallest=tomli_w.dumps(SMALLEST)),
        "## Top level\n",
        table(RunConfig, ["name", "seed", "preparation"]),
    ]
    parts += ["## [problem]\n", "`kind` chooses the loss; every loss has:\n", table(ProblemSettings, skip=["kind"])]
    for name, section in PROBLEMS.items():
        parts += [f'### problem.kind = "{name}"\n', f"{sentence(section.summary)}\n"]
        parts.append(table(section, skip=["kind", *ProblemSettings.model_fields]))
    parts += [
        "## [data]\n",
        '### data.kind = "synthetic"\n',
        "`population` chooses what users are drawn from; all have:\n",
    ]
    parts.append(table(SyntheticData, skip=["kind", "population"]))
    for name in POPULATIONS:
        synthetic = synthetic_settings(name)
        parts += [f'#### data.population = "{name}"\n', f"{sentence(synthetic.__doc__ or '')}\n"]
        parts.append(table(synthetic, skip=SyntheticData.model_fields))
    for kind, model in (("table", TableData), ("public", PublicData)):
        parts += [f'### data.kind = "{kind}"\n', f"{sentence(model.__doc__ or '')}\n"]
        parts.append(table(model, skip=["kind", *TableSource.model_fields]))
    parts += ["### Columns, for tables and public data sets\n", table(TableSource, skip=["kind"])]
    parts += ["#### [data.csv]\n", f"{sentence(CsvForm.__doc__ or '')}\n", table(CsvForm)]
    parts += ["#### [data.derive.NAME]\n", f"{sentence(Derivation.__doc__ or '')}\n", table(Derivation)]
    parts += ["#### [data.sequence]\n", f"{sentence(SequenceColumns.__doc__ or '')}\n", table(SequenceColumns)]
    parts += ["## [privacy]\n", table(PrivacySection)]
    parts += [
        "## [strategy]\n",
        "`kind` chooses the strategy; [its page](strategy/README.md) says what it promises. All have:\n",
    ]
    parts.append(table(StrategyOptions))
    for name in STRATEGIES:
        parts += [f'### strategy.kind = "{name}"\n', f"{sentence(STRATEGIES[name].about.summary_line)}\n"]
        parts.append(table(strategy_section(name), skip=["kind", *StrategyOptions.model_fields]))
    parts += ["## [engine]\n", table(EngineSection), "## [output]\n", table(OutputSection)]
    parts += [COMPARISON, table(ComparisonConfig, skip=["output"]), "### [[strategy]]\n", table(StrategyEntry)]
    parts += ["### [[problems]]\n", table(ProblemEntry), "### [tuning]\n", table(TuningSection)]
    parts += ["### [output] of a comparison\n", table(ComparisonOutput)]
    return "\n".join(part for part in parts if part)


def table(model: type[BaseModel], only: Iterable[str] | None = None, skip: Iterable[str] = ()) -> str:
    """One line a key; nothing for a model without further keys."""
    names = [name for name in (only or model.model_fields) if name not in set(skip)]
    if not names:
        return ""
    rows = [row(name, model.model_fields[name]) for name in names]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def row(name: str, field: FieldInfo) -> str:
    """A line of a table."""
    default = "**needed**" if field.is_required() else shown(field.get_default(call_default_factory=True))
    told = " ".join((field.description or "").split()).replace("|", "\\|")
    return f"| `{name}` | {values(field)} | {default} | {told} |"


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
