"""`userdp audit`: claims under attack, of every strategy there is; and planted mistakes, which must be found.

Seeds are fixed, so a test that passes passes always; bounds of the whole registry hold together with confidence 95%.
"""

import json

import examples
import numpy as np
import pytest
from examples import changed

from simulations import terminal
from simulations.audit.canaries import attacks
from simulations.audit.command import with_strategy
from simulations.audit.instance import CANARIES, Instance, public_sampler
from simulations.audit.many_runs import audit
from simulations.audit.one_run import Canaries, audit_one_run
from simulations.audit.trials import Observer, innovations
from simulations.config.run_config import load_config, parse_config
from strategies import STRATEGIES
from userdp.arrays.sparse_rows import clip_rows
from userdp.audit import Gaussian
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.nodes import pipeline
from userdp.nodes.computations import Computation
from userdp.noise import in_units
from userdp.problems import Softmax

NAMES = [name for name in STRATEGIES if name != "non_private"]
TOGETHER = 1 - 0.05 / len(NAMES)
GAUSSIAN = ["dp_fed_sgd", "dp_fed_avg", "recentred_clipping", "adaptive_clipping", "dp_ftrl"]
GAUSSIAN += ["projected_sgd", "local_dp", "sample_clipped_sgd"]


def config_of(name, epsilon=1.0, delta=1e-5, **options):
    strategy = STRATEGIES[name]
    problem, population = {"kind": "quadratic", "bound": 6.0, "radius": 1.0}, "gaussian"
    if strategy.about.example_problem["kind"] != "quadratic":
        problem, population = dict(strategy.about.example_problem) | {"target_range": [-1.0, 1.0]}, "linear_regression"
    raw = changed(
        name="attacked",
        seed=None,
        problem=problem,
        data={"kind": "synthetic", "population": population, "dimension": 2, "users": 4096, "samples_per_user": 1},
        privacy={"epsilon": epsilon, "delta": delta, "unit": strategy.about.units[0]},
        strategy={"kind": name} | dict(strategy.about.example) | options,
        preparation="none",
    )
    return parse_config(raw)


def instance_of(name, epsilon=1.0, **options):
    return Instance.all_of(config_of(name, epsilon, **options))[0]


# --- Claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_strategy_leaks_more_than_it_claims(name):
    found = audit(config_of(name), runs=200, confidence=TOGETHER, workers=0)
    assert found.measured <= found.guarantee.epsilon
    assert not found.refuted


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", GAUSSIAN)
def test_half_of_what_a_plain_gaussian_strategy_claims_is_shown(name, epsilon):
    found = audit(config_of(name, epsilon), runs=400, workers=0)
    assert found.guarantee.is_one_gaussian
    assert 0.5 * epsilon <= found.measured <= epsilon


@pytest.mark.slow
def test_adding_or_removing_a_user_of_a_secret_cohort_leaks_no_more_than_is_claimed():
    config = config_of("dp_fed_sgd", 8.0, sampling="poisson", cohort=2048)
    found = audit(config, runs=200, workers=0)
    assert found.guarantee.relation == "add_or_remove"
    assert "nobody" in found.attack
    assert 0.5 < found.measured <= found.guarantee.epsilon


# --- Mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp_fed_sgd", "adaptive_clipping"])
def test_half_the_noise_is_found(name, monkeypatch):
    release = GaussianMechanism.release

    def halved(self, value, noise):
        return value + (release(self, value, noise) - value) / 2

    monkeypatch.setattr(GaussianMechanism, "release", halved)
    found = audit(config_of(name, 1.0), runs=300, workers=0)
    assert found.refuted
    assert found.measured > 1.3


@pytest.mark.slow
def test_users_who_are_clipped_too_late_are_found(monkeypatch):
    # A server counts sums that are too large as missing, so these stay below what all users may add up to.
    def too_late(total, rows, clip_norm, lengths):
        total += 1.8 * clip_rows(rows, clip_norm).sum(axis=0)

    monkeypatch.setattr(pipeline, "add_clipped_rows", too_late)
    assert audit(config_of("dp_fed_sgd"), runs=200, workers=0).refuted


@pytest.mark.slow
def test_noise_of_a_strategy_of_the_exponential_mechanism_that_is_missing_is_found(monkeypatch):
    monkeypatch.setattr(
        "userdp.noise.SeededNoise.choose", lambda self, scores, epsilon, flips: np.argmax(in_units(scores), axis=1)
    )
    assert audit(config_of("private_lasso"), runs=200, workers=0).refuted


