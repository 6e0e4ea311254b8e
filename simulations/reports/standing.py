"""The verdict on a model: is it better than models that need no features? Console and report show the same."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from simulations.records.evaluation import NOBODY, best_constant, constant_name, main_metric, verdict
from simulations.reports.explain import shown, shown_apart

if TYPE_CHECKING:  # slow to import, and a plan reads no rounds
    import pandas as pd

INITIAL, NON_PRIVATE, CONSTANT = "initial model", "without privacy", "best constant"
RELEASED = "The best constant is the mean that the run released before it trained: it needs no features."
NOT_RELEASED = (
    "The best constant predicts the mean of the held-out users for everybody: it needs no features, and nobody could "
    "know it without reading their data."
)
ENOUGH = 0.9
"""Usable share below which no verdict is good."""
_HOLD_OUT = "hold out users (data.test_users, data.test_fraction)"


Kind = Literal["good", "even", "bad", "none"]


@dataclass(frozen=True)
class Usable:
    """The usable share that a run released, see `strategies.auto.preparation.Filled`, and its noise."""

    share: float
    deviation: float

    @classmethod
    def of(cls, rounds: "pd.DataFrame") -> Self | None:
        """Read it from the content of rounds.parquet; None if the run released no such share."""
        if "fact.filled_share" not in rounds or (told := rounds.dropna(subset="fact.filled_share")).empty:
            return None
        return cls(float(told["fact.filled_share"].iloc[0]), float(told["fact.noise_deviation"].iloc[0]))

    @property
    def few(self) -> bool:
        """True if the share lies below `ENOUGH` by more than two standard deviations of its noise."""
        return self.share + 2 * self.deviation < ENOUGH

    @property
    def sentence(self) -> str:
        """The share in words, with a remedy where it is small."""
        remedy = ""
        if self.few:
            remedy = (
                ". The rest was left out: see in the private figures which column's cells cannot be used, and declare "
                "with data.impute what missing cells of features count as; a row without its target stays out"
            )
        return (
            f"{100 * self.share:.3g} % could be used, the mean of the share of people who were heard and of the share "
            f"of their rows (released, with noise of {100 * self.deviation:.2g} %){remedy}."
        )


@dataclass(frozen=True)
class Standing:
    """A verdict, in a few words and in a sentence or two.

    Its kind is "good" for better than best constant and initial model, "even" for no clear difference from the better
    of them, or where much could not be used, "bad" for worse, "none" for not measured.
    """

    kind: Kind
    title: str
    explanation: str


def standing(result: dict[str, Any], usable: Usable | None) -> Standing:
    """Compare a run's model with models that need no features; ``result`` is the content of result.json."""
    told = "" if usable is None else f" {usable.sentence}"
    if "error" in result:
        return Standing(
            "bad", "Failed", f"The run stopped early: {result['error']}. The rest is its state at that time."
        )
    if reason := result.get("not_measured"):
        advice = f"; {_HOLD_OUT}" if reason == NOBODY else ""
        return Standing("none", "Not measured", f"{reason[0].upper()}{reason[1:]}{advice}.{told}")
    metrics, main = result["metrics"], main_metric(result["metrics"])
    rivals = {
        name: values[main]
        for name, values in references(result).items()
        if main is not None and values.get(main) is not None
    }
    if main is None or metrics[main] is None or not rivals:
        return Standing("none", "Not measured", f"There are no data to measure the model with: {_HOLD_OUT}.{told}")
    best = min(rivals, key=lambda rival: float(rivals[rival]))
    value, *others = shown_apart([metrics[main], *rivals.values()])
    beside = " and ".join(f"{other} for the {rival}" for other, rival in zip(others, rivals, strict=True))
    shares = {"r2": "R2", "deviance_explained": "deviance explained"}
    explained = [f"; {words} is {metrics[name]:.3f}" for name, words in shares.items() if metrics.get(name) is not None]
    sentence = f"The {main.replace('_', ' ')} is {value}, against {beside}{''.join(explained[:1])}.{told}"
    reference = result.get("reference", {})
    name = "initial" if best == INITIAL else constant_name(reference)
    errors, mean = reference.get("difference_errors", {}), reference.get("constant") or {}
    error = errors.get(name)
    if metrics[main] == rivals[best]:
        return Standing("even", f"Equal to the {best}, no better", sentence)
    kind: Kind
    match verdict(metrics[main], rivals[best], error):
        case "better":
            few = usable is not None and usable.few
            # Nobody could know the mean of the held-out users; but a model that is clearly worse predicts nothing.
            known = "constant" in errors and main in mean
            beaten = known and verdict(metrics[main], mean[main], errors["constant"]) == "worse"
            kind, more = "even" if few or beaten else "good", ""
            limits = f"{', without much of the data' if few else ''}{', worse than the mean' if beaten else ''}"
            title = f"Better than the {best}{limits}"
        case "even":
            kind, title = "even", f"No clear difference from the {best}"
            more = f" The difference has a standard error of {shown(error, 2)} over people."
        case _:
            kind, title = "bad", f"WORSE than the {best}"
            more = " Do not use this model; the plan says what the noise and the tests cost."
    return Standing(kind, title, sentence + more)


def references(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name -> metrics of models that need no features: the best constant, if measured, and the initial model."""
    reference = result.get("reference", {})
    constant = best_constant(reference)
    found = {} if constant is None else {CONSTANT: dict(constant)}
    return found | {INITIAL: reference.get("initial", {})}


def about_constant(result: dict[str, Any]) -> str | None:
    """Explain where the best constant comes from; None without a best constant."""
    reference = result.get("reference", {})
    if best_constant(reference) is None:
        return None
    return RELEASED if reference.get("released_constant") else NOT_RELEASED
