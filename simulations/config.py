"""One TOML file a run: [problem] [data] [privacy] [strategy] [engine] [output], with `name` and `seed` on top.

A strategy's section has exactly the fields of its `Options`, so a new strategy needs nothing here.

>>> from simulations.config import parse_config
>>> config = parse_config({
...     "name": "example",
...     "problem": {"kind": "quadratic", "bound": 3.0},
...     "data": {"kind": "synthetic", "population": "gaussian", "dimension": 5, "users": 1000},
...     "privacy": {"epsilon": 1.0, "delta": 1e-6},
...     "strategy": {"kind": "dp_fed_sgd", "rounds": 5},
... })
>>> config.strategy.rounds, config.data.sample_shape.columns
(5, 5)
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tomli_w
from pydantic import Field, ValidationError, create_model

from simulations.config_data import AnyData, Section
from simulations.config_errors import sentences
from simulations.config_problem import AnyProblem
from strategies.registry import STRATEGIES
from userdp.errors import BadInput

REFERENCE = "non_private"
"""The strategy that others are compared with."""


class PrivacySection(Section):
    """The budget, and whom it protects."""

    epsilon: float = Field(gt=0, description="Budget; 1 is strong, 10 is weak.")
    delta: float = Field(
        ge=0, lt=1, description="Budget; well below 1/users. 0 is pure privacy, which few strategies promise."
    )
    unit: Literal["user", "sample"] = Field("user", description="One whole user, or one sample (much weaker).")
    allow_large_delta: bool = Field(
        False, description="Accept delta >= 1/users, which permits publishing a user's data."
    )
    noise: Literal["seeded", "secure"] = Field(
        "seeded",
        description="Where noise comes from. seeded: the seed, so that a run can be repeated; for simulations, never "
        "for real releases. secure: the operating system, safe in floating point; other noise in each run.",
    )


class EngineSection(Section):
    """Where nodes run. The same seed gives the same result on every engine."""

    kind: Literal["local", "ray"] = Field("local", description="In this process, or in Ray actors.")
    users_per_node: int | None = Field(None, ge=1, description="Users a node; users / 8, rounded up, if not given.")
    workers: int | None = Field(None, ge=1, description="Ray actors; one a CPU if not given. Unused by local.")
    address: str | None = Field(None, description="Of a running Ray cluster; a private one is started if not given.")
    timeout: float = Field(
        3600.0, gt=0, description="Seconds a round may take before unanswered users count as missing."
    )
    roster_timeout: float = Field(60.0, gt=0, description="Seconds to wait until every user has a node.")


class OutputSection(Section):
    """What is written where."""

    directory: str = Field(
        "runs", description="Folder of run directories; relative to where the command is run from, not to this file."
    )
    reference: bool | None = Field(
        None,
        description="Also train without privacy, on the same engine, to compare with; by default with seeded noise "
        "only, since what such training finds is not covered by any guarantee.",
    )
    evaluate_every: int = Field(1, ge=1, description="Rounds between evaluations; the last is always evaluated.")
    trackers: list[Literal["mlflow", "tensorboard"]] = Field(
        [], description="Where else to write while the run goes; needs userdp[trackers]."
    )


def _strategy_section(name: str) -> Any:
    options = STRATEGIES[name].Options
    kind: Any = (Literal[name], ...)
    return create_model(f"{options.__name__}Section", __base__=options, kind=kind)


STRATEGY_SECTIONS: dict[str, Any] = {name: _strategy_section(name) for name in STRATEGIES}
"""The section's model for each strategy."""

AnyStrategy: Any = Annotated[Union[tuple(STRATEGY_SECTIONS.values())], Field(discriminator="kind")]  # noqa: UP007


class RunConfig(Section):
    """Everything about a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the run directory.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of data, split, sampling and simulated noise (separate streams).")
    problem: AnyProblem
    data: AnyData
    privacy: PrivacySection
    strategy: AnyStrategy
    engine: EngineSection = EngineSection.model_validate({})
    output: OutputSection = OutputSection.model_validate({})

    @property
    def strategy_options(self) -> dict[str, Any]:
        """Keyword arguments of the strategy."""
        options: dict[str, Any] = self.strategy.model_dump(exclude={"kind"})
        return options

    @property
    def trains_reference(self) -> bool:
        """Whether training without privacy follows."""
        wanted = self.output.reference
        return self.strategy.kind != REFERENCE and (self.privacy.noise == "seeded" if wanted is None else wanted)

    @property
    def run_directory(self) -> Path:
        """Where the run is written."""
        return Path(self.output.directory) / f"{self.name}-{self.strategy.kind}-seed{self.seed}"

    def toml(self) -> str:
        """The configuration with every default written out; reads back as the same configuration."""
        values = self.model_dump(exclude_none=True)
        for section in values.values():
            if isinstance(section, dict) and "kind" in section:
                rest = dict(section)
                section.clear()
                section.update({"kind": rest.pop("kind")}, **rest)
        return tomli_w.dumps(values)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration file.

    Args:
        path: the TOML file. Data paths in it are relative to its folder.
        overrides: "privacy.epsilon=2": a dotted key and a TOML value; what is no TOML value is taken as a string. A
            whole section can be replaced: 'strategy={kind="dp_fed_sgd", rounds=5}'.

    Raises:
        BadInput: file missing, TOML syntax, unknown key, wrong type, value out of range; one sentence a problem.
    """
    path = Path(path)
    raw = read_toml(path, overrides)
    make_absolute(raw, path.parent)
    return parse_config(raw)


def read_toml(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a TOML file with overrides in place.

    Raises:
        BadInput: file missing or unreadable, TOML syntax, or an override that is no assignment.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"the configuration file {path} does not exist; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the configuration file {path} cannot be read ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"the configuration file {path} is not valid TOML: {error}") from None
    for override in overrides:
        _override(raw, override)
    return raw


def parse_config(raw: Mapping[str, Any]) -> RunConfig:
    """A configuration from plain values.

    Raises:
        BadInput: one sentence for each problem, one a line.
    """
    try:
        config = RunConfig.model_validate(raw, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(sentences(error, raw, RunConfig))) from None
    if config.privacy.noise == "secure" and config.output.reference:
        raise BadInput(
            "output.reference = true with privacy.noise = 'secure': training without privacy would give away the very "
            "users whom the noise protects; leave output.reference out, or compare in a simulation with seeded noise"
        )
    return config


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, last = parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise BadInput(f"--set {override!r}: write it as section.key=value, such as privacy.epsilon=2")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = raw
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise BadInput(f"--set {override!r}: {section} holds a value, not a section")
    table[last] = value


def make_absolute(raw: dict[str, Any], folder: Path) -> None:
    """Make the data paths in ``raw`` relative to ``folder``, in place."""
    data = raw.get("data")
    if isinstance(data, dict):
        for key in ("path", "cache"):
            if isinstance(data.get(key), str):
                data[key] = str((folder / Path(data[key]).expanduser()).resolve())
