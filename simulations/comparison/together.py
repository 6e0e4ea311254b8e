"""What all runs of a comparison cost the same people together: each run is calibrated to the whole budget by itself."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.comparison.cells import Cell
from simulations.reports.explain import NOTHING_PROMISED, shown_promise


def together(cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each source of real people that several runs were trained on, what these cost together.

    Synthetic people are drawn anew from the seed, and are nobody.

    *Formal guarantees.* *Claim.* The models of the counted runs, released together, would be (epsilon, delta)-DP for
    replacing one user, or one sample if some of them protect samples only; epsilon is the sum of the runs', delta too.
    *Why.* Each counted run promises (e_i, d_i) for replacing one: its own guarantee, or what one for adding or removing
    means for replacing (`add_or_remove_to_replace_one`). A promise for a user covers each sample of that user. A run
    that does not read the replaced user's data, because its seed holds the user out, promises (0, 0) for them. Basic
    composition adds up (Dwork, Roth 2014, Theorem 3.16). *Assumptions.* Those of each run; every run draws noise of its
    own, which runs of one seed in a simulation do not; one person stands in one source. Measured metrics are not
    covered.

    Args:
        cells: of the comparison.
        rows: of results.parquet, one a cell.

    Returns:
        source, runs (that promise something), others (finished runs that promise nothing), unit, epsilon and delta, and
        the least number of users of these runs.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell, row in zip(cells, rows, strict=True):
        if (source := _source(cell.raw["data"])) is not None and row["holds"] is not None:
            found.setdefault(source, []).append(row)
    return [one for source, own in found.items() for one in _sum(source, own)]


def _source(data: Mapping[str, Any]) -> str | None:
    """The people of a [data] section: a file, or a public data set; None where they are made up."""
    if data["kind"] == "synthetic":
        return None
    return Path(data["path"]).name if "path" in data else str(data.get("name", data["kind"]))


def _sum(source: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    kept = [row for row in rows if row["holds"]]
    if len(kept) > 1:
        yield {
            "source": source,
            "runs": len(kept),
            "others": len(rows) - len(kept),
            "unit": "sample" if any(row["unit"] == "sample" for row in kept) else "user",
            "epsilon": sum(float(row["replace_one_epsilon"]) for row in kept),
            "delta": min(1.0, sum(float(row["replace_one_delta"]) for row in kept)),
            "users": min(int(row["users"]) for row in kept),
        }


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """A line for people from each entry of comparison.json; comparisons of earlier versions have none."""
    return [_sentence(one) for one in summary.get("together", ())]


def _sentence(one: Mapping[str, Any]) -> str:
    whom = "one whole user" if one["unit"] == "user" else "one single sample"
    others = f"; {one['others']} more promise nothing" if one["others"] else ""
    cost = shown_promise(one["epsilon"], one["delta"], one.get("users", 1))
    cost = cost if cost == NOTHING_PROMISED else f"at most {cost}"
    return (
        f"{one['runs']} runs on the same people ({one['source']}): with independent noise together {cost}, for "
        f"replacing {whom}{others}; other runs on these people add to it (simulation: nothing was released)"
    )
