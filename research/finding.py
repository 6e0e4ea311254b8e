"""The worth of facts found privately: `auto` with declared facts against found ones, and quantiles beside OpenDP's.

Facts are found and models trained on four fifths of the people, and measured on the others: the share by which the
model reduces the squared error of their own mean (R2), in units of the target, whose range differs between the two.
``python research/finding.py --json research/results/finding.json``; the tables are those of `userdp.data.load_public`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import softmax

from simulations import find, train
from userdp.data import public_file
from userdp.mechanisms import UserQuantile

DELTA, SHARE = 1e-6, 0.25  # delta of each part; the share of epsilon that facts get
TABLES: dict[str, dict[str, Any]] = {
    "insteval": {
        "user": "s",
        "numbers": {"studage": [2, 8], "lectage": [1, 6], "y": [1, 5]},
        "words": {"service": [0, 1], "dept": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15]},
        "target": "y",
    },
    "chem97": {
        "user": "school",
        "numbers": {"gcsescore": [0, 8], "age": [-6, 5], "score": [0, 10]},
        "words": {"gender": ["F", "M"]},
        "target": "score",
    },
}
"""Public table -> its columns, with the facts that its documentation declares."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="splits, each with noise of its own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    arguments = parser.parse_args()
    report = {
        "models": [row for name in TABLES for row in models(name, arguments.seeds)],
        "quantiles": [quantile(share, epsilon) for epsilon in (0.5, 2.0) for share in (0.05, 0.5, 0.95)],
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


def models(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield, for each total epsilon, the median R2 with declared facts and with found ones, and the found facts."""
    table, frame = TABLES[name], pd.read_parquet(public_file(name, None))
    for epsilon in (2.0, 8.0):
        r2: dict[str, list[float]] = {"declared": [], "found": []}
        for seed in range(seeds):
            people = np.random.default_rng(seed).permutation(frame[table["user"]].unique())
            held_out = frame[table["user"]].isin(people[: len(people) // 5])
            here, there = frame[~held_out], frame[held_out]
            users = {"user": table["user"], "all_users": here[table["user"]].nunique()}
            found = find(
                here,
                **users,
                numbers=[*table["numbers"]],
                words=[*table["words"]],
                target=table["target"],
                max_samples=False,
                epsilon=SHARE * epsilon,
                delta=DELTA,
                seed=seed,
            )
            r2["declared"].append(_r2(here, there, epsilon, seed, users | _declared(table)))
            r2["found"].append(_r2(here, there, (1 - SHARE) * epsilon, seed, found.settings))
        yield {
            "table": name,
            "users": users["all_users"],
            "epsilon": epsilon,
            "for_facts": SHARE * epsilon,
            **{f"r2_{kind}": median(values) for kind, values in r2.items()},
            "declared_ranges": table["numbers"],
            "found_ranges": found.settings["ranges"] | {table["target"]: found.settings["target_range"]},
            "declared_levels": {column: len(levels) for column, levels in table["words"].items()},
            "found_levels": {column: len(levels) for column, levels in found.settings["categorical"].items()},
        }


def _declared(table: Mapping[str, Any]) -> dict[str, Any]:
    target, ranges = table["target"], dict(table["numbers"])
    bounds = ranges.pop(target)
    columns = {"features": [*ranges], "ranges": ranges, "categorical": table["words"]}
    return {**columns, "target": target, "target_range": bounds}


def _r2(here: pd.DataFrame, there: pd.DataFrame, epsilon: float, seed: int, settings: Mapping[str, Any]) -> float:
    budget = {"epsilon": epsilon, "delta": DELTA, "seed": seed}
    off = {"output": {"reference": False}, "test_fraction": 0.0, "progress": False}
    model = train(here, problem={"kind": "squared", "radius": 4.0}, **budget, **off, **settings)
    wanted = there[settings["target"]].to_numpy(dtype=np.float64)
    errors = model.predict(there)["prediction"].to_numpy(dtype=np.float64) - wanted
    return float(1 - np.mean(errors**2) / np.var(wanted))


def quantile(share: float, epsilon: float, users: int = 2000, draws: int = 2000) -> dict[str, float]:
    """Compare mean errors: users between the quantile and the chosen bin (ours, exactly) or candidate (OpenDP's).

    One grid, whose bins hold half a user near the median, one pure epsilon and one relation.
    """
    import opendp.prelude as dp  # noqa: PLC0415 -- optional

    dp.enable_features("contrib")
    values, grid = np.sort(np.random.default_rng(0).lognormal(3, 1, users)), np.geomspace(0.1, 1e5, 20_001)
    mechanism = UserQuantile(share, epsilon, "add_or_remove")
    scores = mechanism.scores(np.arange(users), values, grid).values
    ours = -softmax(epsilon * scores / (2 * mechanism.sensitivity)) @ scores
    theirs = dp.m.make_private_quantile(
        dp.vector_domain(dp.atom_domain(T=float, nan=False)),
        dp.symmetric_distance(),
        dp.max_divergence(),
        candidates=grid.tolist(),
        alpha=share,
        scale=2 * mechanism.sensitivity / epsilon,
    )
    listed = values.tolist()
    errors = np.abs(np.searchsorted(values, [theirs(listed) for _ in range(draws)]) - share * users)
    error = float(errors.std() / np.sqrt(draws))
    return {"share": share, "epsilon": epsilon, "ours": float(ours), "opendp": float(errors.mean()), "error": error}


if __name__ == "__main__":
    main()
