"""Every page and picture made from the code: ``python docs/make.py``, or ``--check`` to be told which are stale.

A test fails when a page on disk is not what this makes. Git ignores the pages and pictures that follow from the code
alone, so that two people's changes do not collide; `make site` makes them, and with ``--gallery`` the reports of
the gallery, which takes most of a minute.
"""

import argparse
from pathlib import Path

from making import (
    audit,
    byzantine,
    coefficients,
    concepts,
    configuration,
    core_paper,
    courses,
    drill,
    drop_in,
    evaluation,
    excerpts,
    finding,
    gallery,
    language,
    neural,
    neural_speed,
    paper_pictures,
    papers,
    papers_index,
    pictures,
    promises,
    queries,
    rounding,
    server_steps,
    sparse_runs,
    speed,
    strategies,
    strategy_pages,
    structure,
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
    }
    in_concepts = {
        "groups": concepts.groups(),
        "epsilons": concepts.epsilons(),
        "cohorts": concepts.cohorts(),
        "relations": concepts.relations(),
        "composition": concepts.composition(),
    }
    written = {
        "README.md": put(_written("README.md"), {"result": user_level.section(), "strategies": strategies.table()}),
        "research/README.md": put(
            _written("research/README.md"),
            {"promises": promises.section(), "neural": neural_speed.section(), **speed.sections()},
        ),
        "docs/architecture.md": put(_written("docs/architecture.md"), {"structure": structure.table()}),
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
        "docs/language.md": put(_written("docs/language.md"), {"language": language.section()}),
        "docs/guarantees.md": put(_written("docs/guarantees.md"), guarantees),
        "strategies/baselines/averaged_clipping/README.md": put(
            _written("strategies/baselines/averaged_clipping/README.md"),
            {
                "linear": papers.by_cell("heavy-tailed-linear"),
                "logistic": papers.by_cell("heavy-tailed-logistic"),
                "closed form": papers.by_sweep("averaged-clipping-closed-form"),
                "cost of the rates": papers.by_sweep("averaged-clipping-rates-cost"),
                "user level": papers.by_sweep("averaged-clipping-user-level"),
                "bias": papers.by_sweep("averaged-clipping-bias"),
                "rates": papers.by_sweep("averaged-clipping-rates"),
                "rate slopes": papers.by_sweep("averaged-clipping-slopes"),
                "tables": papers.by_sweep("averaged-clipping-tables"),
                "times": papers.by_sweep("averaged-clipping-times"),
                "restarts": papers.by_sweep("averaged-clipping-restarts"),
                "runs": papers.by_cell("averaged-clipping-restarts"),
                "rough": papers.by_cell("averaged-clipping-rough"),
                "order": papers.by_sweep("averaged-clipping-order"),
                "truncated": papers.by_sweep("averaged-clipping-truncated"),
            },
        ),
        "strategies/baselines/heavy_tailed/README.md": put(
            _written("strategies/baselines/heavy_tailed/README.md"),
            {
                "slopes": papers.by_sweep("heavy-tailed-slopes"),
                "iterative": papers.by_sweep("heavy-tailed-iterative"),
                "excess": papers.by_sweep("heavy-tailed-excess"),
                "centres": papers.by_sweep("heavy-tailed-centres"),
                "tails": papers.by_sweep("heavy-tailed-tails"),
                "outliers": papers.by_sweep("heavy-tailed-outliers"),
                "starts": papers.by_sweep("heavy-tailed-starts"),
                "skewed": papers.by_sweep("heavy-tailed-skewed"),
                "p = 2": papers.by_cell("heavy-tailed-p2"),
                "p = 3": papers.by_cell("heavy-tailed-p3"),
                "p = 4": papers.by_cell("heavy-tailed-p4"),
                "theorem 6": papers.by_sweep("heavy-tailed-theorem-6"),
                "amplification": papers.by_sweep("heavy-tailed-amplification"),
                "solver": papers.by_sweep("heavy-tailed-solver"),
            },
        ),
        "strategies/baselines/high_dimensional/README.md": put(
            _written("strategies/baselines/high_dimensional/README.md"),
            {
                "truncation": papers.by_sweep("high-dimensional-truncation"),
                "noise": papers.by_sweep("high-dimensional-noise"),
                "choices": papers.by_sweep("high-dimensional-choices"),
                "least squares": papers.by_sweep("high-dimensional-least-squares"),
                "figure 1": papers.by_sweep("high-dimensional-figure-1"),
                "rates": papers.by_sweep("high-dimensional-slopes"),
                "figure 2": papers.by_sweep("high-dimensional-figure-2"),
                "figures 5 and 6": papers.by_sweep("high-dimensional-figures-5-and-6"),
                "figure 7": papers.by_sweep("high-dimensional-figure-7"),
                "figures 10 and 11": papers.by_sweep("high-dimensional-figures-10-and-11"),
                "frank-wolfe": papers.by_cell("high-dimensional-frank-wolfe"),
                "lasso": papers.by_cell("high-dimensional-lasso"),
                "dimension": papers.by_cell("high-dimensional-dimension"),
                "logistic": papers.by_cell("high-dimensional-logistic"),
                "peeling": papers.by_sweep("high-dimensional-peeling"),
                "experiment": papers.by_sweep("high-dimensional-papers-experiment"),
                "scales": papers.by_sweep("high-dimensional-scales"),
                "thresholding": papers.by_sweep("high-dimensional-thresholding"),
                "parameters": papers.by_sweep("high-dimensional-parameters"),
                "means": papers.by_sweep("high-dimensional-means"),
                "sparse": papers.by_cell("high-dimensional-sparse"),
                "sparsity": papers.by_cell("high-dimensional-sparsity"),
            },
        ),
        "docs/papers/robust-user-level.md": put(
            _written("docs/papers/robust-user-level.md"),
            {
                "sensitivities": core_paper.sensitivities(),
                "users": core_paper.users(),
                "rounds": core_paper.rounds(),
                "as written": papers.by_cell("robust-paper"),
                "hard instance": papers.by_cell("compare-hard-instance"),
                "slopes": papers.by_sweep("robust-slopes"),
                "pays": papers.by_sweep("robust-pays"),
                "pieces": papers.by_sweep("robust-pieces"),
                "many samples": papers.by_sweep("robust-samples"),
                "excess": papers.by_sweep("robust-excess"),
                "mixture": papers.by_sweep("robust-hard-instance"),
            },
        ),
        "strategies/baselines/sparse_gradients/README.md": put(
            _written("strategies/baselines/sparse_gradients/README.md"),
            {
                "comparison": papers.by_cell("sparse-gradients"),
                "rates": papers.by_sweep("sparse-rates"),
                "slopes": papers.by_sweep("sparse-slopes"),
                "dimension": papers.by_sweep("sparse-dimension"),
                "means": papers.by_cell("sparse-means"),
                "isometry": papers.by_sweep("sparse-isometry"),
                "recovery": papers.by_sweep("sparse-recovery"),
                "step sizes": papers.by_sweep("sparse-step-sizes"),
                "runs": sparse_runs.bounds(),
                "measured runs": papers.by_cell("sparse-runs"),
                "bias": papers.by_sweep("sparse-bias"),
                "lengths": papers.by_sweep("sparse-lengths"),
                "bounds": papers.by_sweep("sparse-bounds"),
                "one-hot": papers.by_sweep("sparse-one-hot"),
                "two dimensions": papers.by_sweep("sparse-two-dimensions"),
                "biweight": papers.by_cell("biweight"),
                "stationary": papers.by_sweep("sparse-stationary"),
                "optimisation slopes": papers.by_sweep("sparse-optimisation-slopes"),
                "population": papers.by_sweep("sparse-population"),
                "output rates": papers.by_sweep("sparse-output-rates"),
                "output on easy data": papers.by_sweep("sparse-output-easy"),
                "nets": papers.by_sweep("sparse-nets"),
                "choices": papers.by_sweep("sparse-choices"),
                "choice": papers.by_cell("sparse-choice"),
            },
        ),
        "docs/neural.md": put(
            _written("docs/neural.md"),
            {"in short": neural.in_short(), "neural": neural.section(), "server steps": server_steps.section()},
        ),
        "docs/plan-and-predict.md": put(_written("docs/plan-and-predict.md"), {"plan": excerpts.plan()}),
        "docs/what-leaves.md": what_leaves.page(),
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


def _written(path: str) -> str:
    """What is there; nothing of a page that is new."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""


if __name__ == "__main__":
    main()
