"""The papers' rooms: folders of `strategies/baselines` with a paper.toml, a page, configurations, sweeps, results."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from math import log
from pathlib import Path
from typing import Any

import pandas as pd

from making.papers import by_cell, by_sweep

ROOT = Path(__file__).resolve().parents[2]
BASELINES = ROOT / "strategies" / "baselines"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An algorithm, theorem or experiment of a paper.

    Attributes:
        what: Its name in the paper.
        how: One of `making.papers_index.HOW`.
        why: The change, or the reason why it is left out.
        code: Strategies, ``module`` or ``module:name``.
        configurations: Names of files of any room's configs or of simulations/configs.
        tests: Paths of test files.
    """

    what: str
    how: str
    why: str = ""
    code: list[str] = field(default_factory=list)
    configurations: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Measured errors along one key of a comparison's grid, or one column of a sweep, and the slope of theory.

    Attributes:
        name: The name of the picture.
        table: The name of the table.
        along: The key or column on the horizontal axis.
        power: The exponent of theory in it, or in its logarithm where ``of_log``.
        told: The label of theory; a sweep's says its power.
        of: The strategy that a comparison's theory is proven for; the line starts at its first median.
        problem: The problem to draw; None if a comparison has one only.
        by: The column of a sweep with one line per value; its columns error, least and most are drawn.
        powers: The exponents of a sweep's lines that have another one each, by value.
        columns: The columns of a sweep that are a strategy each; beside them are their standard errors.
        bound: The column of their sweep with the bound that theory has.
    """

    name: str
    table: str
    along: str
    power: str = "0"
    of_log: bool = False
    told: str = ""
    of: str = ""
    problem: str | None = None
    by: str = ""
    powers: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    bound: str = ""

    def grows(self, at: float, line: float | None = None) -> float:
        """Return the rate of theory at a point, up to a factor; of a sweep's line."""
        power = self.power if line is None else self.powers.get(f"{line:g}", self.power)
        return float((log(at) if self.of_log else at) ** float(Fraction(power)))


@dataclass(frozen=True, kw_only=True)
class Room:
    """A paper, and what its folder declares.

    Attributes:
        folder: The folder.
        title: The title.
        authors: The authors.
        cited: The beginning of its citation in the strategies' classes.
        typed: Numbers with two decimals or more that its page has by hand: settings, and constants of proofs.
        tables: Part of the page -> a comparison of configs, or a sweep.
        picture: Its pictures.
        entry: Its algorithms, theorems and experiments.
    """

    folder: Path
    title: str
    authors: str
    cited: str
    typed: list[str]
    tables: dict[str, str]
    picture: list[Picture]
    entry: list[Entry]

    @property
    def page(self) -> str:
        """The path of its page in the repository."""
        return f"{self.folder.relative_to(ROOT).as_posix()}/README.md"

    def rows(self, table: str) -> pd.DataFrame:
        """Return the results of a comparison or sweep."""
        return pd.read_csv(self.folder / "results" / f"{table}.csv")

    def parts(self) -> dict[str, str]:
        """Return the tables of the page."""
        made: dict[str, Callable[[], str]] = {}
        if (own := self.folder / "sweeps" / "page.py").is_file():
            module = import_module(".".join(own.relative_to(ROOT).with_suffix("").parts))
            made = module.PARTS
        return {part: self._shown(table) for part, table in self.tables.items()} | {
            part: make() for part, make in made.items()
        }

    def _shown(self, table: str) -> str:
        file = configuration(table)
        if file.is_file():
            return by_cell(self.rows(table), file.relative_to(ROOT).as_posix())
        return by_sweep(self.rows(table), table)


def rooms() -> list[Room]:
    """Return all rooms."""
    return [_read(file) for file in sorted(BASELINES.glob("*/paper.toml"))]


def configuration(name: str) -> Path:
    """Return the file of a configuration that an entry names, of any room or of simulations/configs."""
    found = [*BASELINES.glob(f"*/configs/{name}.toml"), ROOT / "simulations" / "configs" / f"{name}.toml"]
    return found[0]


def _read(file: Path) -> Room:
    told: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    pictures = [Picture(**one) for one in told.pop("picture", [])]
    return Room(folder=file.parent, picture=pictures, entry=[Entry(**one) for one in told.pop("entry")], **told)
