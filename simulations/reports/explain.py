"""The meaning of metrics, and the text form of numbers and promises."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from simulations.records.held_out import BINS, PERCENTILES, SPREAD
from userdp.accounting.composition import promises_something
from userdp.accounting.guarantee import Guarantee, rounded_up

METRICS = {
    "r2": "share of the targets' variance that the model explains: 1 is perfect, 0 equals the best constant",
    "deviance_explained": "share of the best constant's loss that the model removes: 1 is perfect, 0 equals it",
    "excess_risk": "expected loss above the best possible model, exact",
    "excess_loss": "loss on held-out users above the loss of the known optimum on the same samples",
    "test_loss": "loss on held-out users",
    "distance": "l2 distance of the model to the known optimum",
    "accuracy": "share of correct predictions",
    "macro_f1": "harmonic mean of precision and recall of a class, averaged over the classes; 1 is perfect",
    "log_loss": "negative log likelihood of the predicted probabilities",
    "squared_error": "mean squared error of predictions",
    "absolute_error": "mean absolute error of predictions",
    "deviance": "Poisson deviance",
    "auc": "chance that of two held-out samples of different classes the one of class 1 scores higher; 0.5 is guessing",
    **{
        f"{name}_p{share}": f"{share} % of held-out users have a mean {name.replace('_', ' ')} of at most this"
        for name in SPREAD
        for share in PERCENTILES
    },
    "calibration_error": f"mean distance of predicted and observed means over {BINS} groups of held-out samples with "
    "similar predictions; with several classes, of the predicted class's probability and the accuracy",
    "initial_loss_removed": "share of the initial model's loss that training removed: 1 is perfect, 0 no better",
    "predicted_minus_observed": "mean prediction minus mean observation over all held-out samples: above 0 is too high",
}
"""Metric -> meaning."""
_CELLS = {
    "clipped": "cells clipped at loading into the declared range of their column, or cut to the declared window",
    "unknown_levels": "cells that hold none of the declared levels of their column",
    "unusable": "cells with no value that a loss could use; their samples have weight 0",
    "imputed": "missing cells replaced by the value declared for them",
}
"""Field of `userdp.data.LoadReport`, by column -> meaning."""
NOTHING_PROMISED = "none at this delta"  # the delta allows a mechanism to release somebody's data outright


def shown(value: object, digits: int = 4) -> str:
    """Format a number with four significant digits, or as many as asked for."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not 1000 <= abs(value) < 1e9:
            return f"{value:.{digits}g}"
        return f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def held_out_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return (name, value, low, high, meaning) of the metrics that the guarantee covers; none without them."""
    found = result.get("held_out", {}).get("metrics", {}).items()
    return [
        (name.replace("_", " "), shown(one["value"], 3), *(shown(end, 3) for end in one["interval"]), METRICS[name])
        for name, one in found
    ]


def shown_claim(value: object) -> str:
    """Format an epsilon or a delta, rounded up."""
    return rounded_up(value) if isinstance(value, float) else shown(value)


def shown_promise(epsilon: float, delta: float, users: int) -> str:
    """Format an (epsilon, delta) derived from another relation's; say so if it promises nothing to ``users`` users."""
    if not promises_something(delta, users):
        return NOTHING_PROMISED
    return f"epsilon = {shown_claim(epsilon)}, delta = {shown_claim(delta)}"


def shown_number(name: str, value: object) -> str:
    """Format a number of a plan; round it up if it is a converted epsilon or delta."""
    return shown_claim(value) if name.replace(" ", "_").endswith(("_epsilon", "_delta")) else shown(value)


def shown_line(line: Mapping[str, Any]) -> str:
    """Format the value of a line of a card; what is claimed, such as an epsilon, is rounded up."""
    value, name = line["value"], line["name"].lower()
    if isinstance(value, Mapping) and "interval" in value:
        low, high = (shown(end, 3) for end in value["interval"])
        return f"{shown(value['value'], 3)} ({low} to {high})"
    if isinstance(value, Mapping | list):
        return ", ".join(map(str, value))
    claim = line["source"].startswith("guarantee.json") and isinstance(value, float)
    return shown_number(f"{name}_epsilon" if claim else name, value)


def digits_apart(values: Iterable[object]) -> int:
    """Return the fewest digits, at least four, at which different numbers look different; 17 suffice for any two."""
    different = {value for value in values if isinstance(value, int | float)}
    return next((n for n in range(4, 17) if len({shown(value, n) for value in different}) == len(different)), 17)


def shown_apart(values: Iterable[object]) -> list[str]:
    """Format numbers side by side, with enough digits to tell them apart."""
    values = list(values)
    digits = digits_apart(values)
    return [shown(value, digits) for value in values]


def percent(share: float) -> str:
    """Format a share in percent, with more digits close to 100 %, where they tell strategies apart."""
    whole = 100.0 * share
    digits = 0 if abs(whole) < 99 or whole > 101 or whole < 0 or whole == 100 else 2
    return f"{whole:,.{digits}f} %"


def chance(probability: float) -> str:
    """Format a probability in percent."""
    return f"{100 * probability:.1f} %"


def settings(values: Mapping[str, object]) -> str:
    """Format options as "name = value, ..."."""
    return ", ".join(f"{name} = {shown(value)}" for name, value in values.items())


def show_promise(guarantee: Guarantee, console: Console) -> None:
    """Print a guarantee together with its assumptions."""
    console.print(f"[bold]Guarantee.[/bold] {escape(str(guarantee))}", highlight=False)


def assumptions_of(promises: Mapping[str, Guarantee]) -> list[str]:
    """Return what guarantees rest on, as lines below their table: each once, and whose it is, unless it is all's."""
    kept, found = [name for name, one in promises.items() if one.holds], dict[str, list[str]]()
    for name in kept:
        for assumption in promises[name].assumptions:
            found.setdefault(assumption, []).append(name)
    return [
        f"  assuming: {assumption}" + ("" if names == kept else f" ({', '.join(names)})")
        for assumption, names in found.items()
    ]


def promise_texts(guarantee: Guarantee) -> dict[str, str]:
    """Return a guarantee as texts by name, for the metadata of other programs' formats; no budget if none holds."""
    budget = ("epsilon", "delta") if guarantee.holds else ()
    texts = {"userdp.guarantee": str(guarantee)}
    texts |= {f"userdp.{name}": str(getattr(guarantee, name)) for name in (*budget, "unit", "relation", "adversary")}
    return texts | {"userdp.holds": str(guarantee.holds), "userdp.assumptions": "; ".join(guarantee.assumptions)}


def cell_counts(table: Mapping[str, Any]) -> list[str]:
    """Count clipped, unknown, unusable and imputed cells, in total and for each affected column.

    The counts in ``table``, "table_private" of data.json, are exact and of training and held-out users together: they
    are for the holder of the data alone, and no guarantee covers them.
    """
    samples, steps, lines = table["samples"], table.get("steps", {}), []
    for kind in (kind for kind in _CELLS if kind in table):
        counts = {column: count for column, count in table[kind].items() if count}
        columns = ", ".join(
            f"{column}: {shown(count)} of {shown(steps.get(column, samples))}" for column, count in counts.items()
        )
        lines.append(f"{shown(sum(counts.values()))} {_CELLS[kind]}" + (f" ({columns})" if columns else ""))
    return lines
