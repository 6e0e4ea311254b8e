"""Runs and audits enter their account before they ask anybody, once, and are refused beyond its total."""

import json
import re
import shutil

import pytest
from examples import COMPARISON, altered, broken, changed, table_section, write_table
from helpers_killed import killed_at

import simulations.records.checkpoints
from simulations.account.accounts import Accounts
from simulations.account.entering import enter_run
from simulations.audit.many_runs import audit
from simulations.audit.one_run import audit_one_run
from simulations.comparison.config import parse_comparison
from simulations.config.run_config import parse_config
from simulations.engines.grids import InMachineGrid, LocalGrid
from simulations.records.run_directory import TOKEN, resumable
from simulations.runs.build import make_plan
from simulations.runs.run import run
from simulations.runs.silos import prepare, silo_node
from simulations.serving.keeper import checked
from userdp.accounting import Total, calibrate_noise
from userdp.errors import BadInput, RunFailed

QUIET = {"output": {"reference": False, "anyway": True}}


def distance(epsilon, delta):
    return calibrate_noise(epsilon, delta, 1) ** -2


@pytest.fixture
def registry(accounts):
    """An account of (8, 1e-5), as a function that reads it."""
    Accounts(accounts).create("registry", Total(8.0, 1e-5))
    return lambda name="registry": Accounts(accounts).read(name)


def config_of(**settings):
    return parse_config(changed(privacy__account="registry", **(QUIET | settings)))


def test_a_run_is_on_the_disk_before_anybody_is_asked(registry, tmp_path, monkeypatch):
    asked, send = [], InMachineGrid.send_and_receive

    def checked(self, messages, *arguments, **more):
        asked.append(len(registry().entries))
        return send(self, messages, *arguments, **more)

    monkeypatch.setattr(InMachineGrid, "send_and_receive", checked)
    run(config_of(), directory=tmp_path / "run", report=False)
    assert set(asked) == {1}
    (entry,) = registry().entries
    assert (entry.what, entry.place) == ("small: dp_fed_sgd", str(tmp_path / "run"))
    told = json.loads((tmp_path / "run" / TOKEN).read_text())
    assert told == {"account": "registry", "token": entry.token, "settings": told["settings"], "resumes": True}


def test_a_run_beyond_the_total_asks_nobody_and_writes_nothing(registry, tmp_path, monkeypatch):
    run(config_of(privacy__epsilon=7.0), directory=tmp_path / "first", report=False)
    monkeypatch.setattr(InMachineGrid, "send_and_receive", lambda *_, **__: pytest.fail("somebody was asked"))
    config = config_of(output={"directory": str(tmp_path / "runs")}, privacy__noise="secure")
    for directory in (None, tmp_path / "first", tmp_path / "second"):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("**/*.json")}
        with pytest.raises(BadInput, match=r"account = 'registry': a run of epsilon = 4.* exceeds what is left: set"):
            run(config, directory=directory, report=False)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("**/*.json")} == before
    assert [path.name for path in (tmp_path / "runs").iterdir()] == []
    assert not (tmp_path / "second").exists()
    assert len(registry().entries) == 1
    with pytest.raises(BadInput, match="no account 'another'"):
        run(altered(config, privacy__account="another"), report=False)


def test_a_plan_warns_of_a_run_beyond_the_total_and_enters_nothing(registry, tmp_path):
    config = config_of(privacy__epsilon=7.0)
    assert make_plan(config).warnings == make_plan(altered(config, privacy__account=None)).warnings
    run(config, directory=tmp_path / "first", report=False)
    *_, warning = make_plan(config).warnings
    assert re.match(
        r"this run would be refused: privacy.account = 'registry': a run of epsilon = 7.* to at most", warning
    )
    assert len(registry().entries) == 1
    *_, warning = make_plan(altered(config, privacy__account="another")).warnings
    assert "there is no account 'another'" in warning


def test_what_writes_over_a_release_is_refused_before_it_is_charged(registry, tmp_path):
    config = config_of(privacy__noise="secure", privacy__epsilon=1.0)
    run(config, directory=tmp_path / "run", report=False)
    with pytest.raises(BadInput, match="cannot be drawn again"):
        run(config, directory=tmp_path / "run", report=False)
    assert len(registry().entries) == 1


