"""A run that goes on from what another process kept ends as if it had never stopped; nothing secret is drawn twice."""

import contextlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import resumable
from helpers import federation_of, local_grid
from helpers import run as started
from resumable import PAIRS, RUNS, Kept, Run, bits, kept_by, measured, strays, written

from simulations.engines.grids import LocalGrid
from strategies import STRATEGIES, Step
from strategies.core.run_state import BEGUN, Resumed
from userdp.errors import BadInput, RunFailed
from userdp.mechanisms import toeplitz
from userdp.mechanisms.toeplitz import FACTORISATIONS
from userdp.mechanisms.toeplitz_search import Buffers
from userdp.noise import SecureNoise
from userdp.snapshots import Snapshot
from userdp.state import Stateful, state_of

USERS = resumable.USERS
SECURE = [name for name, kind in STRATEGIES.items() if kind.about.without_secure_noise is None]
SEVERAL = {"localized_robust_sgd": {"phases": 3}}  # its example plans a single round


def method_of(name, noise="seeded", **options):
    return Run(name, options, noise=noise).method()


def trained(method, **start):
    return Run(method.name).trained(method, **start)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("case", RUNS)
def test_a_run_goes_on_to_the_bit_from_every_round(case):
    run, keeper = RUNS[case], Kept()
    whole = run.trained(evaluate_fn=measured, keeper=keeper)
    assert len(keeper.kept) == len(whole["rounds"]) + 1
    assert strays(run, keeper.kept) == []
    if run.noise == "secure":
        return
    assert not keeper.asked  # what a seed draws is drawn again
    for kept in (keeper.kept[len(keeper.kept) // 2], keeper.kept[-1]):
        assert run.trained(evaluate_fn=measured, resumed=Resumed(kept)) == whole


def test_a_prepared_run_goes_on_with_its_memory_and_its_ledger():
    """Its own rounds begin once, whether the process ended before, at or after the end of the preparation."""
    run, keeper = RUNS["prepared and compared"], Kept()
    whole = run.trained(keeper=keeper)
    for kept in keeper.kept:
        assert run.trained(resumed=Resumed(kept)) == whole


def test_a_constant_that_was_released_is_compared_with_after_a_resume():
    method, again = method_of("dp_fed_sgd"), method_of("dp_fed_sgd")
    constant = method.state.x + 0.25
    method.state.take(Step(method.state.x, method.state.x, constant=constant), None, method.original)
    again.state.resume(Resumed(resumable.stored(method.state.snapshot(0))), again.noise_of("own", 0))
    np.testing.assert_array_equal(again.state.constant, constant)


def test_adam_on_a_module_goes_on_after_its_steps():
    """No class is looked up: the optimiser of the default strategy once was, among those that happened to be there."""
    run = RUNS["auto, torch_bce, replace_one"]
    kept = kept_by(run, rounds=4)
    assert kept[4].get("own")["memory"]["optimiser"]["_steps"] == 2
    assert bits(kept_by(run, kept[3], rounds=1)[1]) == bits(kept[4])


@pytest.mark.sweep(12)
@pytest.mark.parametrize("case", PAIRS)
def test_every_strategy_goes_on_with_every_problem(case):
    """The run resumes from its start, its middle and its end; every memory resumes from every round above."""
    run = PAIRS[case]
    try:
        run.method()
    except BadInput:
        return  # it refuses such a loss, so there is nothing to go on
    kept = kept_by(run)
    assert strays(run, kept, {0, len(kept) // 2, len(kept) - 1}) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_fresh_process_goes_on_from_every_round(tmp_path):
    """It imports what going on imports; the process that kept all this imported more.

    Every memory there is, `auto` on every kind of problem, and every strategy on a module; the other pairs are above.
    """
    pairs = {name: run for name, run in PAIRS.items() if (run.strategy == "auto") != (run.problem == "torch_bce")}
    for name, run in (RUNS | pairs).items():
        with contextlib.suppress(BadInput):  # a strategy refuses such a loss
            run.method()
            written(kept_by(run), tmp_path / f"{name}.npz")
    path = os.pathsep.join([str(Path(resumable.__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, resumable.__file__, tmp_path],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{len(list(tmp_path.iterdir()))} runs resumed"]


@pytest.mark.parametrize(
    ("kind", "searched"),
    [("banded", "best_diagonals"), ("banded_inverse", "best_inverse"), ("buffered", "best_buffers")],
)
def test_a_run_goes_on_with_the_factorisation_it_began_with_where_a_search_finds_another(kind, searched, monkeypatch):
    """The last digits differ as on another machine: the rows of two matrices together are no factorisation."""
    run = RUNS[f"dp_ftrl, {kind}"]
    kept, found = kept_by(run), getattr(toeplitz, searched)
    began = FACTORISATIONS[kind](7, 7)
    began = [began.encoder(), began.noise()]

    def elsewhere(rounds, separation):
        terms = found(rounds, separation)
        if kind == "buffered":
            return Buffers(0.9 * terms.scales, terms.decays)
        return (terms[0], *(0.9 * term for term in terms[1:]))

    monkeypatch.setattr(toeplitz, searched, elsewhere)
    assert run.method().scheme.mechanism.standard_deviation != kept[0].get("own")["memory"]["mechanism"]["deviation"]
    again = kept_by(run, kept[2])
    assert len(again) > 3
    went_on = FACTORISATIONS[kind](7, 7)
    for one, other in zip(began, [went_on.encoder(), went_on.noise()], strict=True):
        one.add(np.ones(2))
        other.restore(one.state())
        np.testing.assert_array_equal(
            [other.add(np.ones(2)) for _ in range(5)], [one.add(np.ones(2)) for _ in range(5)]
        )
    for one, expected in zip(again, kept[2:], strict=True):
        assert str(one.get("own")["memory"]) == str(expected.get("own")["memory"])
        np.testing.assert_array_equal(one.get("x"), expected.get("x"))


# --- Classes that forget ----------------------------------------------------------------------------------------------


class Forgetful(Stateful):
    remembered = ("total",)

    def __init__(self):
        self.total, self.steps = 0.0, 0


class Strange(Stateful):
    remembered = ("total",)

    def __init__(self):
        self.total = {1, 2}


class Nested(Stateful):
    parts = ("inner",)

    def __init__(self):
        self.inner = object()


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (Forgetful(), r"Forgetful\.steps is not declared.* list 'steps' in Forgetful\.remembered"),
        (Strange(), r"Strange\.total holds a set, which a checkpoint cannot hold"),
        (Nested(), r"Nested\.inner holds a object, which does not declare"),
        (object(), r"the server's memory, a object, does not declare its attributes"),
    ],
)
def test_a_memory_that_forgets_is_refused_when_the_run_starts(memory, told):
    method = method_of("dp_fed_sgd", rounds=3)
    method.program.own.memory = memory
    with pytest.raises(BadInput, match=told):
        method.start(None)  # nobody is asked


# --- Rounds under way -------------------------------------------------------------------------------------------------


def resumed_after(name, done, **options):
    """(what was kept, asked and trained) of a run whose process was killed after it had asked round ``done + 1``."""
    keeper = Kept()
    whole = trained(method_of(name, "secure", **options), keeper=keeper)
    assert sorted(keeper.asked) == list(range(len(keeper.kept)))  # each before its round is kept
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


@pytest.mark.parametrize(
    ("sampling", "sized"), [("poisson", "cohort"), ("fixed_size", "cohort"), ("allocation", "participations")]
)
def test_who_was_drawn_for_a_lost_round_stays_drawn(sampling, sized):
    """Drawn anew, users would take part more often than they are charged."""
    options = {"sampling": sampling, "rounds": 4, sized: 2}
    resumed, _ = resumed_after("dp_fed_sgd", 1, **options)
    method = method_of("dp_fed_sgd", "secure", **options)
    method.state.resume(resumed, method.noise_of("own", 0))
    drawn = str(resumed.asked.get("drawn"))
    assert drawn == str(state_of(method.program.own.drawn)) != str(resumed.kept.get("own")["drawn"])
    method.scheme.sampler.cohort(1)
    assert str(state_of(method.program.own.drawn)) == drawn


@pytest.mark.parametrize("kind", FACTORISATIONS)
def test_a_lost_round_of_correlated_noise_releases_no_row_with_earlier_rounds_data_again(kind, monkeypatch):
    options = {"factorisation": kind, "rounds": 4}
    resumed, whole = resumed_after("dp_ftrl", 1, **options)
    drawn, gaussian = [], SecureNoise.gaussian
    monkeypatch.setattr(SecureNoise, "gaussian", lambda *given: drawn.append(1) or gaussian(*given))
    method, fed = method_of("dp_ftrl", "secure", **options), []
    encoder = type(method.memory.mechanism._encoder)

    def noted(encoder, row, add=encoder.add):
        if encoder is method.memory.mechanism._encoder:
            fed.append(row.copy())
        return add(encoder, row)

    monkeypatch.setattr(encoder, "add", noted)
    again = trained(method, resumed=resumed)
    assert len(drawn) == 2  # rounds 3 and 4
    assert [row.any() for row in fed] == [False, True, True]  # their rows are the third and the fourth
    assert again["ledger"] == whole["ledger"]


def test_a_phase_whose_last_round_was_lost_does_not_end_a_second_time(monkeypatch):
    resumed, whole = resumed_after("localized_clipping", 1)  # of three phases of two rounds
    drawn, gaussian = [], SecureNoise.gaussian
    monkeypatch.setattr(SecureNoise, "gaussian", lambda *given: drawn.append(1) or gaussian(*given))
    again = trained(method_of("localized_clipping", "secure"), resumed=resumed)
    assert len(drawn) == 2
    assert again["ledger"] == whole["ledger"]


def test_one_test_of_all_rounds_whose_round_was_lost_counts_as_failed():
    options = {"test": "above_threshold", "rounds": 3}
    resumed, _ = resumed_after("robust_rounds", 1, **options)
    again = trained(method_of("robust_rounds", "secure", **options), resumed=resumed)
    assert [one["round"] for one in again["rounds"]] == ["1", "2"]


def test_a_checkpoint_from_before_the_round_that_was_asked_last_is_refused():
    keeper = Kept()
    trained(method_of("dp_fed_sgd", "secure", rounds=4), keeper=keeper)
    old = Resumed(keeper.kept[1], keeper.asked[3])
    with pytest.raises(RunFailed, match=r"round 3 was asked before .* the checkpoint is older than round 2"):
        trained(method_of("dp_fed_sgd", "secure", rounds=4), resumed=old)


def test_a_round_is_lost_that_was_asked_after_the_rest_of_a_phase_was_skipped():
    """Its users disagree, so the test stops the phase before, whose other rounds ask nobody and keep nothing."""
    options = {"phases": 2, "test": "above_threshold", "batch": 100}
    features = np.where(np.arange(USERS)[:, None] % 2, 1.0, -1.0) * np.ones(2)
    keeper, method = Kept(), method_of("localized_robust_sgd", "secure", **options)
    data = federation_of(features, targets=features[:, 0] if method.problem.has_targets else None)
    started(method, data, keeper=keeper)
    skipped = [
        Resumed(before, keeper.asked[number])
        for number, before in enumerate(keeper.kept, 1)
        if number in keeper.asked and keeper.asked[number].get("round") > before.get("round") + 1
    ]
    assert skipped
    again = started(method_of("localized_robust_sgd", "secure", **options), data, resumed=skipped[0])
    lost = skipped[0].asked.get("round")
    assert [record.round for record in again.rounds if record.missing_users] == [lost]


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
        expected = [("asked", BEGUN)] * secure + [("kept", 0, True)]
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
    for kind, factorisation in FACTORISATIONS.items():
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


def of_own(kept, part):
    return dict(kept.values["own"]["dict"])[part]


def rewritten(kept, part, written):
    """Give a part of what the strategy's own rounds remember another value."""
    pairs = kept.values["own"]["dict"]
    kept.values["own"] = {"dict": [[name, written if name == part else value] for name, value in pairs]}


def without(memory, key):
    return {"dict": [pair for pair in memory["dict"] if pair[0] != key]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda kept: kept.values.pop("round"), "holds no 'round' that can be read: resume with the version"),
        (lambda kept: kept.values.update(round="2"), "is of round '2', and the run plans 3: resume with the config"),
        (lambda kept: kept.values.update(round=99), "is of round 99, and the run plans 3: resume with the config"),
        (lambda kept: kept.values.update(x={"list": [1.0]}), "model 'x' is no vector of 2 numbers"),
        *(
            (lambda kept, name=name, dtype=dtype: kept.add(name, np.zeros(2, dtype)), f"model '{name}' is no vector")
            for name in ("x", "released", "initial")
            for dtype in (np.float32, np.int64)
        ),
        (lambda kept: kept.add("released", np.zeros(3)), "model 'released' is no vector of 2 numbers"),
        (lambda kept: rewritten(kept, "memory", {"object": ["Popen", {}]}), "holds no 'own' that can be read"),
        (lambda kept: rewritten(kept, "memory", None), "keep different memory"),
        (lambda kept: rewritten(kept, "memory", {"list": [], "more": 1}), "holds no 'own' that can be read"),
        (lambda kept: rewritten(kept, "memory", {"system": "true"}), "holds no 'own' that can be read"),
        (
            lambda kept: rewritten(kept, "memory", without(of_own(kept, "memory"), "_first")),
            r"does not fit ServerOptimiser \(KeyError\): resume with the version",
        ),
        (lambda kept: kept.values.update(records=[{}]), "does not fit this run"),
        (lambda kept: kept.values.update(records={"list": [{"dict": [["round", 1]]}]}), "does not fit this run"),
        (lambda kept: rewritten(kept, "ledger", {"dict": []}), "does not fit this run"),
        (lambda kept: kept.arrays.clear(), "that can be read: resume with the version"),
    ],
)
def test_what_another_version_or_another_run_wrote_is_refused_and_not_called_damaged(change, told):
    keeper = Kept()
    trained(method_of("dp_fed_sgd", rounds=3), keeper=keeper)
    kept = Snapshot(json.loads(json.dumps(keeper.kept[2].values)), dict(keeper.kept[2].arrays))
    change(kept)
    with pytest.raises(BadInput, match=told) as refused:
        trained(method_of("dp_fed_sgd", rounds=3), resumed=Resumed(kept))
    assert "damaged" not in str(refused.value)


def test_a_lost_round_is_said_to_be_skipped(caplog):
    resumed, _ = resumed_after("dp_fed_sgd", 2, rounds=3)
    with caplog.at_level(logging.WARNING, "userdp"):
        trained(method_of("dp_fed_sgd", "secure", rounds=3), resumed=resumed)
    assert (
        "round 3 had begun when the run was killed; it is charged and skipped, because drawing its noise again would "
        "be a second release"
    ) in caplog.messages


def test_a_strategy_that_has_run_is_not_resumed():
    keeper, method = Kept(), method_of("dp_fed_sgd", rounds=3)
    trained(method, keeper=keeper)
    with pytest.raises(BadInput, match="has run already"):
        trained(method, resumed=Resumed(keeper.kept[1]))
