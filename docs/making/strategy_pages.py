"""docs/strategy: a page for each strategy and one that lists them, made from their classes and their examples."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w

from making import courses
from making.chapters import Chapter, chapters
from making.configuration import sentence, table
from making.examples import configuration, example_of
from making.strategies import with_secure_noise
from simulations.config.run_config import strategy_section
from strategies import STRATEGIES, PublicFacts, Recipe, StrategyOptions
from strategies.core.descriptions import example_problem
from strategies.core.recipe import guarantees
from userdp.accounting import Privacy, Relation, Unit
from userdp.data.shape import Shape
from userdp.problems import Problem

ROOT = Path(__file__).resolve().parents[2]
Strategy = type[Recipe]
USERS = 4000
SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=1.0, target_range=(-1.0, 1.0))
SETTINGS = ("relation", "sampling", "batches")
"""That decide how cohorts are drawn, and with it which neighbours a promise is about."""
RELATIONS: dict[Relation, str] = {"replace_one": "replacing one", "add_or_remove": "adding or removing one"}

LIST = """\
# Strategies

Each name is a `strategy.kind` of a configuration and a class of `strategies`; its page says when to take it and when
not, what it promises and why, what it costs, and what can be set. `userdp advise FILE` ranks them for a run by what
their plans predict, and [compare strategies](../compare-strategies.md) on data. What the promises mean:
[guarantees](../guarantees.md).

This page and those it leads to are made by `docs/make.py` from the strategies' classes, `docs/making/examples.toml`
and what the examples there reached.
"""
EXAMPLE = """\
The run of the picture, of a few seconds. With this file as `{name}.toml`

```toml
{toml}```

a command shows all its numbers without training, and another one trains; so do the lines of Python.

```
userdp plan {name}.toml
userdp run {name}.toml
```

```python
from userdp import train

model = train("{name}.toml")
print(model)
```
"""
_HEAD = "| strategy | what it does | protects | needs |\n|---|---|---|---|"


def pages() -> dict[str, str]:
    """Path of a page in the repository -> what it should hold."""
    listed = [LIST, *(_chapter(chapter, members) for chapter, members in chapters())]
    return {"docs/strategy/README.md": "\n".join(listed)} | {
        f"docs/strategy/{name}.md": page(name, one) for name, one in STRATEGIES.items()
    }


def _advice(name: str, strategy: Strategy) -> list[str]:
    """When to take it, when not, and what it needs."""
    advice = example_of(name)
    leave = [f"**When not.** {courses.fill(advice.leave)}\n"] if advice.leave else []
    others = "[Compare](../compare-strategies.md) it with others on data like yours."
    return [f"{courses.fill(advice.take)}\n", *leave, f"It needs: {strategy.about.needs}. {others}\n"]


def _chapter(chapter: Chapter, members: Sequence[tuple[str, Strategy]]) -> str:
    """Heading, advice and table of related strategies."""
    abouts = [(name, one.about) for name, one in members]
    rows = [
        f"| [{name}]({name}.md) | {about.summary_line} | {about.promise} | {about.needs} |" for name, about in abouts
    ]
    return "\n".join([f"## {chapter.title}\n\n{chapter.when}\n", _HEAD, *rows, ""])


def relations(strategy: Strategy) -> str:
    """For which neighbours it promises: those of its defaults, and the choices of a setting that change them."""
    problem = example_problem(strategy, SHAPE)
    usual = _relation(strategy, problem)
    if usual is None:
        return "none"
    told = [RELATIONS[usual]]
    for name in SETTINGS:
        option = strategy.model_fields.get(name)
        choices = _choices(option.annotation) if option else []
        changed = {choice: _relation(strategy, problem, **{name: choice}) for choice in choices}
        for relation in sorted({one for one in changed.values() if one is not None and one != usual}):
            those = " or ".join(f'`{name} = "{choice}"`' for choice in choices if changed[choice] == relation)
            told.append(f"{RELATIONS[relation]} with {those}")
    return "; ".join(told)


def _choices(annotation: Any) -> list[str]:
    """The texts that a setting may be."""
    parts = get_args(annotation)
    return [one for part in parts for one in ([part] if isinstance(part, str) else _choices(part))]


_OF_PROMISES = ("neighbours differ by", "who may see what", "pure privacy, `delta = 0`")
"""What is said of strategies that promise something."""


def page(name: str, strategy: Strategy) -> str:
    """The page of a strategy."""
    file = Path(inspect.getfile(strategy)).resolve().relative_to(ROOT).as_posix()
    facts = {
        "family": strategy.about.family,
        "source": strategy.about.paper,
        "protects": strategy.about.promise,
        "unit": " or ".join(strategy.about.units),
        "neighbours differ by": relations(strategy),
        "who may see what": strategy.about.adversary,
        "released": {"round": "every iterate", "phase": "the model at the end of each phase"}[strategy.about.release],
        "pure privacy, `delta = 0`": "can be asked for" if strategy.about.pure else "no",
        "needs": strategy.about.needs,
        "cost of a round": strategy.about.cost,
        "secure noise": with_secure_noise(strategy),
        "`output.compare_with_initial`": f"refused: {strategy.about.without_comparison}"
        if strategy.about.without_comparison
        else "can be asked for",
    }
    if strategy.about.promise == "none":
        facts = {key: told for key, told in facts.items() if key not in _OF_PROMISES}
    settings = (
        table(strategy_section(name), skip=["kind", *StrategyOptions.model_fields]) or "It has none of its own.\n"
    )
    parts = [
        f"# {name}\n",
        f"{sentence(strategy.about.summary_line)} `{strategy.__name__}`, `{file}`.\n",
        "## When to take it\n",
        *_advice(name, strategy),
        courses.sentence(name),
        "## An example\n",
        EXAMPLE.format(toml=tomli_w.dumps(configuration(name)), name=name),
        "## What it is\n",
        "\n".join([f"| | {name} |", "|---|---|", *(f"| {key} | {told} |" for key, told in facts.items()), ""]),
        "In costs a node has N samples, there are d parameters, U users take part and K nodes answer. Neighbours are "
        "those of a small run with its defaults and a simple loss.\n",
        "## What is promised\n",
        f"{guarantees(strategy)}\n",
        "More on units, neighbours and who is trusted: [guarantees](../guarantees.md).\n",
        "## Settings\n",
        settings or "It has none of its own.\n",
        "Those that all strategies have: [configuration](../configuration.md#strategy).",
    ]
    return "\n".join([*parts, ""])


def _relation(strategy: Strategy, problem: Problem, **options: str) -> Relation | None:
    """That of a small run; None where nothing is promised."""
    unit: Unit = "user" if strategy.about.units[0] == "user" else "sample"
    public, privacy = PublicFacts(USERS, max_samples=1, samples=USERS), Privacy(20.0, 1e-5, unit)
    guarantee = strategy(problem, public, privacy, **(dict(strategy.about.example) | options)).scheme.guarantee
    return guarantee.relation if guarantee.holds else None
