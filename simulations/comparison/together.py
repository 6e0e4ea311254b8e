"""The total privacy cost of a comparison's runs on the same users; each run alone is calibrated to the whole budget."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.comparison.cells import Cell
from simulations.reports.explain import NOTHING_PROMISED, shown_promise


def together(cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compute the total cost of the runs on each source of real users with more than one private run.

    Synthetic users are drawn anew from the seed and are not real.

    *Formal guarantees.* *Claim.* The models of the counted runs, released together, would be (epsilon, delta)-DP for
    replacing one user, or one sample if some of the runs protect samples only; epsilon and delta are the sums over the
    runs. *Why.* Each counted run promises (e_i, d_i) for replacing one: its own guarantee, or the one that follows from
    adding or removing (`add_or_remove_to_replace_one`). A promise for a user covers each sample of that user. A run
    that does not read the replaced user's data, because its seed holds the user out, promises (0, 0) for them. Basic
    composition adds up (Dwork, Roth 2014, Theorem 3.16). *Assumptions.* Those of each run; every run draws noise of its
    own, which runs of one seed in a simulation do not; one person is in one source. Measured metrics are not covered.

    Returns:
        source, runs (with a guarantee), others (finished runs without one), unit, epsilon, delta, and users (the fewest
        of a counted run).
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell, row in zip(cells, rows, strict=True):
        if (source := _source(cell.raw["data"])) is not None and row["holds"] is not None:
            found.setdefault(source, []).append(row)
    kept = {source: [row for row in own if row["holds"]] for source, own in found.items()}
    return [
        {
            "source": source,
            "runs": len(counted),
            "others": len(found[source]) - len(counted),
            "unit": "sample" if any(row["unit"] == "sample" for row in counted) else "user",
            "epsilon": sum(float(row["replace_one_epsilon"]) for row in counted),
            "delta": min(1.0, sum(float(row["replace_one_delta"]) for row in counted)),
            "users": min(int(row["users"]) for row in counted),
        }
        for source, counted in kept.items()
        if len(counted) > 1
    ]


def _source(data: Mapping[str, Any]) -> str | None:
    """Name the source of a [data] section: a file, or a public data set; None for synthetic users."""
    if data["kind"] == "synthetic":
        return None
    return Path(data["path"]).name if "path" in data else str(data.get("name", data["kind"]))


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Describe each total cost in comparison.json; comparisons of earlier versions have none."""
    return [_sentence(one) for one in summary.get("together", ())]


def _sentence(one: Mapping[str, Any]) -> str:
    unit = "one whole user" if one["unit"] == "user" else "one single sample"
    others = f"; {one['others']} more runs promise nothing" if one["others"] else ""
    cost = shown_promise(one["epsilon"], one["delta"], one.get("users", 1))
    cost = cost if cost == NOTHING_PROMISED else f"at most {cost}"
    return (
        f"{one['runs']} runs on the same users ({one['source']}): with independent noise their total cost is {cost}, "
        f"for replacing {unit}{others}; further runs on these users add to it (simulation: nothing was released)"
    )
