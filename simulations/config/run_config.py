"""One TOML file per run: [problem] [data] [privacy] [strategy] [engine] [output], with `name` and `seed` on top.

A strategy's section has exactly the fields of its `Options`, so a new strategy needs nothing here.
"""

import dataclasses
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast

import tomli_w
from pydantic import Field, ValidationError, create_model

from simulations.config.errors import sentences
from simulations.config.places import make_absolute
from simulations.config.query_file import as_run
from strategies.core.options import PreparedOptions, StrategyOptions
from strategies.registry import STRATEGIES
from userdp.accounting.guarantee import Privacy
from userdp.data.registry import DATA_SOURCES
from userdp.data.synthetic.registry import POPULATIONS
from userdp.data.synthetic.source import SyntheticData, synthetic_settings
from userdp.errors import BadInput
from userdp.kinds import Kinds
from userdp.problems.base import Device
from userdp.problems.registry import PROBLEMS
from userdp.settings import Section, path_of, shown
from userdp.tracebacks import without_internals

REFERENCE = "non_private"  # the strategy that others are compared with
_FORM = "section.key=value, such as privacy.epsilon=2"
LEAST_HELD_OUT = 2  # fewest users who can evaluate models privately
DEFAULT = "auto"  # the strategy of a file that names none
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # the pattern of names that files and accounts may have
Preparing = Literal["learn", "none", "where_useful"]  # the choice of a preparation before a strategy's own rounds


Options = TypeVar("Options", bound=Section)


class PrivacySection(Section, Privacy):  # type: ignore[misc]  # pydantic freezes it
    """The budget and the protected unit."""

    evaluate: bool | None = None
    """Held-out users evaluate released models within a budget of their own: their metrics, with intervals, are covered
    by the same epsilon and delta, which then protect training and held-out users alike. By default with secure noise,
    as every deployment of people's data has, if the number of held-out users is public (data.all_users with
    test_fraction, or data.test_users) and the strategy allows it."""
    choose_best: bool = False
    """Stop once held-out users find models worse than the best by more than noise, and release the best; turns evaluate
    on."""
    account: str | None = Field(None, pattern=NAME)
    """Account that the run is entered into before it asks anybody: refused if it exceeds what userdp account show NAME
    has left. By default a deployment has the account of its data, and other runs have none."""
    accounts: str | None = None
    """Address of the accounts' database: sqlite:///FILE, or postgresql://USER@HOST/DATABASE for several machines; by
    default the environment variable USERDP_ACCOUNTS, or ~/.userdp/accounts.sqlite. Runs write it into their files, so
    leave passwords to ~/.pgpass."""

    @property
    def budget(self) -> Privacy:
        """The budget alone; raises `BadInput` for settings that contradict each other."""
        return Privacy(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Privacy)})


class EngineSection(Section):
    """The place of the nodes. One seed gives one result on every engine; on a GPU up to rounding."""

    kind: Literal["local", "ray"] = Field("local", description="In this process, or in Ray actors.")
    users_per_node: int | None = Field(None, ge=1)
    """Users a node. By default as many nodes as are worth their messages: one for each 32 MiB of samples, 8 at most; 8
    for torch modules, and if sums are masked."""
    workers: int | None = Field(None, ge=1, description="Ray actors; one a CPU by default. Unused by local.")
    device: Device = "cpu"
    """Device of torch modules: cuda is an NVIDIA GPU, auto takes one if the computing process finds one. The processor
    by default, so that a seed gives the same numbers on every machine."""
    gpus_per_actor: float = Field(0.0, ge=0, le=1)
    """Share of a GPU that Ray reserves for each actor. With 0 all share the first one they see. Unused by local."""
    address: str | None = Field(None, description="Address of a running Ray cluster; a private one by default.")
    timeout: float = Field(3600.0, gt=0, description="Seconds of a round before unanswered users count as missing.")
    roster_timeout: float = Field(60.0, gt=0, description="Seconds to wait until every user has a node.")
    nodes: int = Field(0, ge=0, description="Silos on Flower: with fewer, also where people come and go, a run ends.")


