"""The tables of docs/audit.md: an attacker's success under an epsilon, and the audit of every strategy."""

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from strategies import STRATEGIES
from userdp.audit import Approximate, Gaussian, TradeOff

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "audit.json"

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-6
RATES = (0.01, 0.1, 0.5)


def translation() -> str:
    """Return the largest success of telling two data sets apart and of guesses, by epsilon and kind of claim."""
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


def measured() -> str:
    """Return the results of `userdp audit research/audit.toml --all`, one row per strategy."""
    entries = json.loads(MEASURED.read_text(encoding="utf-8"))
    head = ["strategy", "lower bound", "share of the claim", "tested as", "exact epsilon of one outcome"]
    lines = [_summary(entries), "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(_row(one) for one in entries)])


def _summary(entries: list[dict[str, Any]]) -> str:
    audited = [one for one in entries if "refused" not in one]
    first = audited[0]
    command = first["command"].replace("config.toml", "research/audit.toml")
    risk = sum(1 - one["confidence"] for one in audited)
    claims = {f"`{one['strategy']}`": f"{one['claimed_epsilon']:.3g}" for one in audited}
    usual = Counter(claims.values()).most_common(1)[0][0]
    others = [f"{claim} for {name}" for name, claim in claims.items() if claim != usual]
    left = [f"`{name}`" for name in STRATEGIES if name not in {"non_private", *(one["strategy"] for one in entries)}]
    own = [
        f"`{one['strategy']}` (`research/audit-{one['name']}.toml`)" for one in entries if one["name"] != first["name"]
    ]
    parts = [
        f"Made by `{command}` (userdp {first['versions']['userdp']}, seed {first['seed']}). All bounds hold together "
        f"with confidence {1 - risk:.2g}. research/results/audit.json names the strongest attack on each strategy.",
        f"The claimed epsilon is {', '.join([usual, *others])}; delta is {first['delta']:g}.",
        f"Not audited: {', '.join(left)}." if left else "",
        f"With another loss: {', '.join(own)}." if own else "",
    ]
    return textwrap.fill(" ".join(filter(None, parts)), 120)


def _row(one: dict[str, Any]) -> str:
    if "refused" in one:
        return f"| `{one['strategy']}` | not audited: {one['refused']} | | | |"
    exact = "" if one["exact_epsilon"] is None else f"{one['exact_epsilon']:.2f}"
    kind = {"Gaussian": "one Gaussian", "rounds": "rounds as accounted"}.get(one["bound"], "any mechanism")
    bound, claimed = one["measured_epsilon"], one["claimed_epsilon"]
    cells = [f"{bound:.2f}", f"{bound / claimed:.0%}", kind, exact]
    return f"| `{one['strategy']}` | {' | '.join(cells)} |"
