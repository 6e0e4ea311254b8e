"""One TOML file a comparison: the sections of a run, with several strategies, problems, seeds and a grid of settings.

>>> from simulations.comparison_config import parse_comparison
>>> comparison = parse_comparison({
...     "name": "example",
...     "seeds": 3,
...     "problem": {"kind": "quadratic", "bound": 3.0},
...     "data": {"kind": "synthetic", "population": "gaussian", "dimension": 5, "users": 1000},
...     "privacy": {"delta": 1e-6},
...     "strategy": [{"kind": "dp_fed_sgd"}, {"kind": "recentred_clipping", "label": "ours"}],
...     "grid": {"privacy.epsilon": [1.0, 4.0]},
... })
>>> len(comparison.cells), comparison.labels
(12, ('dp_fed_sgd', 'ours'))
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from simulations.config import RunConfig, make_absolute, parse_config, read_toml
from simulations.config_data import Section
from simulations.config_errors import sentences
from userdp.errors import BadInput

LABEL = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
GRID_SECTIONS = ("problem", "data", "privacy")
FREE = "free, tuned on public synthetic data"


class StrategyEntry(Section):
    """A [[strategy]] of a comparison: a strategy's section, and what to call it."""

    model_config = Section.model_config | {"extra": "allow"}

    kind: str = Field(description="The strategy; its own keys stand beside, as in a run.")
    label: str | None = Field(None, pattern=LABEL, description="Name in tables and plots; the kind if not given.")

    @property
    def name(self) -> str:
        """The label, or the kind."""
        return self.label or self.kind

    @property
    def section(self) -> dict[str, Any]:
        """The strategy's section of a run."""
        return {"kind": self.kind, **(self.model_extra or {})}


class ProblemEntry(Section):
    """One of [[problems]]: sections that replace the base ones."""

    label: str = Field(pattern=LABEL, description="Name in tables and plots.")
    problem: dict[str, Any] = Field(description="As [problem] of a run.")
    data: dict[str, Any] = Field(description="As [data] of a run.")


class TuningSection(Section):
    """A declared search for strategies' settings, on federations made of nothing but public seeds."""

    cost: Literal["free, tuned on public synthetic data"] = Field(
        description="What the search costs in privacy: nothing, since it sees synthetic data of another seed only."
    )
    public_seed: int = Field(ge=0, lt=2**62, description="Of the public federation; none of the comparison's seeds.")
    repeats: int = Field(1, ge=1, description="Public federations to average over: public_seed, public_seed + 1, ...")
    search: dict[str, dict[str, Any]] = Field(
        description="Label or kind of a strategy -> its keys -> the values to try; all combinations are tried at every "
        "point of the grid, and the best by the main metric is used for all seeds."
    )


class ComparisonOutput(Section):
    """What is written where."""

    directory: str = Field(
        "comparisons", description="Folder of comparisons' directories; relative to where the command is run from."
    )
    evaluate_every: int = Field(
        1, ge=1, description="Rounds between evaluations; the last is always evaluated, and is what is compared."
    )


class ComparisonConfig(Section):
    """Everything about a comparison. Every cell is calibrated to the same unit, epsilon and delta."""

    name: str = Field(pattern=LABEL, description="Names the comparison's directory.")
    seeds: int | list[int] = Field(5, description="How many (0, 1, ...), or which.")
    problem: dict[str, Any] | None = Field(None, description="As in a run; not needed with [[problems]].")
    data: dict[str, Any] | None = Field(None, description="As in a run; not needed with [[problems]].")
    privacy: dict[str, Any] = Field(description="As in a run; what [grid] sets may be left out.")
    engine: dict[str, Any] = Field({}, description="As in a run; always the local engine, cells run in parallel.")
    output: ComparisonOutput = ComparisonOutput.model_validate({})
    strategy: list[StrategyEntry] = Field(min_length=1, description="The strategies, written [[strategy]].")
    grid: dict[str, Any] = Field(
        {}, description="Dotted keys of problem, data or privacy -> lists of values; all combinations are run."
    )
    problems: list[ProblemEntry] = Field([], description="Several problems, written [[problems]].")
    tuning: TuningSection | None = Field(None, description="A search for strategies' settings, written [tuning].")


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        problem: label.
        strategy: label.
        seed: of data, sampling and simulated noise.
        grid: dotted key -> value.
        raw: sections of the run, without what tuning chooses.
    """

    problem: str
    strategy: str
    seed: int
    grid: Mapping[str, Any]
    raw: Mapping[str, Any]

    @property
    def group(self) -> str:
        """Equal for cells that differ in nothing but the seed: they share what tuning chooses."""
        return json.dumps([self.problem, self.strategy, dict(self.grid)])

    def config(self, *, seed: int | None = None, **options: Any) -> RunConfig:
        """The run, with strategy options replaced, and possibly for another seed."""
        strategy = {**self.raw["strategy"], **options}
        return parse_config({**self.raw, "seed": self.seed if seed is None else seed, "strategy": strategy})

    def reference(self) -> RunConfig:
        """Training without privacy on the same data."""
        return parse_config({**self.raw, "seed": self.seed, "strategy": {"kind": "non_private"}})


@dataclass(frozen=True)
class Comparison:
    """A comparison, checked and expanded.

    Attributes:
        config: as written.
        raw: the same as plain values, paths absolute.
        cells: every run, strategies side by side.
    """

    config: ComparisonConfig
    raw: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the strategies, in the file's order."""
        return tuple(entry.name for entry in self.config.strategy)

    @property
    def grid_keys(self) -> tuple[str, ...]:
        """Dotted keys that vary."""
        return tuple(flatten(self.config.grid))

    @property
    def directory(self) -> Path:
        """Where it is written."""
        return Path(self.config.output.directory) / self.config.name

    @property
    def public_seeds(self) -> range:
        """Of the federations that tuning searches on."""
        tuning = self.config.tuning
        return range(0) if tuning is None else range(tuning.public_seed, tuning.public_seed + tuning.repeats)

    def candidates(self, cell: Cell) -> list[dict[str, Any]]:
        """The settings that tuning tries for a cell; none when its strategy is not tuned."""
        tuning = self.config.tuning
        if tuning is None:
            return []
        kind = cell.raw["strategy"]["kind"]
        search = tuning.search.get(cell.strategy, tuning.search.get(kind))
        return [] if search is None else list(_combinations(flatten(search)))

    def toml(self) -> str:
        """The comparison as a file that can be run again."""
        return tomli_w.dumps(dict(self.raw))