class OutputSection(Section):
    """The files of a run."""

    directory: str = "runs"
    """Folder of run directories: NAME-STRATEGY-seedN (NAME-STRATEGY-warm-seedN with problem.initial_model), and after
    it NAME-STRATEGY-seedN-2, -3, ..., so that no run writes over another; relative to the folder where the command
    runs, not to this file."""
    reference: bool | None = None
    """Train also without privacy, on the same engine, to compare with; by default with seeded noise only, because no
    guarantee covers the result of such training."""
    compare_with_initial: bool = False
    """Spend a twentieth of epsilon on a last round in which users vote whether the model serves them better than the
    initial one; release the initial one if most vote no. auto always does something like it."""
    anyway: bool = False
    """Run even if the plan predicts a model far worse than the initial one, which is refused otherwise: the budget
    would be spent for nothing."""
    checkpoint: bool = True
    """Keep on disk, until the run has ended, the state from which userdp run --resume DIRECTORY resumes a killed
    process: with secure noise after every round, else in at most a twentieth of the time. Cells of a comparison keep
    nothing: a restarted comparison runs the missing cells."""
    evaluate_every: int = Field(1, ge=1, description="Rounds between evaluations; the last is always evaluated.")
    private_figures: bool | None = None
    """Show exact figures about the people who train, which no guarantee covers, in the report, on the console and by
    --json; by default with seeded noise only. Files of the run directory hold them in any case, under names that end in
    _private; trackers never get them."""
    trackers: list[Literal["mlflow", "tensorboard"]] = Field([], description="Also write here; needs userdp[trackers].")


def strategy_section(kind: str) -> type[StrategyOptions]:
    """Return the section's model for the strategy of that name: its options, and ``kind``."""
    return _with_kind(kind, STRATEGIES[kind])


def _section(kinds: Kinds[Any], kind: str) -> type[Section]:
    """Return the section's model for a loss or a source of data, whose kind is its name or its place."""
    model: type[Section] = kinds[kind]
    named = not kinds.is_place(kind) and model.model_fields["kind"].annotation is not str
    return model if named else _with_kind(kind, model)


def _sections(kinds: Kinds[Any], kind: str | None) -> list[type[Section]]:
    """Return the section's model for this kind, or for each kind if it is None."""
    return [_section(kinds, one) for one in ([kind] if kind else kinds.loaded()[0])]


@cache
def _with_kind(kind: str, options: type[Options]) -> type[Options]:
    literal: Any = Literal[kind]
    made: Any = create_model(f"{options.__name__}Section", __base__=options, kind=(literal, ...))
    return cast("type[Options]", made)


class RunConfig(Section):
    """The configuration of a run. `_model_of` makes the model with the sections of a file's kinds."""

    name: str = Field(pattern=NAME, description="Names the run directory.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of data, split, sampling and simulated noise (separate streams).")
    problem: Any  # ProblemSettings
    data: Any  # DataSettings
    privacy: PrivacySection
    strategy: Any  # StrategyOptions, with the kind
    preparation: Preparing = "where_useful"
    """Choice whether private rounds, for a part of the budget, first estimate a preconditioner and the length of
    users' gradients, so that strategies with a fixed clip and step size need neither. where_useful: if the strategy
    can, the file sets neither, and the plan is not hopeless."""
    engine: EngineSection = EngineSection.model_validate({})
    output: OutputSection = OutputSection.model_validate({})

    @property
    def strategy_options(self) -> dict[str, Any]:
        """The keyword arguments of the strategy."""
        return dict(self.strategy.model_dump(exclude={"kind"}))

    @property
    def trains_reference(self) -> bool:
        """True if the run also trains without privacy."""
        wanted = self.output.reference
        return self.strategy.kind != REFERENCE and (self.privacy.noise == "seeded" if wanted is None else wanted)

    @property
    def shows_private(self) -> bool:
        """True if reports, console and ``--json`` show private figures."""
        wanted = self.output.private_figures
        return self.privacy.noise == "seeded" if wanted is None else wanted

    @property
    def run_directory(self) -> Path:
        """The folder of the first run of that name; later runs get a number, with any settings."""
        warm = "" if self.problem.initial_model is None else "-warm"
        return Path(self.output.directory) / f"{self.name}-{self.strategy_name}{warm}-seed{self.seed}"

    @property
    def strategy_name(self) -> str:
        """The name of the strategy: the kind, or the name that a class in a file gives itself."""
        return STRATEGIES[self.strategy.kind].about.name

    def toml(self) -> str:
        """Return the configuration with every default; it reads back as the same configuration."""
        values = self.model_dump(exclude_none=True)
        for name, section in values.items():
            if isinstance(section, dict) and "kind" in section:
                values[name] = {"kind": section["kind"], **section}
        return tomli_w.dumps(values)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by content: the classes of configurations are made for the kinds that a file names."""
        return parse_config, (tomllib.loads(self.toml()),)


@without_internals
def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration file.

    Args:
        path: the TOML file. Data paths in it are relative to its folder.
        overrides: "privacy.epsilon=2": a dotted key and a TOML value; any other text is a string. A whole section can
            be replaced: 'strategy={kind="dp_fed_sgd", rounds=5}'.

    Raises:
        BadInput: file missing, TOML syntax, unknown key, wrong type, value out of range; one sentence a problem.
    """
    return parse_config(read_absolute(path_of("path", path), overrides))


