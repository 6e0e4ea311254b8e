"""Synthetic users as a source of data: the settings of each population are the fields of its class."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field, create_model

from userdp.data.shape import Shape
from userdp.data.source import Datasets, DataSettings
from userdp.data.synthetic.federation import SyntheticFederation
from userdp.data.synthetic.populations import Population
from userdp.data.synthetic.registry import POPULATIONS
from userdp.errors import BadInput


class SyntheticData(DataSettings):
    """Users drawn from a population, made on demand from the seed and never stored."""

    simulated: ClassVar[bool] = True
    population_type: ClassVar[type[Population]]

    kind: Literal["synthetic"]
    population: str
    users: int = Field(ge=1)
    """n, training users (public)."""
    test_users: int = Field(1000, ge=0)
    """Further users of the same population, held out for metrics."""
    samples_per_user: int = Field(10, ge=1)
    """Samples of each user, or the fewest when samples_tail is given."""
    samples_tail: float | None = Field(None, gt=0)
    """Pareto index of the number of samples per user; all hold the same number if not given."""
    samples_max: int | None = Field(None, ge=1)
    """Most samples a user may hold; 100 samples_per_user if not given."""
    samples: int | None = Field(None, ge=1)
    """Public number of samples of all training users; only needed with samples_tail."""

    @cached_property
    def recipe(self) -> Population:
        """The population that users are drawn from; raises `BadInput` for a setting out of range."""
        try:
            return self.population_type(**{name: getattr(self, name) for name in self.population_type.model_fields})
        except BadInput as error:
            raise BadInput(f"[data] {error}") from None

    @property
    def declared_users(self) -> int:
        return self.users

    @property
    def declared_held_out(self) -> int:
        return self.test_users

    @property
    def declared_samples(self) -> int | None:
        if self.samples is None and self.samples_tail is None:
            return self.users * self.samples_per_user
        return self.samples

    @property
    def sample_limits(self) -> tuple[int, int | None]:
        if self.samples_tail is None:
            return self.samples_per_user, self.samples_per_user
        return self.samples_per_user, self.samples_max or 100 * self.samples_per_user

    @cached_property
    def sample_shape(self) -> Shape:
        return self.recipe.sample_shape

    def load(self, seed: int, hidden: Callable[[], bool] = lambda: False) -> Datasets:
        try:
            train = SyntheticFederation(
                self.recipe,
                self.users,
                seed,
                samples_per_user=self.samples_per_user,
                samples_tail=self.samples_tail,
                samples_max=self.samples_max,
            )
        except BadInput as error:
            raise BadInput(f"[data] {error}") from None
        return Datasets(train, train.held_out(self.test_users) if self.test_users else None, None)


@cache
def synthetic_settings(population: str) -> type[SyntheticData]:
    """Make the settings of users of a population: its fields, and those of `SyntheticData`."""
    kind = POPULATIONS[population]
    settings: dict[str, Any] = {name: (field.annotation, field) for name, field in kind.model_fields.items()}
    settings["population"] = (Literal[population], ...)
    made = create_model(f"Synthetic{kind.__name__}", __base__=SyntheticData, __doc__=kind.summary, **settings)
    made.population_type = kind
    return made
