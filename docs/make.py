"""Every page and picture made from the code: ``python docs/make.py``, or ``--check`` to be told which are stale.

A test fails when a page on disk is not what this makes. Git ignores the pages and pictures that follow from the code
alone, so that two people's changes do not collide; `make site` makes them, and with ``--gallery`` the reports of
the gallery, which takes most of a minute. ``--notebooks`` runs the notebooks.
"""

import argparse
from pathlib import Path

from making import (
    audit,
    byzantine,
    coefficients,
    concepts,
    configuration,
    courses,
    drill,
    drop_in,
    embedding_rows,
    evaluation,
    excerpts,
    finding,
    gallery,
    language,
    neural,
    neural_speed,
    notebooks,
    paper_pictures,
    papers_index,
    pictures,
    promises,
    queries,
    rooms,
    rounding,
    server_steps,
    speed,
    strategies,
    strategy_pages,
    user_level,
    what_leaves,
    zero_tuning,
)
from making.marked import put

from userdp.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]


def pages() -> dict[str, str]:
    """Path of a page -> what it should hold."""
    guarantees = {
        "releases": strategies.releases(),
        "rounding": rounding.costs(),
        "strategies": strategies.claims(),
        "secure noise": strategies.secure_noise(),
        "time": strategies.time_of_secure_noise(),
    }
    in_concepts = {
        "groups": concepts.groups(),
        "epsilons": concepts.epsilons(),
        "cohorts": concepts.cohorts(),
        "relations": concepts.relations(),
        "composition": concepts.composition(),
    }
    written = {
        "README.md": put(_written("README.md"), {"result": user_level.section()}),
        "research/README.md": put(
            _written("research/README.md"),
            {
                "promises": promises.section(),
                "neural": neural_speed.section(),
                "server steps": server_steps.section(),
                **speed.sections(),
            },
        ),
        "docs/audit.md": put(
            _written("docs/audit.md"), {"translation": audit.translation(), "measured": audit.measured()}
        ),
        "docs/bring-a-table.md": put(_written("docs/bring-a-table.md"), {"table": excerpts.table()}),
        "docs/byzantine.md": put(
            _written("docs/byzantine.md"), {"byzantine": byzantine.section(), "votes": byzantine.votes()}
        ),
        "docs/coefficients.md": put(
            _written("docs/coefficients.md"), {"coverage": coefficients.coverage(), "tables": coefficients.tables()}
        ),
        "docs/compare-strategies.md": put(_written("docs/compare-strategies.md"), {"grid": excerpts.comparison()}),
        "docs/concepts.md": put(_written("docs/concepts.md"), in_concepts),
        "docs/configuration.md": configuration.page(),
        "docs/drill.md": put(_written("docs/drill.md"), {"drill": drill.section()}),
        "docs/drop-in.md": put(
            _written("docs/drop-in.md"), {"difference": drop_in.difference(), "accuracies": drop_in.accuracies()}
        ),
        "docs/evaluate.md": put(_written("docs/evaluate.md"), {"coverage": evaluation.section()}),
        "docs/find.md": put(_written("docs/find.md"), finding.sections()),
        "docs/query.md": put(_written("docs/query.md"), {"queries": queries.section()}),
        "docs/gallery/README.md": gallery.page(),
        "docs/hazards.md": put(_written("docs/hazards.md"), {"hazards": coefficients.hazards()}),
        "docs/language.md": put(_written("docs/language.md"), {"language": language.section()}),
        "docs/guarantees.md": put(_written("docs/guarantees.md"), guarantees),
        "docs/neural.md": put(
            _written("docs/neural.md"),
            {
                "in short": neural.in_short(),
                "neural": neural.section(),
                "embedding rows": embedding_rows.section(),
                "convention": neural.convention(),
            },
        ),
        "docs/plan-and-predict.md": put(_written("docs/plan-and-predict.md"), {"plan": excerpts.plan()}),
        "docs/what-leaves.md": what_leaves.page(),
        **{room.page: put(_written(room.page), room.parts()) for room in rooms.rooms()},
        "docs/zero-tuning.md": put(_written("docs/zero-tuning.md"), {"zero tuning": zero_tuning.section()}),
    }
    found = pictures.pictures() | paper_pictures.pictures() | speed.pictures()
    drawn = {user_level.PICTURE: found.pop(user_level.NAME)}
    drawn |= {f"docs/pictures/{name}.svg": svg for name, svg in found.items()}
    return written | strategy_pages.pages() | papers_index.pages() | drawn | courses.pictures()


def main() -> None:
    """Write the pages that are stale, or name them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page is stale")
    parser.add_argument("--gallery", action="store_true", help="make its reports, too, if anything changed since")
    parser.add_argument("--notebooks", action="store_true", help="run them, too, and store what their cells give")
    asked = parser.parse_args()
    try:
        stale = {path: text for path, text in pages().items() if text != _written(path)}
    except BadInput as fault:
        raise SystemExit(str(fault)) from None
    if asked.check and stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run: python docs/make.py")
    for path, text in stale.items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)
    if asked.gallery and gallery.make():
        print("docs/gallery/*.html")
    for name in notebooks.store(ROOT / "docs") if asked.notebooks else ():
        print(f"docs/{name}")


def _written(path: str) -> str:
    """The text that is there; empty for a new page."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""


if __name__ == "__main__":
    main()
