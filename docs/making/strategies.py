"""Tables about strategies for docs/guarantees.md and docs/strategy, made from their classes."""

import ast
import re
import textwrap
from pathlib import Path

from strategies import STRATEGIES, Recipe
from strategies.core.recipe import guarantees

Strategies = list[type[Recipe]]


def claims() -> str:
    """Return the table of docs/guarantees.md with the claim and the page of each strategy."""
    rows = [f"| [{name}](strategy/{name}.md) | {_claim(one)} |" for name, one in STRATEGIES.items()]
    return "\n".join(["| strategy | claim |", "|---|---|", *rows])


def releases() -> str:
    """Return the table of trust and visibility, by the release of a strategy."""
    late = [one for one in STRATEGIES.values() if one.about.release == "phase"]
    empty = [one for one in STRATEGIES.values() if one.about.promise == "none"]
    conditional = [one for one in STRATEGIES.values() if "unless" in one.about.promise]
    untrusting = [one for one in STRATEGIES.values() if not one.about.server_trusted]
    masking = [one for one in STRATEGIES.values() if one.about.masked and one.about.promise != "none"]
    return f"""
| | round release | phase release |
|---|---|---|
| strategies | all others except {_names(empty)} | {_names(late)} |
| what is private | every iterate | the model released at the end of each phase, or of the only phase |
| the server | trusted: it sees users' gradients, or sums of them | trusted |
| observers of the released models | protected against | protected against |
| other nodes that take part | protected against | \
trusted: they see the iterates of their phase, which are NOT private |
| nodes that answer dishonestly | cannot weaken the guarantee of a user whose own node is honest | \
can weaken it: every node must answer with the certified function of the model |

These strategies with round release trust other nodes under a condition: {_conditions(conditional)}.
So does every strategy with `sampling = "fixed_size"`: draws without replacement depend on each other, and nodes know \
the draws of their own users.

{_names(untrusting)} always protects users against the server. With `privacy.trust = "sum"` these do, too: \
{_names(masking)}.
All others refuse that setting.
"""


def secure_noise() -> str:
    """Return who has secure noise, and who refuses it."""
    refused = [one for one in STRATEGIES.values() if one.about.without_secure_noise is not None]
    able = [one for one in STRATEGIES.values() if one.about.without_secure_noise is None]
    return textwrap.fill(
        f"{_names(able)} have secure noise. {_names(refused)} refuse it. The page of each strategy says what secure "
        "noise changes in it, or why it is refused.",
        120,
    )


def time_of_secure_noise() -> str:
    """Return how long whole runs with secure noise take at most, from the limits of benchmarks/secure.py."""
    written = Path(__file__).resolve().parents[2].joinpath("benchmarks", "secure.py").read_text(encoding="utf-8")
    (limits,) = re.findall(r"^LIMITS = (\{.*\})$", written, flags=re.MULTILINE)
    told = ", ".join(f"times {ratio:g} for {kind}" for kind, ratio in ast.literal_eval(limits).items())
    return textwrap.fill(
        f"The processor time of a whole run is at most that of the same run with seeded noise {told}; `make bench` "
        "checks it.",
        120,
    )


def with_secure_noise(strategy: type[Recipe]) -> str:
    """Say whether the strategy supports secure noise, and its effect or the reason of the refusal."""
    refusal, effect = strategy.about.without_secure_noise, strategy.about.with_secure_noise
    return "; ".join(filter(None, ["yes", effect])) if refusal is None else f"refused: {refusal}"


def _claim(strategy: type[Recipe]) -> str:
    claim, _, _ = guarantees(strategy).partition("*Why.*")
    return " ".join(claim.removeprefix("*Claim.*").split()).replace("|", "\\|")


def _conditions(strategies: Strategies) -> str:
    """List the condition under which each strategy trusts other nodes."""
    return ", ".join(f"`{one.about.name}`, if {one.about.promise.partition('unless ')[2]}" for one in strategies)


def _names(strategies: Strategies) -> str:
    return ", ".join(f"`{one.about.name}`" for one in strategies)
