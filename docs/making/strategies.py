"""What README.md, docs/guarantees.md and the pages of docs/strategy say of each strategy, made from its class."""

from strategies import STRATEGIES, Recipe
from strategies.core.recipe import guarantees

Strategies = list[type[Recipe]]


FIRST = ("auto", "dp_fed_sgd", "dp_fed_avg", "adaptive_clipping")
"""The strategies that people come for."""


def table() -> str:
    """Return the table of README.md, a row for each strategy in `FIRST`."""
    rows = [
        f"| `{name}` | {one.about.summary_line} | {one.about.paper} | {one.about.promise} | {one.about.needs} |"
        for name, one in ((name, STRATEGIES[name]) for name in FIRST)
    ]
    return "\n".join(
        ["| `strategy.kind` | what it does | source | guarantee | needs |", "|---|---|---|---|---|", *rows]
    )


def claims() -> str:
    """One row a strategy, for docs/guarantees.md: its claim, and the page that says why it holds."""
    rows = [f"| [{name}](strategy/{name}.md) | {_claim(one)} |" for name, one in STRATEGIES.items()]
    return "\n".join(["| strategy | claim |", "|---|---|", *rows])


def releases() -> str:
    """Who is trusted, and what is seen, by when a strategy releases something."""
    late = [one for one in STRATEGIES.values() if one.about.release == "phase"]
    empty = [one for one in STRATEGIES.values() if one.about.promise == "none"]
    conditional = [one for one in STRATEGIES.values() if "unless" in one.about.promise]
    untrusting = [one for one in STRATEGIES.values() if not one.about.server_trusted]
    masking = [one for one in STRATEGIES.values() if one.about.masked and one.about.promise != "none"]
    return f"""
| | round release | phase release |
|---|---|---|
| strategies | all others but {_names(empty)} | {_names(late)} |
| what is private | every iterate | the model released at the end of each phase, or of the only one |
| the server | trusted: it sees users' gradients, or sums of them | trusted |
| whoever sees the released models | protected against | protected against |
| other nodes that take part | protected against | \
trusted: they see the iterates of their phase, which are NOT private |
| nodes that answer dishonestly | cannot weaken the guarantee of a user whose own node is honest | \
could: every node must answer with the certified function of the model |

Of those with round release these trust other nodes on a condition: {_conditions(conditional)}.
So does every strategy with `sampling = "fixed_size"`: draws without replacement depend on each other, and nodes know \
those of their own users.

Users are protected against the server by {_names(untrusting)} always, and with `privacy.trust = "sum"` by these: \
{_names(masking)}.
All others refuse that setting.
"""


def secure_noise() -> str:
    """What becomes of each strategy with secure noise; those with one answer share a row."""
    answers: dict[str, Strategies] = {}
    for strategy in STRATEGIES.values():
        answers.setdefault(with_secure_noise(strategy), []).append(strategy)
    rows = [f"| {_names(those)} | {answer} |" for answer, those in answers.items()]
    return "\n".join(["| | with secure noise |", "|---|---|", *rows])


def with_secure_noise(strategy: type[Recipe]) -> str:
    """Whether it can have it, and what becomes of it, or why not."""
    refusal, told = strategy.about.without_secure_noise, strategy.about.with_secure_noise
    return "; ".join(filter(None, ["yes", told])) if refusal is None else f"refused: {refusal}"


def _claim(strategy: type[Recipe]) -> str:
    claim, _, _ = guarantees(strategy).partition("*Why.*")
    return " ".join(claim.removeprefix("*Claim.*").split()).replace("|", "\\|")


def _conditions(strategies: Strategies) -> str:
    """When each of them trusts nodes."""
    return ", ".join(f"`{one.about.name}`, if {one.about.promise.partition('unless ')[2]}" for one in strategies)


def _names(strategies: Strategies) -> str:
    return ", ".join(f"`{one.about.name}`" for one in strategies)
