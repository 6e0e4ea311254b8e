"""A run that goes on from what another process kept ends as if it had never stopped; nothing secret is drawn twice."""

import json

import numpy as np
import pytest
from any_strategy import halves, options_of, problem_of
from flwr.app import MetricRecord
from helpers import federation_of, local_grid

from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES, model_vector
from strategies.auto.preparation import LearnCoordinates
from strategies.core.plan import PublicFacts
from strategies.core.resuming import Resumed
from strategies.core.snapshots import Snapshot
from userdp.accounting import Privacy
from userdp.errors import BadInput
from userdp.mechanisms.factorisations import FACTORISATIONS as FACTORISATIONS_BY_NAME
from userdp.noise import SecureNoise

USERS = 400
FACTORISATIONS = ("tree", "banded", "banded_inverse_square_root", "banded_inverse", "buffered")
SECURE = [name for name, kind in STRATEGIES.items() if kind.without_secure_noise is None]
SEVERAL = {"localized_robust_sgd": {"phases": 3}}  # its example plans a single round
CASES = {
    **{name: (name, {}) for name in STRATEGIES},
    **{f"dp_ftrl, {kind}": ("dp_ftrl", {"factorisation": kind, "rounds": 7}) for kind in FACTORISATIONS},
    **{
        f"adaptive_clipping, {kind}": ("adaptive_clipping", {"server_optimiser": kind, "rounds": 4})
        for kind in ("momentum", "adam")
    },
    **{f"{kind}, sampled": ("dp_fed_sgd", {"sampling": kind, "rounds": 4}) for kind in ("poisson", "allocation")},
    "stopped_sgd, runs": ("stopped_sgd", {"runs": 3}),
    **{f"stopped_sgd, {kind}": ("stopped_sgd", {"output": kind, "gap": 1.0}) for kind in ("average", "random")},
    **{
        f"localized_robust_sgd, {kind}": ("localized_robust_sgd", {"radius": 1.0, "test": kind})
        for kind in ("above_threshold", "min_score")
    },
    "robust_rounds, above_threshold": (
        "robust_rounds",
        {"radius": 1.0, "rounds": 4, "epochs": 4, "test": "above_threshold"},
    ),
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


def resumed_after(name, done, **options):
    """(what was kept, asked and trained) of a run whose process was killed after it had asked round ``done + 1``."""
    keeper = Kept()
    whole = trained(method_of(name, "secure", **options), keeper=keeper)
    assert sorted(keeper.asked) == list(range(1, len(keeper.kept)))  # each before its round is kept
    return Resumed(keeper.kept[done], keeper.asked[done + 1]), whole


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", [name for name in SECURE if name != "auto"])
def test_a_lost_round_is_charged_once_and_holds_nobody_s_data(name, monkeypatch):
    """The same numbers come out whatever the users hold: noise alone, with the noise made none."""
    options = SEVERAL.get(name, {})
    resumed, whole = resumed_after(name, 1, **options)
    for each in ("gaussian", "laplace"):
        monkeypatch.setattr(SecureNoise, each, lambda self, value, scale: np.asarray(value, dtype=np.float64))
    seen = []
    for level in (0.5, -0.5):
        asked, method = [], method_of(name, "secure", **options)
        features = np.full((USERS, 2), level)
        federation = federation_of(features, targets=features[:, 0] if method.problem.has_targets else None)
        with local_grid(method.problem, federation) as grid:
            deliver = grid._deliver
            monkeypatch.setattr(
                grid,
                "_deliver",
                lambda messages, timeout, deliver=deliver, asked=asked: (
                    asked.extend(int(one.metadata.group_id or 0) for one in messages) or deliver(messages, timeout)
                ),
            )
            result = method.start(grid, resumed=resumed, evaluate_fn=measured)
        assert 2 not in asked
        assert {3, *asked} - {0} == set(range(3, method.plan.rounds + 1)) | {3}
        lost = result.rounds[1]
        assert lost.round == 2
        assert lost.missing_users > 0
        assert all(record.missing_users == 0 for record in result.rounds if record.round != 2)
        assert [record.spent_epsilon for record in result.rounds] == [float(one["spent"]) for one in whole["rounds"]]
        seen.append((lost.facts, lost.metrics))
    assert str(seen[0]) == str(seen[1])


def test_under_secure_noise_every_round_must_be_kept(monkeypatch):
    """Asked, sent, kept and handed out in this order, round by round; with seeded noise only the first must be kept."""

    class Told(Kept):
        def ask(self, taken):
            events.append(("asked", taken.get("round")))

        def keep(self, take, *, must):
            events.append(("kept", take().get("round"), must))

    deliver = LocalGrid._deliver

    def heard(self, messages, timeout):
        if number := messages[0].metadata.group_id:  # the roster asks without a round
            events.append(("sent", int(number)))
        return deliver(self, messages, timeout)

    monkeypatch.setattr(LocalGrid, "_deliver", heard)
    for noise in ("secure", "seeded"):
        events = []
        trained(
            method_of("dp_fed_sgd", noise, rounds=2),
            keeper=Told(),
            on_round=lambda record, events=events: events.append(("told", record.round)),
        )
        secure = noise == "secure"
        expected = [("kept", 0, True)]
        for number in (1, 2):
            expected += [("asked", number)] * secure + [("sent", number), ("kept", number, secure), ("told", number)]
        assert events == expected


def test_a_round_that_was_kept_is_not_lost():
    """A kill between a round's end and the next question."""
    keeper = Kept()
    whole = trained(method_of("dp_fed_sgd", "secure", rounds=3), keeper=keeper)
    for done in (2, 3):
        resumed = Resumed(keeper.kept[done], keeper.asked[done])
        again = trained(method_of("dp_fed_sgd", "secure", rounds=3), resumed=resumed)
        assert again["rounds"][:done] == whole["rounds"][:done]
        assert all(one["missing_users"] == "0" for one in again["rounds"])


def test_seeded_rounds_are_never_lost():
    keeper = Kept()
    whole = trained(method_of("dp_fed_sgd", rounds=3), keeper=keeper)
    asked = Snapshot()
    asked.add("round", 2)
    assert trained(method_of("dp_fed_sgd", rounds=3), resumed=Resumed(keeper.kept[1], asked)) == whole


def test_leaving_out_a_participation_never_moves_correlated_sums_further():
    """Rows up to the lost one with it, later rows without: never further than all rows with it."""
    rng = np.random.default_rng(0)
    for kind, factorisation in FACTORISATIONS_BY_NAME.items():
        made = factorisation(12, 3)
        for order in range(3):
            changes = np.zeros((12, 2))
            changes[order::3] = rng.normal(size=(len(changes[order::3]), 2))
            changes /= np.maximum(np.linalg.norm(changes, axis=1, keepdims=True), 1e-12)
            for lost in range(order, 12, 3):
                made_rows, without = made.encoder(), made.encoder()
                rows = []
                for index, change in enumerate(changes):
                    full = made_rows.add(change)
                    rest = without.add(np.zeros(2) if index == lost else change)
                    rows.append(full if index <= lost else rest)
                assert np.linalg.norm(rows) <= made.sensitivity(12) * (1 + 1e-12), kind


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.values.pop("round"),
        lambda kept: kept.values.update(round="2"),
        lambda kept: kept.values.update(round=99),
        lambda kept: kept.values.update(x={"list": [1.0]}),
        lambda kept: kept.values.update(memory={"object": ["Popen", {}]}),
        lambda kept: kept.values.update(memory={"given": None, "more": 1}),
        lambda kept: kept.values.update(memory={"system": "true"}),
        lambda kept: kept.values["memory"]["object"][1].update(_first={"given": None, "float": "1"}),
        lambda kept: kept.values.update(records=[{}]),
        lambda kept: kept.values.update(records={"list": [{"dict": [["round", 1]]}]}),
        lambda kept: kept.values.update(ledger={"dict": []}),
        lambda kept: kept.arrays.clear(),
    ],
)
def test_what_is_no_checkpoint_is_refused(damage):
    keeper = Kept()
    trained(method_of("dp_fed_sgd", rounds=3), keeper=keeper)
    kept = Snapshot(json.loads(json.dumps(keeper.kept[2].values)), dict(keeper.kept[2].arrays))
    damage(kept)
    with pytest.raises(BadInput, match="damaged"):
        trained(method_of("dp_fed_sgd", rounds=3), resumed=Resumed(kept))


def test_a_strategy_that_has_run_is_not_resumed():
    keeper, method = Kept(), method_of("dp_fed_sgd", rounds=3)
    trained(method, keeper=keeper)
    with pytest.raises(BadInput, match="has run already"):
        trained(method, resumed=Resumed(keeper.kept[1]))