# --- Instances -------------------------------------------------------------------------------------------------------


def test_an_instance_has_the_cohorts_and_the_noise_of_the_run_and_a_strategy_of_its_own_for_each_seed():
    found, whole = (instance_of("dp_fed_sgd", rounds=8, **more) for more in ({"cohort": 1024}, {}))
    assert found.plan.cohort * 4 == found.facts.users < 4096
    assert [one.plan.numbers["participations"] for one in (found, whole)] == [2, 8]
    assert found.plan.guarantee.epsilon == pytest.approx(1.0, rel=1e-6)
    assert found.strategy(5).noise_seed == 5
    assert found.strategy(5) is not found.template
    assert not found.template.result.rounds


def test_innovations_take_off_what_all_directions_share():
    rng = np.random.default_rng(0)
    fresh = rng.normal(size=(4000, 3))
    mixing = np.array([[5.0, 0.0, 0.0], [2.0, 0.1, 0.0], [-1.0, 3.0, 7.0]])
    np.testing.assert_allclose(innovations(fresh @ mixing.T), fresh, atol=0.25)
    still = np.column_stack([fresh[:, 0], np.zeros(4000)])
    assert np.isfinite(innovations(still)).all()
    np.testing.assert_array_equal(innovations(fresh[:6]), fresh[:6])


def test_there_is_an_instance_for_whatever_noise_follows_from():
    found = Instance.all_of(config_of("dp_fed_sgd"))
    assert {one.problem.columns for one in found} == {2, CANARIES}
    assert min(one.facts.users for one in found) == 1
    assert max(one.facts.min_samples for one in found) == 1000
    assert min(float(one.problem.domain.radius) for one in found) == 1.0
    assert [one.plan.guarantee.epsilon for one in found] == pytest.approx([1.0] * len(found), rel=1e-6)


def attack_of(instance, beginning):
    return next(number for number, one in enumerate(attacks(instance)) if one.name.startswith(beginning))


def test_the_reach_of_an_attack_is_known_from_a_few_runs():
    claimed = Gaussian.of(4.0, 1e-5).membership_accuracy
    found = reach_of(instance_of("dp_fed_sgd", 4.0), "127 canaries at the edge, ")
    assert 0.9 * claimed < found < 1.1 * claimed
    zero = instance_of("projected_sgd", 4.0, clip_norm=1e-300)
    assert reach_of(zero, "a canary at the edge a") < 0.6


def reach_of(instance, beginning):
    attack = attack_of(instance, beginning)
    return Observer.of(instance, attack).reach(3)


def test_norms_that_cut_corners_off_are_reached_along_columns():
    instance = instance_of("projected_sgd", 4.0)
    assert reach_of(instance, "127 canaries at the edge, ") < 0.55
    assert reach_of(instance, "127 canaries at the edge of a column") > 0.6


def test_canaries_come_in_the_first_rounds_that_many_take_part_in():
    instance = instance_of("localized_clipping", 4.0)
    attack = attacks(instance)[attack_of(instance, "127 canaries")]
    assert np.isin(attack.canaries, public_sampler(instance.template).cohort(0)).all()


def test_a_server_that_users_are_protected_from_hears_each_of_them():
    instance = instance_of("local_dp", 4.0)
    assert instance.heard
    number = attack_of(instance, "16 canaries")
    observer = Observer.of(instance, number)
    made = observer.some(range(3))
    assert made.features.shape == (3, 16, instance.plan.rounds)
    assert observer.alike.all()
    assert len(np.unique(made.features)) == made.features.size  # each has noise of its own
    pulled = made.features.mean(axis=2) * made.coins
    deviation = instance.plan.numbers["noise_per_user"]
    assert pulled.mean() == pytest.approx(-1.0, abs=4 * deviation / made.features.size**0.5)


def test_canaries_who_share_a_column_are_not_taken_for_directions_of_their_own():
    instance = instance_of("iterative_mean_sgd", 4.0)
    number = attack_of(instance, "32 canaries")
    made = Observer.of(instance, number).some(range(2))
    np.testing.assert_array_equal(made.features[:, :1, :3], made.features[:, 5:6, :3])
    assert made.features[0, 0, 2] != made.features[1, 0, 2]


def test_too_few_runs_are_refused_and_one_run_asks_for_canaries_and_for_users_who_are_protected():
    for runs in (0, 199):
        with pytest.raises(BadInput, match="runs"):
            audit(config_of("dp_fed_sgd"), runs=runs, workers=0)
    with pytest.raises(BadInput, match="canaries"):
        audit_one_run(wide(), canaries=3)
    with pytest.raises(BadInput, match="user level"):
        audit_one_run(config_of("non_private"), canaries=20)


