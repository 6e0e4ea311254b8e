"""A run that goes on from what another process kept ends as if it had never stopped; nothing secret is drawn twice."""

import json
from functools import partial

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of
from helpers import local_grid

from strategies import STRATEGIES, model_vector
from strategies.auto.preparation import LearnCoordinates
from strategies.core.options import PreparedOptions
from strategies.core.resuming import Resumed
from strategies.core.snapshots import Snapshot
from strategies.core.plan import PublicFacts
from userdp.accounting import Privacy
from userdp.errors import BadInput
from userdp.noise import SecureNoise
from userdp.problems import Quadratic

USERS = 400
FACTORISATIONS = ("tree", "banded", "banded_inverse_square_root", "banded_inverse", "buffered")
SECURE = [name for name, kind in STRATEGIES.items() if kind.without_secure_noise is None]
CASES = {
    **{name: (name, {}) for name in STRATEGIES},
    **{f"dp_ftrl, {kind}": ("dp_ftrl", {"factorisation": kind, "rounds": 7}) for kind in FACTORISATIONS},
    **{
        f"adaptive_clipping, {kind}": ("adaptive_clipping", {"server_optimiser": kind, "rounds": 4})
        for kind in ("momentum", "adam")
    },
    **{f"{kind}, sampled": ("dp_fed_sgd", {"sampling": kind, "rounds": 4}) for kind in ("poisson", "allocation")},
    **{f"stopped_sgd, {kind}": ("stopped_sgd", {"output": kind, "gap": 1.0}) for kind in ("average", "random")},
    **{
        f"localized_robust_sgd, {kind}": ("localized_robust_sgd", {"radius": 1.0, "test": kind})
        for kind in ("above_threshold", "min_score")
    },
    "non_private, accelerated": ("non_private", {"rounds": 5, "learning_rate": 0.1}),
    "compared": ("dp_fed_sgd", {"rounds": 3, "compare_with_initial": True}),
    "prepared": ("dp_fed_sgd", {"rounds": 3, "preparation": LearnCoordinates}),
    "prepared and compared": ("dp_ftrl", {"rounds": 3, "preparation": LearnCoordinates, "compare_with_initial": True}),
}


class Kept:
    """Keeps everything in the form of a file: JSON text and arrays."""

    def __init__(self):
        self.kept, self.asked = [], {}

    def ask(self, taken):
        self.asked[len(self.kept)] = stored(taken)

    def keep(self, take, *, must):
        self.kept.append(stored(take()))


class Killed(BaseException):
    """The process ends here."""


def stored(taken):
    return Snapshot(json.loads(json.dumps(taken.values, allow_nan=False)), taken.arrays)


def method_of(name, noise="seeded", **options):
    fields = STRATEGIES[name].Options.model_fields
    known = {key: value for key, value in (("deviation", 1.0),) if key in fields}
    unit = STRATEGIES[name].units[0]
    return STRATEGIES[name](
        problem_of(name),
        PublicFacts(USERS, min_samples=1, max_samples=1, samples=USERS),
        Privacy(8.0, 1e-4, unit, allow_large_delta=True, noise=noise),
        **options_of(name) | known | options,
    )


def trained(method, **start):
    """Every number that a run hands out, but for seconds: models, records, what is spent."""
    models = []
    with local_grid(method.original, halves(method.original, USERS)) as grid:
        result = method.start(grid, **start)
    for record in result.rounds:
        values = record.as_dict() | {"seconds": None, "spent": record.spent_epsilon}
        models.append({name: str(value) for name, value in values.items()})
    ledger = None if method._ledger is None else method._ledger.state()
    return {
        "model": model_vector(result.arrays).tobytes(),
        "rounds": models,
        "guarantee": result.guarantee,
        "initial": result.initial_metrics,
        "ledger": None if ledger is None else {name: np.asarray(value).tobytes() for name, value in ledger.items()},
        "spent": method.spent_epsilon,
        "evaluated": {number: dict(one) for number, one in result.evaluate_metrics_serverapp.items()},
        "missing": {number: dict(one) for number, one in result.train_metrics_clientapp.items()},
    }


def measured(server_round, arrays):
    from flwr.app import MetricRecord

    return MetricRecord({"first": float(model_vector(arrays)[0]), "round": float(server_round)})


@pytest.mark.sweep(8)
@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_to_the_bit_from_every_round(case):
    name, options = CASES[case]
    keeper = Kept()
    whole = trained(method_of(name, **options), evaluate_fn=measured, keeper=keeper)
    assert len(keeper.kept) == len(whole["rounds"]) + 1
    assert not keeper.asked  # what a seed draws is drawn again
    for kept in keeper.kept if len(keeper.kept) < 12 else keeper.kept[:: len(keeper.kept) // 8]:
        assert trained(method_of(name, **options), evaluate_fn=measured, resumed=Resumed(kept)) == whole
