"""The sections and keys of a comparison's file."""

from typing import Any, Literal

from pydantic import Field

from simulations.config.run_config import Preparing
from strategies.registry import STRATEGIES
from userdp.errors import BadInput
from userdp.settings import Section

LABEL = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class StrategyEntry(Section):
    """A [[strategy]] of a comparison: a strategy's section and its label."""

    model_config = Section.model_config | {"extra": "allow"}

    kind: str = Field(description="The strategy; its own keys stand beside, as in a run.")
    label: str | None = Field(None, pattern=LABEL, description="Name in tables and plots; the default is the kind.")
    preparation: Preparing | None = Field(None, description="As in a run, for this strategy.")

    @property
    def name(self) -> str:
        """The label, or the strategy's own name."""
        return self.label or (STRATEGIES[self.kind].about.name if STRATEGIES.is_place(self.kind) else self.kind)


class ProblemEntry(Section):
    """An entry of [[problems]]: sections that replace the base ones."""

    label: str = Field(pattern=LABEL, description="Name in tables and plots.")
    problem: dict[str, Any] = Field(description="As [problem] of a run.")
    data: dict[str, Any] = Field(description="As [data] of a run.")
    strategy: dict[str, dict[str, Any]] = Field({})
    """Label or kind of a strategy -> keys that replace its own for this problem, such as dp_fed_sgd = { rounds = 60 };
    keys given for a label take precedence over keys given for a kind."""


class TuningSection(Section):
    """A declared search for strategies' settings, on synthetic federations of public seeds only."""

    cost: Literal["free, tuned on public synthetic data"]
    """Privacy cost of the search: none, since it reads only synthetic data of another seed."""
    public_seed: int = Field(ge=0, lt=2**62)
    """Seed of the public federation; none of the comparison's seeds."""
    repeats: int = Field(1, ge=1, description="Public federations to average over: public_seed, public_seed + 1, ...")
    search: dict[str, dict[str, Any]]
    """Label or kind of a strategy -> its keys -> the values to try; all combinations are tried at every point of the
    grid, and the best by the main metric is used for all seeds."""


class ComparisonOutput(Section):
    """The output of a comparison."""

    directory: str = "comparisons"
    """Folder of comparisons' directories; relative to the working directory."""
    evaluate_every: int = Field(1, ge=1)
    """Rounds between evaluations; the last round is always evaluated, and is the one compared."""


class ComparisonConfig(Section):
    """A comparison's file. Every cell is calibrated to the same unit, epsilon and delta."""

    name: str = Field(pattern=LABEL, description="Names the comparison's directory.")
    seeds: int | list[int] = Field(5, description="How many (0, 1, ...), or a list.")
    problem: dict[str, Any] | None = Field(None, description="As in a run; not needed with [[problems]].")
    data: dict[str, Any] | None = Field(None, description="As in a run; not needed with [[problems]].")
    privacy: dict[str, Any] = Field(description="As in a run; leave out the keys that [grid] sets.")
    engine: dict[str, Any] = Field({})
    """The nodes, as in a run. local: cells run side by side. ray: one after the other, each in Ray actors; searches
    and training without privacy stay in this process."""
    output: ComparisonOutput = ComparisonOutput.model_validate({})
    strategy: list[StrategyEntry] = Field(min_length=1, description="The strategies, written [[strategy]].")
    grid: dict[str, Any] = Field({})
    """Dotted keys of problem, data or privacy -> lists of values; all combinations are run."""
    problems: list[ProblemEntry] = Field([], description="Several problems, written [[problems]].")
    tuning: TuningSection | None = Field(None, description="A search for strategies' settings, written [tuning].")

    def check_strategy(self, key: str, name: str) -> None:
        """Raise BadInput for a name that is neither a label nor a kind of a strategy."""
        known = {name for entry in self.strategy for name in (entry.name, entry.kind)}
        if name not in known:
            raise BadInput(f"{key}: no strategy has this label or kind; choose one of {', '.join(sorted(known))}")
