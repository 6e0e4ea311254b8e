"""What metrics mean, and how numbers and promises are written for people."""

from collections.abc import Iterable

from rich.console import Console

from simulations.records.measured import BINS, PERCENTILES, SPREAD
from userdp.accounting.composition import promises_something
from userdp.accounting.guarantee import rounded_up

_SPREAD = {
    f"{name}_p{share}": f"{share} % of held-out users have an average {name.replace('_', ' ')} of at most this"
    for name in SPREAD
    for share in PERCENTILES
}
METRICS = {
    "r2": "part of the targets' variance that the model explains: 1 is perfect, 0 no better than the best constant",
    "deviance_explained": "part of the best constant's loss that the model takes away: 1 is perfect, 0 no better",
    "excess_risk": "expected loss above the best possible model, exact",
    "excess_loss": "loss on held-out users above that of the known optimum on the same samples",
    "test_loss": "loss on held-out users",
    "distance": "l2 distance of the model to the known optimum",
    "accuracy": "share predicted correctly",
    "macro_f1": "harmonic mean of precision and recall of a class, on average over the classes; 1 is perfect",
    "log_loss": "loss of predicted probabilities",
    "squared_error": "mean squared error of predictions",
    "absolute_error": "mean absolute error of predictions",
    "deviance": "Poisson deviance",
    "auc": "chance that of two held-out samples of different classes the one of class 1 scores higher; 0.5 is blind",
    **_SPREAD,
    "calibration_error": f"how far predicted and observed means are apart, on average over {BINS} groups of held-out "
    "samples that are predicted alike; of several classes, probability of the predicted one and accuracy",
    "predicted_minus_observed": "the same over all held-out samples at once, with its sign: above 0 means too high",
}
"""Metric -> what it means."""


def shown(value: object, digits: int = 4) -> str:
    """A number for people: four digits, no more unless asked for."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not 1000 <= abs(value) < 1e9:
            return f"{value:.{digits}g}"
        return f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def shown_claim(value: object) -> str:
    """An epsilon or a delta for people, rounded up."""
    return rounded_up(value) if isinstance(value, float) else shown(value)


NOTHING_PROMISED = "none at this delta"
"""Where the promise for another relation allows to release somebody's data outright."""


def shown_promise(epsilon: float, delta: float, users: int) -> str:
    """An (epsilon, delta) that follows from another relation's, for people; says so where it promises nothing."""
    if not promises_something(delta, users):
        return NOTHING_PROMISED
    return f"epsilon = {shown_claim(epsilon)}, delta = {shown_claim(delta)}"


def shown_number(name: str, value: object) -> str:
    """A number of a plan for people, rounded up if it is an epsilon or a delta that something is worth."""
    return shown_claim(value) if name.replace(" ", "_").endswith(("_epsilon", "_delta")) else shown(value)


def digits_apart(values: Iterable[object]) -> int:
    """The fewest digits, four at least, at which different numbers look different: 17 tell any two apart."""
    different = {value for value in values if isinstance(value, int | float)}
    return next((n for n in range(4, 17) if len({shown(value, n) for value in different}) == len(different)), 17)


def shown_apart(values: Iterable[object]) -> list[str]:
    """Numbers that stand side by side to be compared, with as many digits as that takes."""
    values = list(values)
    digits = digits_apart(values)
    return [shown(value, digits) for value in values]


def percent(share: float) -> str:
    """A share for people: more digits near the whole, where they tell strategies apart."""
    whole = 100.0 * share
    digits = 0 if abs(whole) < 99 or whole > 101 or whole < 0 or whole == 100 else 2
    return f"{whole:,.{digits}f} %"


def chance(probability: float) -> str:
    """A probability for people, as a share of a hundred."""
    return f"{100 * probability:.1f} %"


def show_promise(sentence: str, assumptions: Iterable[str], console: Console) -> None:
    """Print a guarantee and what it rests on: none stands without the other."""
    console.print(f"[bold]Guarantee.[/bold] {sentence}", highlight=False)
    for assumption in assumptions:
        console.print(f"  assuming: {assumption}", highlight=False, markup=False)