@pytest.mark.sweep(3)
@pytest.mark.parametrize("moment", range(0, 24, 2))
def test_a_killed_run_is_charged_once_however_often_it_resumes(registry, tmp_path, monkeypatch, moment):
    monkeypatch.setattr(simulations.records.checkpoints, "SPARING", -1e9)
    config = config_of(strategy={"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 2})
    assert killed_at(config, tmp_path / "run", moment)
    assert len(registry().entries) == 1  # the first moment is the first file that is written
    if not (tmp_path / "run" / TOKEN).exists():
        return  # nobody was asked: the run begins again, and is charged again
    killed_at(config, tmp_path / "run", 3, resume=True)
    run(config, directory=tmp_path / "run", resume=True, checkpoint=True, report=False)
    assert len(registry().entries) == 1


def test_a_run_that_begins_again_is_charged_again(registry, tmp_path):
    config, folder = config_of(privacy__epsilon=1.0), tmp_path / "run"
    run(config, directory=folder, report=False)
    run(config, directory=folder, report=False)
    assert len(registry().entries) == 2
    run(altered(config, privacy__account=None), directory=folder, report=False)
    assert not (folder / TOKEN).exists()
    assert len(registry().entries) == 2


def test_a_copy_of_a_killed_run_does_not_resume_at_its_price(registry, tmp_path):
    config = config_of(privacy__epsilon=1.0)
    assert killed_at(config, tmp_path / "run", 12)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(BadInput, match="in another folder: put the folder back"):
        run(config, directory=tmp_path / "copy", resume=True, report=False)
    run(config, directory=tmp_path / "run", resume=True, report=False)


def test_a_run_that_fails_stays_charged(registry, tmp_path, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(RunFailed):
        run(config_of(), directory=tmp_path / "run", report=False)
    assert len(registry().entries) == 1


PREPARED = {"strategy": {"kind": "dp_fed_sgd", "rounds": 3}, "preparation": "learn"}


def test_parts_of_a_run_are_priced_as_gaussians_where_all_are(registry, tmp_path):
    run(config_of(**PREPARED), directory=tmp_path / "run", report=False)
    (entry,) = registry().entries
    assert len(entry.promises) == 2
    assert sum(one.epsilon for one in entry.promises) == pytest.approx(4.0)
    assert sum(one.delta for one in entry.promises) == pytest.approx(1e-5)
    parts = sum(distance(one.epsilon, one.delta) for one in entry.promises)
    assert entry.price.mu_squared == pytest.approx(parts)
    assert entry.price.mu_squared < distance(4.0, 1e-5)
    assert (entry.price.epsilon, entry.price.delta) == (0.0, 0.0)


def test_held_out_users_who_evaluate_pay_for_the_whole_budget(registry, tmp_path):
    run(config_of(privacy__evaluate=True, **PREPARED), directory=tmp_path / "run", report=False)
    (entry,) = registry().entries
    assert entry.price.mu_squared == pytest.approx(distance(4.0, 1e-5), rel=1e-7)


def test_a_last_comparison_is_no_gaussian(registry, accounts, tmp_path):
    config = config_of(output=QUIET["output"] | {"compare_with_initial": True})
    run(config, directory=tmp_path / "pure", report=False)
    (entry,) = registry().entries  # a pure epsilon, priced as a Gaussian
    assert entry.price.mu_squared > distance(3.8, 1e-5) + 0.03
    Accounts(accounts).create("others", Total(8.0, 1e-5, others=0.5))
    run(altered(config, privacy__account="others"), directory=tmp_path / "others", report=False)
    (entry,) = registry("others").entries
    assert entry.price.epsilon == pytest.approx(0.05 * 4.0)


def test_a_run_with_held_out_users_and_a_comparison_is_priced_by_its_budget(accounts, tmp_path):
    Accounts(accounts).create("registry", Total(8.0, 1e-5, others=0.9))
    settings = {"privacy__evaluate": True, "output": QUIET["output"] | {"compare_with_initial": True}}
    run(config_of(privacy__delta=1e-6, **settings), directory=tmp_path / "run", report=False)
    (entry,) = Accounts(accounts).read("registry").entries
    assert (entry.price.epsilon, entry.price.delta) == (4.0, 1e-6)


def test_a_robust_run_is_charged_for_its_noise_and_its_tests_apart(accounts, tmp_path):
    Accounts(accounts).create("registry", Total(8.0, 1e-5, others=0.2))
    robust = {"kind": "robust_rounds", "deviation": 1.0, "rounds": 2}
    settings = {"data__users": 4000, "privacy__delta": 1e-6, "strategy": robust}
    run(config_of(**settings), directory=tmp_path / "run", report=False)
    (entry,) = Accounts(accounts).read("registry").entries
    assert entry.promises[0].epsilon == pytest.approx(4.0, rel=1e-3)
    assert 0 < entry.price.epsilon < 0.5
    assert 0 < entry.price.delta < 1e-6
    assert 0 < entry.price.mu_squared < distance(4.0, 1e-6)


def test_a_sample_level_run_and_one_without_a_guarantee_are_refused(registry, tmp_path):
    for strategy, more, reason in (
        ({"kind": "non_private"}, {}, "without a privacy guarantee has no price"),
        ({"kind": "sample_clipped_sgd"}, {"privacy__unit": "sample", "data__samples": 2400}, "protects whole users"),
    ):
        with pytest.raises(BadInput, match=reason):
            run(config_of(strategy=strategy, **more), directory=tmp_path / "run", report=False)
    assert not (tmp_path / "run").exists()
    assert registry().entries == ()


# Deployments --------------------------------------------------------------------------------------------------------


def deployable(tmp_path, **settings):
    people = write_table(tmp_path / "clinic.csv")
    raw = changed(
        problem={"kind": "logistic"},
        data=table_section(people, users=60, samples=240, test_fraction=0.0),
        privacy__noise="secure",
        privacy__delta=1e-3,
        **(QUIET | settings),
    )
    return parse_config(raw)


def deployed(tmp_path, folder, *, silos=1, resume=False, **settings):
    config = deployable(tmp_path, **settings)
    prepare(config, tmp_path / "silo", 0)
    problem = config.problem.build(config.data.sample_shape, 0)
    with LocalGrid([silo_node(config, problem, tmp_path / "silo") for _ in range(silos)]) as grid:
        how = {"deployed": True, "checkpoint": True, "resume": resume}
        return run(config, grid=grid, directory=tmp_path / folder, report=False, **how)


def test_a_deployment_enters_an_account_of_its_data_that_holds_one_run(accounts, tmp_path):
    deployed(tmp_path, "first", strategy={"kind": "auto"})
    account = Accounts(accounts).read("clinic")
    assert account.total.epsilon == pytest.approx(4.0)
    assert len(account.entries) == 1
    with pytest.raises(BadInput, match=r"privacy.account = 'clinic': .* nothing is left for Gaussian noise"):
        deployed(tmp_path, "second", strategy={"kind": "auto"})
    assert not (tmp_path / "second").exists()


def test_a_deployment_that_failed_before_it_asked_begins_again_at_no_further_cost(accounts, tmp_path):
    with pytest.raises(RunFailed, match="claimed"):
        deployed(tmp_path, "first", silos=2)  # both have the same people
    assert resumable(tmp_path / "first")
    deployed(tmp_path, "first", resume=True)
    assert len(Accounts(accounts).read("clinic").entries) == 1
    assert not resumable(tmp_path / "first")


def test_a_deployment_that_is_no_gaussian_gets_an_account_of_that_kind(accounts, tmp_path):
    deployed(tmp_path, "first", output=QUIET["output"] | {"compare_with_initial": True})
    total = Accounts(accounts).read("clinic").total
    assert (total.others, total.epsilon) == (1.0, pytest.approx(4.0))


def test_a_deployment_that_promises_nothing_to_users_is_refused_rather_than_not_entered(accounts, tmp_path):
    sample_level = {"strategy": {"kind": "sample_clipped_sgd", "rounds": 2}, "privacy__unit": "sample"}
    config = deployable(tmp_path, **sample_level)
    with pytest.raises(BadInput, match="would promise nothing to whole users"):
        run(config, grid=LocalGrid([]), directory=tmp_path / "first", report=False, deployed=True)
    assert not (tmp_path / "accounts.sqlite").exists()


# Audits, comparisons, Python ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_audit_of_made_up_people_is_not_charged(registry):
    audit(config_of(), runs=200, workers=0)
    assert registry().entries == ()


def test_an_audit_of_one_s_own_users_is_charged_for_all_its_runs(accounts):
    Accounts(accounts).create("registry", Total(20.0, 1e-5))
    config = config_of()
    audit_one_run(config, canaries=20)
    (entry,) = Accounts(accounts).read("registry").entries
    assert entry.what == "small: audit of dp_fed_sgd, 5 runs"
    assert entry.price.mu_squared == pytest.approx(5 * distance(4.0, 1e-5), rel=1e-3)
    with pytest.raises(BadInput, match="exceeds what is left"):
        audit_one_run(altered(config, privacy__epsilon=20.0), canaries=20)


def test_a_comparison_refuses_an_account():
    with pytest.raises(BadInput, match=r"privacy\.account: a comparison also trains without privacy"):
        parse_comparison(COMPARISON | {"privacy": COMPARISON["privacy"] | {"account": "registry"}})


def test_a_run_whose_token_was_written_down_before_is_charged_once(registry, tmp_path):
    for _ in range(2):
        config = config_of()
        enter_run(config, checked(config), tmp_path / "run", token="written-before")
    assert [entry.token for entry in registry().entries] == ["written-before"]
