"""What README.md and docs/guarantees.md say of each strategy, made from its class."""

import inspect
import textwrap
from pathlib import Path

from strategies import STRATEGIES, UserLevelStrategy
from strategies.core.declarations import guarantees

ROOT = Path(__file__).resolve().parents[2]
Strategies = list[type[UserLevelStrategy]]


def table() -> str:
    """One row a strategy, for README.md."""
    rows = [
        f"| `{name}` | {one.summary_line} | {one.paper} | {one.promise} | {one.needs} |"
        for name, one in STRATEGIES.items()
    ]
    return "\n".join(
        ["| `strategy.kind` | what it does | source | guarantee | needs |", "|---|---|---|---|---|", *rows]
    )


def sections() -> str:
    """One section a strategy, for docs/guarantees.md: its source, and the *Formal guarantees* of its docstring."""
    return "\n\n".join(_section(name, strategy) for name, strategy in STRATEGIES.items())


def releases() -> str:
    """Who is trusted, and what is seen, by when a strategy releases something."""
    late = [one for one in STRATEGIES.values() if one.release == "phase"]
    untrusting = [one for one in STRATEGIES.values() if not one.server_trusted]
    masking = [one for one in STRATEGIES.values() if one.masked and one.promise != "none"]
    return f"""
| | round release | phase release |
|---|---|---|
| strategies | all others | {_names(late)} |
| what is private | every iterate | the model released at the end of each phase |
| the server | trusted: it sees users' gradients, or sums of them | trusted |
| whoever sees the released models | protected against | protected against |
| other nodes that take part | protected against | \
trusted: they see the iterates of their phase, which are NOT private |
| nodes that answer dishonestly | cannot weaken the guarantee of a user whose own node is honest | \
could: every node must answer with the certified function of the model |

Users are protected against the server by {_names(untrusting)} always, and with `privacy.trust = "sum"` by these: \
{_names(masking)}.
All others refuse that setting.
"""


def secure_noise() -> str:
    """What becomes of each strategy with secure noise; those with one answer share a row."""
    answers: dict[str, Strategies] = {}
    for strategy in STRATEGIES.values():
        refusal, told = strategy.without_secure_noise, strategy.with_secure_noise
        answer = "; ".join(filter(None, ["yes", told])) if refusal is None else f"refused: {refusal}"
        answers.setdefault(answer, []).append(strategy)
    rows = [f"| {_names(those)} | {answer} |" for answer, those in answers.items()]
    return "\n".join(["| | with secure noise |", "|---|---|", *rows])


def _section(name: str, strategy: type[UserLevelStrategy]) -> str:
    file = Path(inspect.getfile(strategy)).resolve().relative_to(ROOT).as_posix()
    source = f"`{strategy.__name__}`, `{file}`. {strategy.paper[0].upper()}{strategy.paper[1:]}."
    paragraphs = [f"### {name}", source, *guarantees(strategy).split("\n\n")]
    return "\n\n".join(textwrap.fill(one, 120, break_long_words=False) for one in paragraphs)


def _names(strategies: Strategies) -> str:
    return ", ".join(f"`{one.name}`" for one in strategies)
