"""The coverage of intervals of `auto`'s hazard ratios, on made-up cohorts whose hazards are proportional.

Times are grouped into periods, hazards change from period to period, and people leave at random. The true coefficients
are known.

    python research/hazards.py                       all settings into results/hazards.csv (10 minutes of one core)
    python research/hazards.py --repetitions 2 --periods 5 --covariates 3

Each finished setting is written at once.
"""

import argparse
import csv
import itertools
import logging
from pathlib import Path

import numpy as np
import pandas as pd

from simulations import train
from userdp.arrays.types import Vector

RESULTS = Path(__file__).resolve().parent / "results" / "hazards.csv"
PERIODS, COVARIATES, USERS, EPSILON, DELTA = (5, 20), (3, 10), 5000, 4.0, 1e-6
FIELDS = ("periods", "covariates", "repetitions", "events", "given", "covered", "error")


def truth(covariates: int) -> Vector:
    """Return the (k,) logarithms of hazard ratios, per 1 of covariates in [-1, 1]."""
    return np.linspace(-0.8, 0.8, covariates)


def cohort(covariates: int, periods: int, seed: int) -> pd.DataFrame:
    """Draw a person a row: covariates, the time until an event or until the person leaves, and which of the two."""
    rng = np.random.default_rng([seed, periods, covariates])
    features = rng.uniform(-1, 1, (USERS, covariates))
    levels = 0.4 / periods * np.exp(0.5 * np.sin(np.linspace(0, 5, periods)))
    hazards = -np.expm1(-levels * np.exp(features @ truth(covariates))[:, None])
    happens = np.column_stack([rng.random((USERS, periods)) < hazards, np.ones(USERS, dtype=bool)])
    event = happens.argmax(axis=1)  # its period, from 0; the number of periods for none
    leaves = np.ceil(rng.uniform(0.5, 1.6 * periods, USERS))
    frame = pd.DataFrame(features, columns=[f"x{place}" for place in range(covariates)])
    return frame.assign(
        who=np.arange(USERS),
        time=np.where(event < leaves, event + 0.5, leaves),
        event=((event < leaves) & (event < periods)).astype(int),
    )


def measured(covariates: int, periods: int, repetitions: int) -> dict[str, float]:
    """Train on so many cohorts and compare every interval with the truth."""
    names, rows, events = [f"x{place}" for place in range(covariates)], [], []
    for seed in range(repetitions):
        people = cohort(covariates, periods, seed)
        model = train(
            people,
            user="who",
            features=names,
            ranges={name: [-1, 1] for name in names},
            survival={"time": "time", "event": "event", "periods": list(range(periods + 1))},
            problem="cloglog",
            strategy={"kind": "auto", "coefficients": 0.5},
            epsilon=EPSILON,
            delta=DELTA,
            seed=seed,
            test_fraction=0.0,
        )
        rows.append(model.coefficients().loc[names].assign(truth=truth(covariates)))
        events.append(people["event"].mean())
    found = pd.concat(rows)
    given = found[found["low"].notna()]
    return {
        "periods": periods,
        "covariates": covariates,
        "repetitions": repetitions,
        "events": round(float(np.mean(events)), 3),
        "given": round(len(given) / len(found), 4),
        "covered": round(float(((given["low"] <= given["truth"]) & (given["truth"] <= given["high"])).mean()), 4),
        "error": round(float(given["standard_error"].mean()), 4),
    }


def main() -> None:
    """Measure the settings that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--periods", type=int, choices=PERIODS)
    parser.add_argument("--covariates", type=int, choices=COVARIATES)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    one = asked.periods is not None or asked.covariates is not None
    settings = itertools.product(
        PERIODS if asked.periods is None else (asked.periods,),
        COVARIATES if asked.covariates is None else (asked.covariates,),
    )
    rows = []
    for periods, covariates in settings:
        rows.append(measured(covariates, periods, asked.repetitions))
        print(rows[-1], flush=True)
        if not one:
            with RESULTS.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
