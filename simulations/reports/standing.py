"""Is the model better than what needs no features? Said alike on the console and in the report."""

from dataclasses import dataclass
from typing import Any, Literal

from simulations.records.evaluation import NOBODY, best_constant, main_metric
from simulations.reports.explain import shown_apart

INITIAL, NON_PRIVATE, CONSTANT = "initial model", "without privacy", "best constant"
RELEASED = "The best constant is the mean that the run released before it trained: it needs no features."
NOT_RELEASED = (
    "The best constant says the held-out people's own mean of everybody: it needs no features, and nobody could know "
    "it without looking."
)


@dataclass(frozen=True)
class Standing:
    """How a model stands beside the best constant and the initial model.

    Attributes:
        kind: "good" is better than both, "even" as good as the better of them, "bad" worse, "none" not measured.
        title: in a few words.
        told: in a sentence or two.
    """

    kind: Literal["good", "even", "bad", "none"]
    title: str
    told: str

    @property
    def colour(self) -> Literal["green", "red", "yellow"]:
        """On a terminal."""
        return "green" if self.kind == "good" else "red" if self.kind == "bad" else "yellow"


def standing(result: dict[str, Any]) -> Standing:
    """Of a run.

    Args:
        result: the content of result.json.
    """
    if "error" in result:
        return Standing(
            "bad", "Failed", f"The run stopped early: {result['error']}. What follows is what it had by then."
        )
    if reason := result.get("not_measured"):
        hold_out = "; hold out users (data.test_users, data.test_fraction)" if reason == NOBODY else ""
        return Standing("none", "Not measured", f"{reason[0].upper()}{reason[1:]}{hold_out}.")
    metrics, main = result["metrics"], main_metric(result["metrics"])
    rivals = {
        name: values[main]
        for name, values in references(result).items()
        if main is not None and values.get(main) is not None
    }
    if main is None or metrics[main] is None or not rivals:
        return Standing(
            "none",
            "Not measured",
            "There was nothing to measure the model with: hold out users (data.test_users, data.test_fraction).",
        )
    name, best = main.replace("_", " "), min(rivals, key=lambda rival: float(rivals[rival]))
    own, *others = shown_apart([metrics[main], *rivals.values()])
    beside = " and ".join(f"{value} for the {rival}" for value, rival in zip(others, rivals, strict=True))
    told = f"The {name} is {own}, against {beside}{_explained(metrics)}."
    if metrics[main] < rivals[best]:
        return Standing("good", f"Better than the {best}", told)
    if metrics[main] == rivals[best]:
        return Standing("even", f"As good as the {best} and no better", told)
    return Standing(
        "bad",
        f"WORSE than the {best}",
        f"{told} Do not use this model; the plan says what the noise and the tests cost.",
    )


def references(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> metrics of what needs no features: the best constant, where there is one, and the initial model."""
    reference = result.get("reference", {})
    constant = best_constant(reference)
    found = {} if constant is None else {CONSTANT: dict(constant)}
    return found | {INITIAL: reference.get("initial", {})}


def about_constant(result: dict[str, Any]) -> str | None:
    """Where the best constant comes from; None where there is none."""
    reference = result.get("reference", {})
    if best_constant(reference) is None:
        return None
    return RELEASED if reference.get("released_constant") else NOT_RELEASED


def _explained(metrics: dict[str, Any]) -> str:
    for name, told in (("r2", "R2"), ("deviance_explained", "deviance explained")):
        if metrics.get(name) is not None:
            return f"; {told} is {metrics[name]:.3f}"
    return ""