def load_comparison(path: str | Path, overrides: Sequence[str] = ()) -> Comparison:
    """Read a comparison file and expand it.

    Args:
        path: the TOML file. Data paths in it are relative to its folder.
        overrides: as for `simulations.config.load_config`.

    Raises:
        BadInput: file missing, TOML syntax, or anything wrong in any cell; one sentence a problem.
    """
    path = Path(path)
    raw = read_toml(path, overrides)
    for sections in (raw, *_tables(raw.get("problems"))):
        make_absolute(sections, path.parent)
    return parse_comparison(raw)


def parse_comparison(raw: Mapping[str, Any]) -> Comparison:
    """A comparison from plain values.

    Raises:
        BadInput: one sentence for each problem, one a line.
    """
    if isinstance(raw.get("strategy"), Mapping):
        raise BadInput("[strategy] is one strategy: a comparison has several, each written under [[strategy]]")
    try:
        config = ComparisonConfig.model_validate(raw, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(sentences(error, raw, ComparisonConfig))) from None
    comparison = Comparison(config, raw, tuple(_cells(config)))
    _check_tuning(comparison)
    _check_cells(comparison)
    return comparison


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys: TOML nests what is written without quotes."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _tables(value: Any) -> list[Any]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _combinations(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*lists.values()):
        yield dict(zip(lists, values, strict=True))


def _cells(config: ComparisonConfig) -> Iterator[Cell]:
    problems, grid, seeds = _problems(config), _grid(config), _seeds(config)
    labels = [entry.name for entry in config.strategy]
    for names, key in ((labels, "strategy.label"), ([entry.label for entry in problems], "problems.label")):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"{key} = {twice[0]!r} stands for two entries: give each a label of its own")
    if config.engine.get("kind", "local") != "local":
        raise BadInput(
            f"engine.kind = {config.engine['kind']!r}: cells run side by side on the local engine, leave it out"
        )
    for entry, point, strategy, seed in product(problems, _combinations(grid), config.strategy, seeds):
        yield Cell(entry.label, strategy.name, seed, point, _sections(config, entry, strategy, point))


def _sections(
    config: ComparisonConfig, entry: ProblemEntry, strategy: StrategyEntry, point: Mapping[str, Any]
) -> dict[str, Any]:
    """The sections of a run at a point of the grid."""
    raw: dict[str, Any] = copy.deepcopy(
        {
            "name": config.name,
            "problem": entry.problem,
            "data": entry.data,
            "privacy": config.privacy,
            "strategy": strategy.section,
            "engine": {"kind": "local", **config.engine},
            # Trained once for all strategies, by a run of its own.
            "output": {"evaluate_every": config.output.evaluate_every, "reference": False},
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
    return [ProblemEntry(label=label, problem=config.problem, data=config.data)]


def _seeds(config: ComparisonConfig) -> list[int]:
    seeds = list(range(config.seeds)) if isinstance(config.seeds, int) else config.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise BadInput(f"seeds = {config.seeds}: give how many (at least 1), or a list of different numbers")
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
        _check_values(f"grid.{key}", values)
    return grid


def _check_values(key: str, values: Any) -> None:
    if not isinstance(values, list) or not values or any(values.count(value) > 1 for value in values):
        raise BadInput(f"{key} = {values!r}: must be a list of different values")


def _check_tuning(comparison: Comparison) -> None:
    """Refuse a search that is not what it declares itself to be."""
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
    known = {*comparison.labels, *(entry.kind for entry in comparison.config.strategy)}
    for name, search in tuning.search.items():
        if name not in known:
            raise BadInput(
                f"tuning.search.{name}: no strategy has this label or kind; there are {', '.join(sorted(known))}"
            )
        if "kind" in search or not search:
            raise BadInput(f"tuning.search.{name}: give the strategy's own keys, such as clip_norm = [0.3, 1.0]")
        for key, values in flatten(search).items():
            _check_values(f"tuning.search.{name}.{key}", values)


def _check_cells(comparison: Comparison) -> None:
    """Validate every configuration; seeds do not matter for it."""
    problems: dict[str, None] = {}
    groups: set[str] = set()
    for cell in comparison.cells:
        if cell.group in groups:
            continue
        groups.add(cell.group)
        if cell.raw["privacy"].get("noise", "seeded") != "seeded":
            raise BadInput(
                "privacy.noise: a comparison spends its budget once a run and is a simulation; leave noise out"
            )
        for options in comparison.candidates(cell) or [{}]:
            try:
                cell.config(**options)
            except BadInput as error:
                own = f"strategy {cell.strategy!r}: "
                problems |= dict.fromkeys(
                    f"{own if line.startswith(('strategy', 'unknown key strategy')) else ''}{line}"
                    for line in str(error).split("\n")
                )
    if problems:
        raise BadInput("\n".join(problems))