def test_another_strategy_takes_the_file_s_budget_and_a_unit_that_it_protects():
    config = config_of("dp_fed_sgd", 3.0)
    other = with_strategy(config, "poisson_sample_sgd")
    assert (other.strategy.kind, other.privacy.epsilon) == ("poisson_sample_sgd", 3.0)
    assert other.privacy.unit in STRATEGIES["poisson_sample_sgd"].about.units
    assert with_strategy(config, "dp_fed_sgd") is config


# --- One run ---------------------------------------------------------------------------------------------------------


def wide(sampling="disjoint", epsilon=8.0):
    strategy = {"kind": "dp_fed_sgd", "rounds": 2, "clip_norm": 1.0, "sampling": sampling}
    return parse_config(changed(data__dimension=512, privacy__epsilon=epsilon, strategy=strategy))


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "what"), [("disjoint", "its negative"), ("poisson", "there or not")])
def test_canaries_in_one_run_of_one_s_own_users_are_found_and_bound_epsilon(sampling, what):
    found = audit_one_run(wide(sampling))
    assert found.canaries == 512
    assert what in found.attack
    assert 0.3 < found.measured <= found.guarantee.epsilon


@pytest.mark.slow
def test_one_run_without_noise_is_refuted(monkeypatch):
    monkeypatch.setattr(GaussianMechanism, "release", lambda self, value, noise: value)
    assert audit_one_run(wide(epsilon=1.0)).refuted


def test_canaries_say_nothing_where_an_answer_is_no_gradient():
    """Class shares and the filled share are zeros; only a gradient holds canaries."""
    canaries = Canaries(Softmax(3, 2, 3.0, 1.0), np.arange(2), np.eye(2, 6), np.ones(2, dtype=np.int64), absent=False)
    for asked, length in (
        (Computation("class_shares", "sum", 1.0, arrays={"classes": np.arange(3.0)}), 3),
        (Computation("filled", "sum", 0.5), 2),
    ):
        answer = canaries.compute(np.zeros(6), np.arange(2), asked)
        np.testing.assert_array_equal(answer.values, np.zeros((1, length)))
    gradients = canaries.compute(np.zeros(6), np.arange(2), Computation(reduce="sum", clip_norm=1.0))
    np.testing.assert_allclose(gradients.values, [[1, 1, 0, 0, 0, 0]])


# --- The command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "log_warnings", lambda: None)
    file = tmp_path / "run.toml"
    file.write_text(config_of("dp_fed_sgd", 4.0).toml(), encoding="utf-8")
    return lambda *words: examples.call("audit", file, "--workers", 0, "--output", tmp_path / "audits", *words)


@pytest.mark.slow
def test_the_command_prints_and_writes_claim_measurement_and_what_they_mean(call, tmp_path):
    outcome = call("--runs", 200)
    assert outcome.exit_code == 0, outcome.stderr
    for told in ("stands", "Guarantee.", "without their data"):
        assert told in " ".join(outcome.stdout.split())
    directory = tmp_path / "audits" / "attacked-dp_fed_sgd-audit"
    files = {"audit.json", "config.toml", "report.html", *(f"trade-off.{end}" for end in ("csv", "svg", "png"))}
    assert {one.name for one in directory.iterdir()} == files
    values = json.loads((directory / "audit.json").read_text())
    assert 2.0 < values["measured_epsilon"] <= values["claimed_epsilon"]
    assert values["most_guess_success"]["0.5"] == pytest.approx(0.82, abs=0.02)


@pytest.mark.slow
def test_a_refuted_claim_ends_with_an_exit_code_and_json_holds_nothing_else(call, monkeypatch):
    monkeypatch.setattr(GaussianMechanism, "release", lambda self, value, noise: value)
    outcome = call("--runs", 200, "--json")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["refuted"] is True


def test_contradictory_wishes_and_strategies_without_a_promise_are_sentences(call):
    assert "remove --all or --one-run" in call("--one-run", "--all").stderr
    outcome = call("--set", 'strategy={kind="non_private"}')
    assert outcome.exit_code == 2
    assert "promises nothing" in outcome.stderr


def test_a_preparation_that_no_small_instance_takes_is_refused_with_what_helps():
    with pytest.raises(BadInput, match=r"no small instance to attack with a preparation.*--set preparation=none"):
        Instance.all_of(load_config(examples.SHIPPED["demo"]))
