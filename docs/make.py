"""Every page and picture made from the code: ``python docs/make.py``, or ``--check`` to be told which are stale.

A test fails when a page on disk is not what this makes.
"""

import argparse
from pathlib import Path

from making import (
    audit,
    byzantine,
    concepts,
    configuration,
    core_paper,
    excerpts,
    neural,
    neural_speed,
    papers,
    pictures,
    strategies,
    strategy_pages,
    structure,
    what_leaves,
    zero_tuning,
)
from making.marked import put

ROOT = Path(__file__).resolve().parents[1]


def pages() -> dict[str, str]:
    """Path of a page -> what it should hold."""
    guarantees = {
        "releases": strategies.releases(),
        "strategies": strategies.claims(),
        "secure noise": strategies.secure_noise(),
    }
    in_concepts = {
        "groups": concepts.groups(),
        "epsilons": concepts.epsilons(),
        "cohorts": concepts.cohorts(),
        "relations": concepts.relations(),
        "composition": concepts.composition(),
    }
    written = {
        "README.md": put(_written("README.md"), {"strategies": strategies.table()}),
        "benchmarks/README.md": put(_written("benchmarks/README.md"), {"neural": neural_speed.section()}),
        "docs/architecture.md": put(_written("docs/architecture.md"), {"structure": structure.table()}),
        "docs/audit.md": put(
            _written("docs/audit.md"), {"translation": audit.translation(), "measured": audit.measured()}
        ),
        "docs/bring-a-table.md": put(_written("docs/bring-a-table.md"), {"table": excerpts.table()}),
        "docs/byzantine.md": put(_written("docs/byzantine.md"), {"byzantine": byzantine.section()}),
        "docs/compare-strategies.md": put(_written("docs/compare-strategies.md"), {"grid": excerpts.comparison()}),
        "docs/concepts.md": put(_written("docs/concepts.md"), in_concepts),
        "docs/configuration.md": configuration.page(),
        "docs/guarantees.md": put(_written("docs/guarantees.md"), guarantees),
        "docs/papers/high-dimensional-heavy-tailed.md": put(
            _written("docs/papers/high-dimensional-heavy-tailed.md"),
            {"sparse": papers.by_epsilon("high-dimensional-sparse")},
        ),
        "docs/papers/robust-user-level.md": put(
            _written("docs/papers/robust-user-level.md"),
            {
                "sensitivities": core_paper.sensitivities(),
                "users": core_paper.users(),
                "hard instance": papers.by_epsilon("compare-hard-instance"),
            },
        ),
        "docs/neural.md": put(_written("docs/neural.md"), {"neural": neural.section()}),
        "docs/plan-and-predict.md": put(_written("docs/plan-and-predict.md"), {"plan": excerpts.plan()}),
        "docs/what-leaves.md": what_leaves.page(),
        "docs/zero-tuning.md": put(_written("docs/zero-tuning.md"), {"zero tuning": zero_tuning.section()}),
    }
    drawn = {f"docs/pictures/{name}.svg": svg for name, svg in pictures.pictures().items()}
    return written | strategy_pages.pages() | drawn


def main() -> None:
    """Write the pages that are stale, or name them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page is stale")
    check = parser.parse_args().check
    stale = {path: text for path, text in pages().items() if text != _written(path)}
    if check and stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run: python docs/make.py")
    for path, text in stale.items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)


def _written(path: str) -> str:
    """What is there; nothing of a page that is new."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""


if __name__ == "__main__":
    main()
