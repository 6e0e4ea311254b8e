"""Settings of users' training between two messages, for strategies that average their updates."""

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.scheme import Number
from userdp.errors import BadInput
from userdp.nodes.local_training import LocalTraining, Optimiser, Schedule

_ADAM_RATE = 0.01  # Default step size of Adam, by about which every parameter moves


class LocalOptions(StrategyOptions):
    """Settings of `LocalTraining`; they cost no privacy, as an update is clipped as a whole."""

    local_steps: int | None = Field(None, ge=1, description="Steps of each user on its own data.")
    local_rate: float | None = Field(None, gt=0)
    """Step size of each user; default 1 / smoothness, or 0.5; 0.01 for adam."""
    local_epochs: int | None = Field(None, ge=1)
    """Times that each user goes through its samples, instead of strategy.local_steps."""
    local_batch: int | None = Field(None, ge=1, description="Samples of each of a user's steps; default all of them.")
    local_optimiser: Optimiser = Field("sgd", description="How a user follows its gradients.")
    local_momentum: float = Field(0.9, ge=0, lt=1)
    """Memory of past gradients, for momentum and (first moment) adam."""
    local_schedule: Schedule = "constant"
    """A user's step size over its own steps: constant, or down to zero."""
    local_weight_decay: float = Field(0.0, ge=0)
    """The step size times this is taken off each parameter at every step."""
    proximal: float = Field(0.0, ge=0, description="Strength of the pull back to the model that a user got (FedProx).")

    def local_training(self, usual_steps: int, default_rate: float) -> LocalTraining:
        """Return the users' training, with these defaults; refuse steps beside epochs with `BadInput`."""
        if self.local_epochs is not None and self.local_steps is not None:
            raise BadInput(
                f"strategy.local_epochs = {self.local_epochs} and strategy.local_steps = {self.local_steps} are both "
                "given: a user's steps follow from its epochs, so give one of them"
            )
        adam = self.local_optimiser == "adam"
        return LocalTraining.of(
            self.local_optimiser,
            self.local_schedule,
            step_size=self.local_rate or (_ADAM_RATE if adam else default_rate),
            steps=0 if self.local_epochs else self.local_steps or usual_steps,
            epochs=self.local_epochs or 1,
            batch_size=self.local_batch or 0,
            momentum=self.local_momentum,
            weight_decay=self.local_weight_decay,
            proximal=self.proximal,
        )

    def check_untrained(self) -> None:
        """Refuse settings of training, with `BadInput`, where users do not train."""
        own = LocalOptions.model_fields.keys() - StrategyOptions.model_fields.keys() - {"local_rate"}
        for name in sorted(own):
            if getattr(self, name) != LocalOptions.model_fields[name].default:
                raise BadInput(
                    f"strategy.{name} = {getattr(self, name)!r}: users send their gradient and do not train; give "
                    "strategy.local_steps or strategy.local_epochs, or leave it out"
                )


class UpdateOptions(LocalOptions, restates={"local_steps"}):
    """Settings of strategies whose users train if steps or epochs are given, and else send their gradient."""

    local_steps: int | None = Field(None, ge=1)
    """Users send the update of so many steps of their own; their gradient if not given."""

    @property
    def trains(self) -> bool:
        """Users send updates, rather than gradients."""
        return self.local_steps is not None or self.local_epochs is not None


def local_numbers(training: LocalTraining) -> dict[str, Number]:
    """Return the plan's numbers of users' training."""
    length: dict[str, Number] = (
        {"local_steps": int(training.steps)} if training.steps else {"local_epochs": int(training.epochs)}
    )
    return {**length, "local_rate": training.step_size}
