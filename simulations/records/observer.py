"""Whoever follows a run: its trackers, the progress on a terminal, the folder that keeps what is released."""

from strategies.core.plan import Plan
from strategies.core.results import RoundRecord


class Observer:
    """Follows a run; what a class leaves out does nothing. The ``plan`` is known from the start."""

    plan: Plan

    def on_start(self, plan: Plan) -> None:
        """Nobody was asked yet; `BadInput` ends the run here."""
        self.plan = plan

    def on_round(self, record: RoundRecord) -> None:
        """A round is over; a resumed run tells the rounds of the killed process, too, in their order."""

    def on_end(self) -> None:
        """The run is over, or has stopped, and wrote its files."""
