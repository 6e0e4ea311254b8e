"""The trade-off between an attacker's two errors as a chart: what is claimed, what is left of it, what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from simulations.reports.plots import BLUE, GREEN, LEGEND, ORANGE, STYLE, figure_and_axes, svg
from userdp.audit.trade_off import TradeOff


@dataclass(frozen=True)
class TradeOffChart:
    """Error against error; an attack whose points lie below the claim's line does better than the claim allows.

    Attributes:
        strategy: whose claim it is.
        claim: least errors by the claim.
        unrefuted: those of the strongest claim of its kind that the guesses leave standing.
        false_positives: (P,) measured; none where one run has too few guesses for a curve.
        false_negatives: (P,) likewise.
    """

    strategy: str
    claim: TradeOff
    unrefuted: TradeOff
    false_positives: Sequence[float]
    false_negatives: Sequence[float]

    def element(self) -> str:
        """As an element of a page."""
        with mpl.rc_context(STYLE):
            return svg(self._figure(), f"errors of an attacker on {self.strategy}")

    def save(self, path: Path) -> None:
        """As a file of the kind that its name ends in."""
        with mpl.rc_context(STYLE):
            self._figure().savefig(path, dpi=160)

    def _figure(self) -> Figure:
        figure, axes = figure_and_axes(height=4.0)
        alarms = np.linspace(0, 1, 401)
        claimed, left = self.claim.false_negatives(alarms), self.unrefuted.false_negatives(alarms)
        axes.fill_between(alarms, 0, claimed, color=BLUE, alpha=0.12)
        axes.plot(alarms, claimed, color=BLUE, label="claimed")
        axes.plot(alarms, left, color=GREEN, linestyle="--", label="not refuted")
        axes.plot([0, 1], [1, 0], color="0.6", linestyle=":", label="blind")
        if len(self.false_positives):
            points = self.false_positives, self.false_negatives
            axes.plot(*points, color=ORANGE, marker="o", markersize=2.5, linestyle="none", label="measured")
        axes.set(xlabel="false positives", ylabel="false negatives", xlim=(0, 1), ylim=(0, 1))
        axes.legend(**(LEGEND | {"ncols": 4}))
        return figure
