"""The [data] section: where users come from, and what is declared about them before any data are read."""

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Union, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from userdp.data import POPULATIONS, PUBLIC_DATASETS, Population, PublicDataset, public_columns
from userdp.data.columns import Columns, did_you_mean
from userdp.data.heavy_tails import HeavyTailedRegression
from userdp.data.regressions import Categorical, Regression
from userdp.data.sparse_regressions import SparseRegression
from userdp.errors import BadInput


class Section(BaseModel):
    """A section of a configuration file: unknown keys are refused, numbers must be finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Shape:
    """What the declarations say about a sample; no data are read for it.

    Attributes:
        columns: feature columns.
        has_target: whether samples carry a target.
        bound: of the absolute value of every feature; None when nothing is declared.
        feature_norm: bound on the l1 norm of a sample's features; None when nothing is declared.
        target_range: (low, high) of the target; None when nothing is declared.
        levels: of a column of codes; None for other features.
        sparsity: most entries of a sample that are not zero, where samples are sparse rows; None for other features.
        feature_length: bound on the l2 norm of a sparse sample; None when nothing is declared.
    """

    columns: int
    has_target: bool
    bound: float | None = None
    feature_norm: float | None = None
    target_range: tuple[float, float] | None = None
    levels: int | None = None
    sparsity: int | None = None
    feature_length: float | None = None


class SyntheticData(Section):
    """Users drawn from a population, made on demand from the seed and never stored."""

    population_type: ClassVar[type[Population]]

    kind: Literal["synthetic"]
    population: str
    users: int = Field(ge=1, description="n, training users (public).")
    test_users: int = Field(1000, ge=0, description="Further users of the same population, held out for metrics.")
    samples_per_user: int = Field(
        10, ge=1, description="Samples of each user, or the fewest when samples_tail is given."
    )
    samples_tail: float | None = Field(
        None, gt=0, description="Pareto index of the number of samples a user; all hold the same number if not given."
    )
    samples_max: int | None = Field(
        None, ge=1, description="Most samples a user may hold; 100 samples_per_user if not given."
    )
    samples: int | None = Field(
        None, ge=1, description="Public number of samples of all training users; only needed with samples_tail."
    )

    @cached_property
    def recipe(self) -> Population:
        """The population that users are drawn from.

        Raises:
            BadInput: a setting out of range.
        """
        names = {field.name for field in fields(self.population_type)}
        try:
            return self.population_type(**{name: getattr(self, name) for name in names})
        except BadInput as error:
            raise BadInput(f"[data] {error}") from None

    @property
    def declared_users(self) -> int:
        """N, the public number of training users."""
        return self.users

    @property
    def declared_samples(self) -> int | None:
        """The public number of samples of all training users."""
        if self.samples is None and self.samples_tail is None:
            return self.users * self.samples_per_user
        return self.samples

    @property
    def sample_limits(self) -> tuple[int, int | None]:
        """(fewest, most) samples of a user."""
        if self.samples_tail is None:
            return self.samples_per_user, self.samples_per_user
        return self.samples_per_user, self.samples_max or 100 * self.samples_per_user

    @cached_property
    def sample_shape(self) -> Shape:
        """What is declared about a sample."""
        population = self.recipe
        if isinstance(population, Categorical):
            return Shape(1, True, target_range=(0.0, 1.0), levels=population.levels)
        if isinstance(population, SparseRegression):
            target_range = (0.0, 1.0) if population.link == "logistic" else None
            return Shape(
                population.columns,
                True,
                target_range=target_range,
                sparsity=population.nonzeros,
                feature_length=population.feature_norm,
            )
        if isinstance(population, HeavyTailedRegression):
            target_range = (-math.inf, math.inf) if population.link == "linear" else (0.0, 1.0)
            return Shape(population.columns, True, feature_norm=math.inf, target_range=target_range)
        if isinstance(population, Regression):
            return Shape(population.columns, True, feature_norm=population.feature_norm)
        bound = 1.0 if population.name == "bernoulli" else None
        return Shape(population.columns, False, bound=bound)


class TableColumns(Section):
    """Declarations that tables and public data sets share; ranges and levels must be public knowledge."""

    features: list[str] | None = Field(None, description="Numeric feature columns; each needs a range.")
    ranges: dict[str, list[float]] | None = Field(
        None, description="Column = [low, high]: cells are clipped into it and scaled."
    )
    categorical: dict[str, list[Any]] | None = Field(
        None, description="Column = [levels]: one feature of 0 and 1 for each level; other cells become all zeros."
    )
    scale: Literal["symmetric", "unit"] | None = Field(
        None, description="Scaled ranges are [-1, 1] (symmetric, the default) or [0, 1] (unit)."
    )
    target: str | None = Field(None, description="Column to predict.")
    target_range: list[float] | None = Field(
        None, description="[low, high] of the target, which is clipped into it and scaled to [-1, 1]."
    )
    positive: Any = Field(
        None, description="The target cell that means 1; all others mean 0, and a missing one sets its sample aside."
    )
    codes: str | list[str] | None = Field(
        None,
        description="Instead of features: one categorical column, for one-hot problems; or a list of them, whose cells "
        "are hashed, for sparse problems.",
    )
    levels: int | list[Any] | None = Field(
        None, description="Of one column of codes: how many (cells 0..levels-1), or the list."
    )
    buckets: int | None = Field(
        None, ge=1, description="Of a list of codes: how many features their cells are hashed to."
    )
    users: int | None = Field(
        None, ge=1, description="n, public number of training users; the first n by a seeded order take part."
    )
    samples: int | None = Field(None, ge=1, description="Public number of samples of all training users.")
    min_samples: int = Field(1, ge=1, description="Users with fewer samples are left out (who is, must be public).")
    max_samples: int | None = Field(None, ge=1, description="Most samples of a user; a seeded choice of them is kept.")
    test_fraction: float = Field(0.2, ge=0, lt=1, description="Share of users held out for metrics, by user.")

    @property
    def declared_samples(self) -> int | None:
        """The public number of samples of all training users."""
        return self.samples

    @property
    def sample_limits(self) -> tuple[int, int | None]:
        """(fewest, most) samples of a user."""
        return self.min_samples, self.max_samples

    def held_out(self, users: int) -> int:
        """How many of ``users`` are held out."""
        return max(1, round(self.test_fraction * users)) if self.test_fraction else 0

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """Column arguments of `userdp.data.read_table`."""
        return {
            name: value
            for name in Columns.__dataclass_fields__
            if (value := getattr(self, name, None)) not in (None, "", [], {})
        }

    @cached_property
    def sample_shape(self) -> Shape:
        """What is declared about a sample.

        Raises:
            BadInput: declarations that contradict each other or miss something.
        """
        try:
            columns = Columns(**self.declarations)
        except BadInput as error:
            raise BadInput(f"[data] {error}") from None
        has_target, target_range = columns.target is not None, None
        if columns.positive is not None:
            target_range = (0.0, 1.0)
        elif columns.target_range is not None:
            target_range = (-1.0, 1.0)
        if columns.buckets is not None:
            sparsity = min(len(columns.hashed), columns.buckets)
            return Shape(columns.buckets, has_target, 1.0, None, target_range, sparsity=sparsity, feature_length=1.0)
        if columns.codes is not None:
            levels = columns.levels if isinstance(columns.levels, int) else len(columns.levels or ())
            return Shape(1, has_target, target_range=target_range, levels=levels)
        # A scaled cell is at most 1 in absolute value, and of a row's levels at most one is 1.
        norm = float(len(columns.features) + len(columns.categorical))
        return Shape(len(columns.feature_names), has_target, 1.0, norm, target_range)


class TableData(TableColumns):
    """A CSV or Parquet file with a column that says whose sample a row is."""

    kind: Literal["table"]
    path: str = Field(description="A .csv or .parquet file; relative to the configuration file.")
    user: str = Field(description="Column that says whose sample it is.")

    @property
    def declared_users(self) -> int | None:
        """N, the public number of training users; None when it is to be counted."""
        return self.users


class PublicData(TableColumns):
    """One of the public data sets, with its own columns unless others are declared."""

    kind: Literal["public"]
    name: str = Field(description=f"One of {', '.join(PUBLIC_DATASETS)}.")
    cache: str | None = Field(
        None, description="Folder of the files; the environment variable USERDP_DATA, or ~/.cache/userdp, if not given."
    )

    @property
    def declared_users(self) -> int | None:
        """N, the public number of training users; the registry knows it unless small users are left out."""
        if self.users is None and self.min_samples == 1:
            total = self._entry.users
            return total - self.held_out(total)
        return self.users

    @property
    def _entry(self) -> PublicDataset:
        if self.name not in PUBLIC_DATASETS:
            hint = did_you_mean(self.name, PUBLIC_DATASETS)
            raise BadInput(f"data.name = {self.name!r} is unknown{hint}; there are {', '.join(PUBLIC_DATASETS)}")
        return PUBLIC_DATASETS[self.name]

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """The data set's own columns; naming features, categorical or codes, or a target, replaces them."""
        return public_columns(self._entry.name, super().declarations)