def read_absolute(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read as `read_toml`, and make the file's paths, which are relative to its folder, absolute."""
    make_absolute(raw := read_toml(path, overrides), path.parent)
    return raw


def read_toml(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the values of a TOML file, and apply overrides; BadInput if one of them cannot be read."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError):
        raise BadInput(f"the configuration file {path} does not exist, or is a folder; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the configuration file {path} cannot be read as UTF-8 ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"the configuration file {path} is not valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise BadInput(f"the configuration file {path} is nested too deeply, or has too long a number") from None
    return overridden(raw, overrides)


def parse_config(raw: Mapping[str, Any]) -> RunConfig:
    """Check plain values and return their configuration; BadInput with one sentence a line for each problem."""
    if "ask" in raw:
        raw = as_run(raw)
    if "strategy" not in raw:
        raw = {**raw, "strategy": {"kind": DEFAULT}}
    raw = _with_count_bound(_with_tokenizer(raw))
    kinds = [_chosen(raw.get(name), "kind", of) for name, of in (("problem", PROBLEMS), ("data", DATA_SOURCES))]
    population = _chosen(raw.get("data"), "population", POPULATIONS)
    strategy = _chosen(raw["strategy"], "kind", STRATEGIES)
    problem, data = kinds
    populations = () if data not in (None, "synthetic") else [population] if population else POPULATIONS.loaded()[0]
    # The cache needs classes: one in a file changes with the file.
    model = _model_of(
        tuple(_sections(PROBLEMS, problem)),
        tuple(map(synthetic_settings, populations)),
        tuple(one for one in _sections(DATA_SOURCES, data) if one is not SyntheticData),
        tuple(map(strategy_section, [strategy] if strategy else STRATEGIES.loaded()[0])),
    )
    try:
        config = model.model_validate(raw, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(sentences(error, raw, model))) from None
    if config.privacy.noise == "secure" and config.output.reference:
        raise BadInput(
            "output.reference = true with privacy.noise = 'secure': training without privacy would expose the users "
            "whom the noise protects; leave output.reference out, or compare in a simulation with seeded noise"
        )
    if config.engine.gpus_per_actor and config.engine.device == "cpu":
        raise BadInput(
            f"engine.gpus_per_actor = {config.engine.gpus_per_actor:g} with engine.device = 'cpu': no actor would use "
            "its GPU; set engine.device = 'cuda' or 'auto', or leave engine.gpus_per_actor out"
        )
    _check_tokens(config)
    return _with_evaluation(_with_preparation(config))


def _with_tokenizer(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read a column of text by the tokenizer of problem.model, unless the file says how to read it."""
    problem, data = raw.get("problem"), raw.get("data")
    model = problem.get("model") if isinstance(problem, Mapping) else None
    form = data.get("sequence") if isinstance(data, Mapping) else None
    if model is None or not isinstance(form, Mapping) or form.keys() & {"predict", "alphabet", "tokenizer"}:
        return raw
    return {**raw, "data": {**data, "sequence": {**form, "tokenizer": model}}}  # type: ignore[dict-item]


def _with_count_bound(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take the bound of a loss of counts from data.target_range, which would scale them."""
    problem, data, kind = raw.get("problem"), raw.get("data"), _chosen(raw.get("problem"), "kind", PROBLEMS)
    counts = kind is not None and "count_bound" in PROBLEMS[kind].model_fields
    if not (counts and isinstance(problem, Mapping) and isinstance(data, Mapping) and "target_range" in data):
        return raw
    from userdp.data.tables.declared import checked_range  # noqa: PLC0415 -- loads PyArrow, which tables alone need

    low, high = checked_range("data.target_range", data["target_range"])
    if low != 0.0:
        raise BadInput(f"data.target_range = [{low:g}, {high:g}]: counts begin at 0; declare [0, {high:g}]")
    if problem.get("count_bound", high) != high:
        given = f"problem.count_bound = {shown(problem['count_bound'])}"
        raise BadInput(f"data.target_range = [0, {high:g}] and {given} differ: leave one of them out")
    rest = {key: value for key, value in data.items() if key != "target_range"}
    return {**raw, "data": rest, "problem": {**problem, "count_bound": data["target_range"][1]}}


def _check_tokens(config: RunConfig) -> None:
    """Refuse characters as the tokens of a language model, of which they are other ones."""
    form = config.data.declarations.get("sequence") if getattr(config.problem, "model", None) else None
    if form is not None and form.alphabet is not None:
        raise BadInput(
            "problem.model reads the tokens of its tokenizer, and data.sequence.alphabet makes codes of characters: "
            f"declare data.sequence = {{ window = {form.window}, text = {form.text!r} }}"
        )


def _with_evaluation(config: RunConfig) -> RunConfig:
    """Decide ``privacy.evaluate`` where the file leaves it open: on for real people who are held out publicly."""
    privacy, data, about = config.privacy, config.data, STRATEGIES[config.strategy.kind].about
    if privacy.choose_best and privacy.evaluate is False:
        raise BadInput(
            "privacy.choose_best = true with privacy.evaluate = false: it is held-out users who choose; set "
            "privacy.evaluate = true, or leave choose_best out"
        )
    if privacy.evaluate is not None:
        return config
    people = privacy.noise == "secure" and (data.declared_held_out or 0) >= LEAST_HELD_OUT
    possible = privacy.delta > 0 and privacy.trust == "server" and about.server_trusted
    wanted = privacy.choose_best or (people and possible)
    return config.model_copy(update={"privacy": privacy.model_copy(update={"evaluate": wanted})})


def _with_preparation(config: RunConfig) -> RunConfig:
    """Drop the preparation if the file sets what it would estimate; refuse a file that asks for both."""
    options = config.strategy
    if not isinstance(options, PreparedOptions):
        return config
    given = [
        name
        for name in options.found_by_preparation
        if name in options.model_fields_set and getattr(options, name) is not None
    ]
    # A file written by `RunConfig.toml` holds defaults too.
    if "preparation" in config.model_fields_set:
        given = [name for name in given if getattr(options, name) != type(options).model_fields[name].default]
    if given and config.preparation == "learn":
        raise BadInput(f"preparation = 'learn' finds strategy.{given[0]} by itself: leave one of the two out")
    return config.model_copy(update={"preparation": "none"}) if given else config


def _chosen(section: Any, key: str, kinds: Container[str]) -> str | None:
    found = section.get(key) if isinstance(section, Mapping) else None
    return found if isinstance(found, str) and found in kinds else None


@cache
def _model_of(
    problems: tuple[type[Section], ...],
    populations: tuple[type[Section], ...],
    sources: tuple[type[Section], ...],
    strategies: tuple[type[Section], ...],
) -> type[RunConfig]:
    """Return the model of files with sections of these kinds."""
    made: Any = create_model(
        "RunConfig",
        __base__=RunConfig,
        problem=(_one_of("kind", problems), ...),
        data=(_one_of("kind", [*([_one_of("population", populations)] if populations else []), *sources]), ...),
        strategy=(_one_of("kind", strategies), ...),
    )
    return cast("type[RunConfig]", made)


def overridden(
    raw: dict[str, Any], overrides: Sequence[str], option: str = "--set", form: str = _FORM
) -> dict[str, Any]:
    """Set keys of the values of a file, each written in this ``form``; BadInput, which names the option, otherwise."""
    for override in overrides:
        _override(raw, override, option, form)
    return raw


def _override(raw: dict[str, Any], override: str, option: str, form: str) -> None:
    key, equals, text = override.partition("=")
    *sections, last = parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise BadInput(f"{option} {override!r}: write it as {form}")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = raw
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise BadInput(f"{option} {override!r}: {section} holds a value, not a section")
    table[last] = value


def _one_of(key: str, models: Iterable[Any]) -> Any:
    first, *rest = models
    return Annotated[Union[(first, *rest)], Field(discriminator=key)] if rest else first


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into dotted keys, as TOML nests keys without quotes."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
