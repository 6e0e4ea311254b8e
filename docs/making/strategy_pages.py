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
from strategies.core.recipe import example_problem, guarantees
from userdp.accounting import Privacy, Relation, Unit
from userdp.data.shape import Shape
from userdp.errors import BadInput
from userdp.problems import Problem

ROOT = Path(__file__).resolve().parents[2]
Strategy = type[Recipe]
USERS = 4000
SHAPE = Shape(2, has_target=True, bound=1.0, feature_norm=1.0, target_range=(-1.0, 1.0))
SETTINGS = ("relation", "sampling", "batches")
"""The settings that decide how cohorts are drawn, and with it the relation of the guarantee."""
RELATIONS: dict[Relation, str] = {"replace_one": "replacing one", "add_or_remove": "adding or removing one"}

LIST = """\
# Strategies

Each name is a `strategy.kind` of a configuration and a class of `strategies`. Its page says when to use it and when
not, and gives its guarantee with the reason, its cost and its settings. `userdp advise FILE` ranks the strategies for a
run by the predictions of their plans; [compare strategies](../compare-strategies.md) ranks them on data.
[Guarantees](../guarantees.md) explains the terms.

`docs/make.py` makes this page and the pages of the strategies from the strategies' classes, `docs/making/examples.toml`
and the results of its examples.
"""
EXAMPLE = """\
The run of the picture takes a few seconds. Save this file as `{name}.toml`:

```toml
{toml}```

The first command shows all numbers of the plan without training; the second command and the Python code train.

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
NOTATION = """\
In costs, N is the number of samples of a node, d of parameters, U of users who take part and K of nodes that answer.
The relation is that of a small run with the defaults and a simple loss.
"""
_HEAD = "| strategy | what it does | protects | needs |\n|---|---|---|---|"


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the repository."""
    listed = [LIST, *(_chapter(chapter, members) for chapter, members in chapters())]
    return {"docs/strategy/README.md": "\n".join(listed)} | {
        f"docs/strategy/{name}.md": page(name, one) for name, one in STRATEGIES.items()
    }


def _advice(name: str, strategy: Strategy) -> list[str]:
    """Return when to use a strategy, when not, and its needs."""
    advice = example_of(name)
    needs = (
        f"Requirements: {strategy.about.needs}. [Compare](../compare-strategies.md) it with others on data like yours."
    )
    parts = [advice.take, *([f"**When not.** {advice.leave}"] if advice.leave else []), needs]
    return [f"{courses.fill(part)}\n" for part in parts]


def _chapter(chapter: Chapter, members: Sequence[tuple[str, Strategy]]) -> str:
    """Return the heading, advice and table of related strategies."""
    abouts = [(name, one.about) for name, one in members]
    rows = [
        f"| [{name}]({name}.md) | {about.summary_line} | {about.promise} | {about.needs} |" for name, about in abouts
    ]
    return "\n".join([f"## {chapter.title}\n\n{chapter.when}\n", _HEAD, *rows, ""])


def relations(strategy: Strategy) -> str:
    """Name the relation of a strategy's guarantee by default, and the settings that change it."""
    problem = example_problem(strategy, SHAPE)
    usual = _relation(strategy, problem)
    if usual is None:
        return "none"
    parts = [RELATIONS[usual]]
    for name in SETTINGS:
        option = strategy.model_fields.get(name)
        choices = _choices(option.annotation) if option else []
        changed = {choice: _relation(strategy, problem, **{name: choice}) for choice in choices}
        for relation in sorted({one for one in changed.values() if one is not None and one != usual}):
            settings = " or ".join(f'`{name} = "{choice}"`' for choice in choices if changed[choice] == relation)
            parts.append(f"{RELATIONS[relation]} with {settings}")
    return "; ".join(parts)


def _choices(annotation: Any) -> list[str]:
    """Return the texts that a setting accepts."""
    parts = get_args(annotation)
    return [one for part in parts for one in ([part] if isinstance(part, str) else _choices(part))]


_OF_PROMISES = ("neighbours differ by", "adversaries", "pure privacy, `delta = 0`")
"""The facts that only a strategy with a guarantee has."""


def page(name: str, strategy: Strategy) -> str:
    """Return the page of a strategy."""
    file = Path(inspect.getfile(strategy)).resolve().relative_to(ROOT).as_posix()
    facts = {
        "family": strategy.about.family,
        "source": strategy.about.paper,
        "protects": strategy.about.promise,
        "unit": " or ".join(strategy.about.units),
        "neighbours differ by": relations(strategy),
        "adversaries": strategy.about.adversary,
        "released": {"round": "every iterate", "phase": "the model at the end of each phase"}[strategy.about.release],
        "pure privacy, `delta = 0`": "supported" if strategy.about.pure else "no",
        "needs": strategy.about.needs,
        "cost of a round": strategy.about.cost,
        "secure noise": with_secure_noise(strategy),
        "`output.compare_with_initial`": f"refused: {strategy.about.without_comparison}"
        if strategy.about.without_comparison
        else "supported",
    }
    if strategy.about.promise == "none":
        facts = {key: fact for key, fact in facts.items() if key not in _OF_PROMISES}
    settings = (
        table(strategy_section(name), skip=["kind", *StrategyOptions.model_fields])
        or "It has no settings of its own.\n"
    )
    parts = [
        f"# {name}\n",
        f"{sentence(strategy.about.summary_line)} `{strategy.__name__}`, `{file}`.\n",
        "## When to use it\n",
        *_advice(name, strategy),
        courses.sentence(name),
        "## An example\n",
        EXAMPLE.format(toml=tomli_w.dumps(configuration(name)), name=name),
        "## Overview\n",
        "\n".join([f"| | {name} |", "|---|---|", *(f"| {key} | {fact} |" for key, fact in facts.items()), ""]),
        f"{courses.fill(NOTATION)}\n",
        "## The guarantee\n",
        f"{guarantees(strategy)}\n",
        "[Guarantees](../guarantees.md) explains units, neighbours and trust.\n",
        "## Settings\n",
        settings or "It has no settings of its own.\n",
        "[Configuration](../configuration.md#strategy) lists the settings of all strategies.",
    ]
    return "\n".join([*parts, ""])


def _relation(strategy: Strategy, problem: Problem, **options: str) -> Relation | None:
    """Return the relation of a small run; None without a guarantee, or where the settings do not go together."""
    unit: Unit = "user" if strategy.about.units[0] == "user" else "sample"
    public, privacy = PublicFacts(USERS, max_samples=1, samples=USERS), Privacy(20.0, 1e-5, unit)
    try:
        recipe = strategy(**dict(strategy.about.example) | options)
        guarantee = recipe.strategy(problem, public, privacy, seed=0).scheme.price.guarantee
    except BadInput:  # such as a relation that needs another sampling
        return None
    return guarantee.relation if guarantee.holds else None
