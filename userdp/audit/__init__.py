"""Lower bounds on epsilon from outputs alone, and upper bounds on attacks against a promise."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.audit.coins import mu_lower_bound
    from userdp.audit.discrete import choice_probabilities, exact_epsilon, halting_probabilities
    from userdp.audit.one_run import best_guesses, guessed, one_run_lower_bound, one_run_p_value
    from userdp.audit.scores import Direction, error_rates
    from userdp.audit.trade_off import Approximate, Gaussian, TradeOff

__all__ = [
    "Approximate",
    "Direction",
    "Gaussian",
    "TradeOff",
    "best_guesses",
    "choice_probabilities",
    "error_rates",
    "exact_epsilon",
    "guessed",
    "halting_probabilities",
    "mu_lower_bound",
    "one_run_lower_bound",
    "one_run_p_value",
]

__getattr__, __dir__ = lazily(__name__)
