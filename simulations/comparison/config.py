"""A comparison's TOML file: the sections of a run, with several strategies, problems, seeds and a grid of settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from simulations.comparison.cells import Cell, check_strategy, check_values, combinations, expand
from simulations.comparison.oracle import FIRST_SEED, oracle_entries
from simulations.comparison.sections import ComparisonConfig
from simulations.config.errors import sentences
from simulations.config.run_config import flatten, make_absolute, read_toml
from userdp.errors import BadInput


@dataclass(frozen=True)
class Comparison:
    """A comparison: the file's content, the same as plain values with absolute paths, and its cells."""

    config: ComparisonConfig
    raw: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the strategies, in the file's order, and then of the oracle's."""
        return tuple(entry.name for entry in (*self.config.strategy, *oracle_entries(self.config)))

    @property
    def grid_keys(self) -> tuple[str, ...]:
        """The dotted keys of the grid."""
        return tuple(flatten(self.config.grid))

    @property
    def public_seeds(self) -> range:
        """The seeds of the federations for tuning."""
        tuning = self.config.tuning
        return range(0) if tuning is None else range(tuning.public_seed, tuning.public_seed + tuning.repeats)

    @property
    def oracle_seed(self) -> int:
        """The seed of the federation, or split of a table, for the oracle's search: a seed with no other use."""
        taken = {*self.public_seeds, *(cell.seed for cell in self.cells)}
        return next(seed for seed in count(FIRST_SEED) if seed not in taken)

    def candidates(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the settings that tuning tries for a cell; none for an oracle or a strategy without tuning."""
        tuning = self.config.tuning
        if tuning is None or cell.oracle:
            return []
        search = tuning.search.get(cell.strategy, tuning.search.get(cell.kind))
        return [] if search is None else list(combinations(flatten(search)))

    def toml(self) -> str:
        """Return the comparison as a file that reproduces it."""
        return tomli_w.dumps(dict(self.raw))


def load_comparison(path: str | Path, overrides: Sequence[str] = ()) -> Comparison:
    """Read a comparison file like `simulations.config.run_config.load_config`, and expand it.

    BadInput for a missing file, TOML syntax, or an error in any cell; one sentence for each problem.
    """
    path = Path(path)
    raw = read_toml(path, overrides)
    problems = raw.get("problems")
    tables = [one for one in problems if isinstance(one, dict)] if isinstance(problems, list) else []
    for sections in (raw, *tables):
        make_absolute(sections, path.parent)
    return parse_comparison(raw)


def parse_comparison(raw: Mapping[str, Any]) -> Comparison:
    """Make a comparison from plain values; BadInput with one sentence a line for each problem."""
    if isinstance(raw.get("strategy"), Mapping):
        raise BadInput("[strategy] is one strategy: a comparison has several, each written under [[strategy]]")
    try:
        config = ComparisonConfig.model_validate(raw, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(sentences(error, raw, ComparisonConfig))) from None
    for key, value in config.privacy.items():
        if isinstance(value, list):
            raise BadInput(f'privacy.{key} = {value}: put lists of values under [grid], "privacy.{key}" = {value}')
    comparison = Comparison(config, raw, tuple(expand(config)))
    _check_tuning(comparison)
    _check_cells(comparison)
    return comparison


def _check_tuning(comparison: Comparison) -> None:
    tuning = comparison.config.tuning
    if tuning is None:
        return
    for cell in comparison.cells:
        if cell.raw["data"].get("kind") != "synthetic":
            raise BadInput(
                f"[tuning] with data.kind = {cell.raw['data'].get('kind')!r} (problem {cell.problem!r}): a search is "
                'free only on public synthetic data; declare data.kind = "synthetic", or fix the settings by hand'
            )
    if shared := sorted(set(comparison.public_seeds) & {cell.seed for cell in comparison.cells}):
        raise BadInput(f"tuning.public_seed: seed {shared[0]} is also compared on; choose another, such as 1000")
    known = {name for entry in comparison.config.strategy for name in (entry.name, entry.kind)}
    for name, search in tuning.search.items():
        check_strategy(f"tuning.search.{name}", name, known)
        if "kind" in search or not search:
            raise BadInput(f"tuning.search.{name}: give the strategy's own keys, such as clip_norm = [0.3, 1.0]")
        for key, values in flatten(search).items():
            check_values(f"tuning.search.{name}.{key}", values)


def _check_cells(comparison: Comparison) -> None:
    problems: dict[str, None] = {}
    first = {cell.group: cell for cell in reversed(comparison.cells)}
    for cell in reversed(first.values()):
        if cell.raw["privacy"].get("noise", "seeded") != "seeded":
            raise BadInput("privacy.noise: a comparison simulates, and spends its budget in each run; remove the key")
        own = [one.label for one in comparison.config.problems if one.strategy.keys() & {cell.strategy, cell.kind}]
        place = f" for problem {cell.problem!r}" if cell.problem in own and not cell.oracle else ""
        for options in comparison.candidates(cell) or [{}]:
            try:
                cell.config(**options)
            except BadInput as error:
                problems |= dict.fromkeys(
                    f"strategy {cell.strategy!r}{place}: {line}"
                    if line.startswith(("strategy", "unknown key strategy"))
                    else line
                    for line in str(error).split("\n")
                )
    if problems:
        raise BadInput("\n".join(problems))