def _descriptions(kind: type[Population]) -> dict[str, str]:
    """Field name -> description, from the "Attributes:" of a population's docstring and those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, attributes = (inspect.getdoc(base) or "").partition("Attributes:\n")
        for name, text in re.findall(r"^    (\w+): ((?:.|\n {5,})*)", attributes, flags=re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def _population_section(kind: type[Population]) -> type[SyntheticData]:
    hints, told = get_type_hints(kind), _descriptions(kind)
    settings: dict[str, Any] = {"population": (Literal[kind.name], ...)}
    for field in fields(kind):
        annotation = list[float] | float | None if field.name in ("mean", "parameter") else hints[field.name]
        default = ... if field.default is MISSING else field.default
        settings[field.name] = (annotation, Field(default, description=told.get(field.name, field.name)))
    made = create_model(f"Synthetic{kind.__name__}", __base__=SyntheticData, __doc__=kind.summary, **settings)
    made.population_type = kind
    return made


SYNTHETIC: dict[str, type[SyntheticData]] = {name: _population_section(kind) for name, kind in POPULATIONS.items()}
"""The section's model for each synthetic population."""

AnySynthetic: Any = Annotated[Union[tuple(SYNTHETIC.values())], Field(discriminator="population")]  # noqa: UP007
AnyData: Any = Annotated[AnySynthetic | TableData | PublicData, Field(discriminator="kind")]
