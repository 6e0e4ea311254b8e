"""The checks at the drill's end, by independent computations; each raises an AssertionError that says why."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.optimize import brentq
from scipy.stats import norm

from simulations.records.released_fields import all_fields

Row = Mapping[str, Any]
LEFT = ("model.npz", "result.json", "guarantee.json", "report.html")
ROUNDING = 1e-6
"""Relative, of delta: the accountant rounds up, and so does this."""


def delta_of(distance: float, epsilon: float) -> float:
    """The delta of a Gaussian whose means lie so many deviations apart (Balle, Wang 2018, theorem 8)."""
    near, far = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
    return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far))


def distance_of(epsilon: float, delta: float) -> float:
    return float(brentq(lambda distance: delta_of(distance, epsilon) - delta, 1e-3, 50, xtol=1e-12))


def no_account_is_overdrawn(accounts: Sequence[Row], entries: Sequence[Row]) -> None:
    """The squared distances of all promises of an account add up to no more than its total allows."""
    assert accounts
    for account in accounts:
        promises = [json.loads(entry["promises"]) for entry in entries if entry["account"] == account["name"]]
        squared = math.fsum(distance_of(one["epsilon"], one["delta"]) ** 2 for parts in promises for one in parts)
        spent = delta_of(math.sqrt(squared), account["epsilon"]) if squared else 0.0
        assert spent <= account["delta"] * (1 + ROUNDING), f"{account['name']} is overdrawn: delta {spent}"


def every_run_has_ended(queue: Sequence[Row], wanted: int, refused: Collection[int]) -> None:
    """No run is missing, each ended for a reason, and those that exceed the budget are the ones that were refused."""
    assert [row["number"] for row in queue] == list(range(1, wanted + 1)), "runs of the queue are missing"
    for row in queue:
        assert row["state"] in ("done", "refused", "failed"), f"run {row['number']} is {row['state']}"
        assert row["state"] == "done" or row["reason"], f"nothing says why run {row['number']} {row['state']}"
    assert {row["number"] for row in queue if row["state"] == "refused"} == set(refused), "the wrong runs are refused"


def each_run_left_what_it_promised(queue: Sequence[Row], entries: Sequence[Row], results: Path, rounds: int) -> None:
    """A run that is done left model, guarantee and report, under one entry of its price; a refused one left nothing."""
    of_token = {entry["token"]: entry for entry in entries}
    assert len(of_token) == len(entries)
    for row in queue:
        folder, number = results / str(row["folder"]), row["number"]
        if row["state"] == "refused":
            assert row["token"] not in of_token, f"run {number} is refused and charged"
            assert not any((folder / name).exists() for name in LEFT), f"run {number} is refused and left a release"
            continue
        entry = of_token.pop(row["token"])
        assert entry["place"] == f"/results/{row['folder']}"
        if row["state"] != "done":
            continue
        missing = [name for name in LEFT if not (folder / name).is_file()]
        assert not missing, f"run {number} left no {missing}"
        assert (results / "released" / row["folder"] / "report.html").is_file(), f"run {number}: no report for others"
        guarantee, (promise,) = json.loads((folder / "guarantee.json").read_text()), json.loads(entry["promises"])
        assert guarantee["holds"], f"run {number} released a model without a guarantee"
        assert guarantee["epsilon"] <= promise["epsilon"] * (1 + ROUNDING), f"run {number} spent more than its entry"
        assert guarantee["delta"] <= promise["delta"], f"run {number} has a larger delta than its entry"
        assert json.loads((folder / "result.json").read_text())["rounds"] == rounds
    assert not of_token, "something is charged that is no run of the queue"


def silos_were_missing(results: Path, rounds: int, users: int) -> None:
    """The faults did strike: silos of so many users each were missing in so many rounds of all runs, or in more."""
    left = [json.loads(path.read_text()) for path in results.glob("*-drill/result.json")]
    missing = sum(result["missing_users_private"] for result in left)
    assert missing >= rounds * users, f"the faults cost {missing} users' answers, and should cost {rounds * users}"


def nothing_private_is_in(texts: Mapping[str, str], marks: Collection[str]) -> None:
    """No mark of a person, and no field that only the holder of the data may see."""
    private = {field.name.rpartition(".")[2] for field in all_fields() if field.kind == "private"}
    assert private
    assert marks
    for place, text in texts.items():
        found = sorted(word for word in {*marks, *private} if word and word in text)
        lines = [line[:300] for line in text.splitlines() if any(word in line for word in found)][:5]
        assert not found, f"{place} shows {found}: {lines}"
