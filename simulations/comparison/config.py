"""A comparison's TOML file: the sections of a run, with several strategies, problems, seeds and a grid of settings.

It has one cell, a run, for each problem, point of the grid, strategy and seed.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from simulations.comparison.sections import ComparisonConfig, ProblemEntry, StrategyEntry
from simulations.config.errors import sentences
from simulations.config.places import make_absolute
from simulations.config.run_config import RunConfig, flatten, parse_config, read_toml
from userdp.errors import BadInput

GRID_SECTIONS = ("problem", "data", "privacy")


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: labels of problem and strategy, seed, point of the grid, and sections of the run.

    ``raw`` lacks the settings that tuning chooses.
    """

    problem: str
    strategy: str
    seed: int
    grid: Mapping[str, Any]
    raw: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of the strategy."""
        return str(self.raw["strategy"]["kind"])

    @property
    def group(self) -> str:
        """A key shared by cells that differ only in the seed; tuning chooses one setting for them."""
        return json.dumps([self.problem, self.strategy, dict(self.grid)])

    def config(self, *, seed: int | None = None, **options: Any) -> RunConfig:
        """Return the run's configuration, with options of the strategy and possibly the seed replaced."""
        strategy = {**self.raw["strategy"], **options}
        return parse_config({**self.raw, "seed": self.seed if seed is None else seed, "strategy": strategy})

    def reference(self) -> RunConfig:
        """Return the configuration of training without privacy on the same data."""
        # Strategies share it, also if they differ in their preparation.
        raw = {key: section for key, section in self.raw.items() if key != "preparation"}
        return parse_config({**raw, "seed": self.seed, "strategy": {"kind": "non_private"}})


def expand(config: ComparisonConfig) -> Iterator[Cell]:
    """Yield every cell, strategies side by side; BadInput for an unusable name, grid, seed or setting."""
    problems, grid, seeds = _problems(config), _grid(config), _seeds(config)
    labels = [entry.name for entry in config.strategy]
    for names, key in ((labels, "strategy.label"), ([entry.label for entry in problems], "problems.label")):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"{key} = {twice[0]!r} stands for two entries: give each entry a label of its own")
    _check_settings(config)
    for entry, point, strategy, seed in product(problems, combinations(grid), config.strategy, seeds):
        sections = _sections(config, entry, strategy, point)
        for name in (strategy.kind, strategy.name):
            sections["strategy"] |= copy.deepcopy(entry.strategy.get(name, {}))
        yield Cell(entry.label, strategy.name, seed, point, sections)


def _check_settings(config: ComparisonConfig) -> None:
    for entry in config.problems:
        for name, settings in entry.strategy.items():
            config.check_strategy(f"problems.strategy.{name} (problem {entry.label!r})", name)
            if not settings or settings.keys() & {"kind", "label", "preparation"}:
                raise BadInput(
                    f"problems.strategy.{name} = {settings!r} (problem {entry.label!r}): give the strategy's own keys, "
                    "such as rounds = 60; another strategy or preparation needs a [[strategy]] of its own"
                )


def _sections(
    config: ComparisonConfig, entry: ProblemEntry, strategy: StrategyEntry, point: Mapping[str, Any]
) -> dict[str, Any]:
    raw: dict[str, Any] = copy.deepcopy(
        {
            "name": config.name,
            "problem": entry.problem,
            "data": entry.data,
            "privacy": config.privacy,
            "strategy": {"kind": strategy.kind, **(strategy.model_extra or {})},
            **({} if strategy.preparation is None else {"preparation": strategy.preparation}),
            "engine": {"kind": "local", **config.engine},
            # One run of its own trains the reference for all strategies. A comparison also runs strategies that the
            # plan expects to be no better than the initial model.
            "output": {"evaluate_every": config.output.evaluate_every, "reference": False, "anyway": True},
        }
    )
    for key, value in point.items():
        section, _, name = key.partition(".")
        raw[section][name] = value
    return raw


def _problems(config: ComparisonConfig) -> list[ProblemEntry]:
    if config.problems:
        return config.problems
    if config.problem is None or config.data is None:
        raise BadInput("the comparison has no problem: give [problem] and [data], or [[problems]] with both in each")
    label = str(config.problem.get("kind", "problem"))
    return [ProblemEntry(label=label, problem=config.problem, data=config.data, strategy={})]


def _seeds(config: ComparisonConfig) -> list[int]:
    seeds = list(range(config.seeds)) if isinstance(config.seeds, int) else config.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise BadInput(f"seeds = {config.seeds}: give a number of seeds (at least 1), or a list of different seeds")
    return seeds


def _grid(config: ComparisonConfig) -> dict[str, list[Any]]:
    grid = flatten(config.grid)
    for key, values in grid.items():
        section, _, name = key.partition(".")
        if section not in GRID_SECTIONS or not name:
            raise BadInput(
                f"grid key {key!r}: the grid varies keys of {', '.join(GRID_SECTIONS)}, such as 'privacy.epsilon'; "
                "give a strategy several settings as several [[strategy]] entries with labels, or under [tuning]"
            )
        if key == "privacy.unit":
            raise BadInput("grid key 'privacy.unit': strategies are compared at one unit, set it under [privacy]")
        check_values(f"grid.{key}", values)
    return grid


def combinations(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield key -> one of its values, in every combination."""
    for values in product(*lists.values()):
        yield dict(zip(lists, values, strict=True))


def check_values(key: str, values: Any) -> None:
    """Raise BadInput for anything but a list of different values."""
    if not isinstance(values, list) or not values or any(values.count(value) > 1 for value in values):
        raise BadInput(f"{key} = {values!r}: must be a list of different values")


@dataclass(frozen=True)
class Comparison:
    """A comparison: the file's content, the same as plain values with absolute paths, and its cells."""

    config: ComparisonConfig
    raw: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the strategies, in the file's order."""
        return tuple(entry.name for entry in self.config.strategy)

    @property
    def grid_keys(self) -> tuple[str, ...]:
        """The dotted keys of the grid."""
        return tuple(flatten(self.config.grid))

    @property
    def public_seeds(self) -> range:
        """The seeds of the federations for tuning."""
        tuning = self.config.tuning
        return range(0) if tuning is None else range(tuning.public_seed, tuning.public_seed + tuning.repeats)

    def candidates(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the settings that tuning tries for a cell; none for a strategy without tuning."""
        tuning = self.config.tuning
        if tuning is None:
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
    for name, search in tuning.search.items():
        comparison.config.check_strategy(f"tuning.search.{name}", name)
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
        if cell.raw["privacy"].get("account") is not None:
            raise BadInput(
                "privacy.account: a comparison also trains without privacy, which no account can price; remove the "
                "key, and enter the run that you release"
            )
        own = [one.label for one in comparison.config.problems if one.strategy.keys() & {cell.strategy, cell.kind}]
        place = f" for problem {cell.problem!r}" if cell.problem in own else ""
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
