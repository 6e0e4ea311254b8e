"""What docs/audit.md says that an epsilon leaves an attacker, computed from the trade-off functions."""

from userdp.audit import Approximate, Gaussian, TradeOff

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-6
RATES = (0.01, 0.1, 0.5)


def translation() -> str:
    """A table: for each epsilon most success of telling two data sets apart and of guesses, by two kinds of claims."""
    head = ["epsilon", "claim", "tells two data sets apart", *(f"guess of base rate {rate:.0%}" for rate in RATES)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for epsilon in EPSILONS:
        claims: dict[str, TradeOff] = {
            "any mechanism": Approximate(epsilon, DELTA),
            "one Gaussian": Gaussian.of(epsilon, DELTA),
        }
        for name, claim in claims.items():
            numbers = [claim.membership_accuracy, *(claim.guess_success(rate) for rate in RATES)]
            lines.append(f"| {epsilon:g} | {name} | {' | '.join(f'{100 * number:.1f}%' for number in numbers)} |")
    return "\n".join(lines)
