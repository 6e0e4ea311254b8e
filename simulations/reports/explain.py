"""What metrics mean, and how numbers are written for people."""

METRICS = {
    "excess_risk": "expected loss above the best possible model, exact",
    "excess_loss": "loss on held-out users above that of the known optimum on the same samples",
    "test_loss": "loss on held-out users",
    "distance": "l2 distance of the model to the known optimum",
    "accuracy": "share predicted correctly",
    "log_loss": "loss of predicted probabilities",
    "squared_error": "mean squared error of predictions",
    "absolute_error": "mean absolute error of predictions",
    "deviance": "Poisson deviance",
}
"""Metric -> what it means."""


def shown(value: object) -> str:
    """A number for people: four digits, no more."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def percent(share: float) -> str:
    """A share for people: more digits near the whole, where they tell strategies apart."""
    whole = 100.0 * share
    digits = 0 if abs(whole) < 99 or whole > 101 or whole < 0 else 2
    return f"{whole:,.{digits}f} %"
