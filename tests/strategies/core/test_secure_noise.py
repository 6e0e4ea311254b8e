"""Noise of the operating system in strategies and runs: who may use it, and that no seed enters it."""

import json
import math

import numpy as np
import pytest
from any_strategy import options_of
from examples import changed
from helpers import afresh, final, local_grid, make, noise_again, requested, run
from problem_cases import cases

from simulations.comparison.config import parse_comparison
from simulations.config.run_config import parse_config
from simulations.runs.build import make_plan
from simulations.runs.run import run as run_config
from strategies import STRATEGIES
from strategies.baselines.outlier_removal.neighbour_mean import NeighbourMean
from strategies.drop_in import DropInFedAvg
from strategies.wire.questions import Reader
from userdp.accounting import Privacy
from userdp.arrays.sparse_rows import dense
from userdp.data import Block, ColumnarFederation, Gaussian, SyntheticFederation
from userdp.errors import BadInput
from userdp.estimators import Winsorized
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.noise import SecureNoise, SeededNoise, rounding_slack
from userdp.problems import Quadratic
from userdp.streams import SECURE_ASSUMPTIONS

REFUSED = {name for name, strategy in STRATEGIES.items() if strategy.about.without_secure_noise is not None}
ALLOWED = sorted(STRATEGIES.keys() - REFUSED)
OPTIONS = {
    "projected_sgd": {"rounds": 2, "sparsity": 2},
    "winsorized_rotation": {"rounds": 2, "clip_norm": 3.0, "deviation": 1.0},
    "sample_clipped_sgd": {"rounds": 2, "learning_rate": 1e-4},  # else noise fills the domain
}
AGREEING = {"robust_rounds": 8.0, "localized_robust_sgd": 8.0, "outlier_removal": 4.0}
"""Strategies that release nothing unless users agree, which takes more of them, and a radius for them to agree in."""
OPTIONS |= {name: {"radius": radius, "rounds": 2} for name, radius in AGREEING.items()}
OPTIONS["localized_robust_sgd"]["phases"] = 2
USERS, MANY = 60, 300


# --- Strategies ------------------------------------------------------------------------------------------------


def strategy(name, **changes):
    options = {**options_of(name), "rounds": 2, **OPTIONS.get(name, {}), **changes}
    seed = options.pop("seed", 3)
    problem = Quadratic(3, 5.0, 5.0)
    users = MANY if name in AGREEING else USERS
    facts = {"samples": users * 5, "max_samples": 5, "min_samples": 5}
    from strategies import PublicFacts

    privacy = Privacy(4.0, 1e-3, noise=options.pop("noise", "secure"))
    known = {key: value for key, value in options.items() if key in STRATEGIES[name].model_fields}
    return STRATEGIES[name](**known).strategy(problem, PublicFacts(users, **facts), privacy, seed=seed)


@pytest.fixture(scope="module")
def people():
    law = Gaussian(dimension=3, mean=0.5)
    crowds = {users: SyntheticFederation(law, users, seed=1, samples_per_user=5) for users in (USERS, MANY)}
    return {name: crowds[MANY if name in AGREEING else USERS] for name in STRATEGIES}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ALLOWED)
def test_a_strategy_runs_with_secure_noise_which_no_seed_enters(name, people, monkeypatch):
    import userdp.randomness

    real = userdp.randomness.seed_sequence

    def without_noise(seed, role, *labels):
        assert role != "noise"
        return real(seed, role, *labels)

    for module in ("userdp.randomness", "userdp.nodes.computations"):
        monkeypatch.setattr(f"{module}.seed_sequence", without_noise)
    added, noisy = SecureNoise._added, []

    def noted(self, value, scale, make, metric):
        noisy.append(added(self, value, scale, make, metric))
        return noisy[-1]

    monkeypatch.setattr(SecureNoise, "_added", noted)
    methods = [strategy(name) for _ in range(2)]
    results = [run(method, people[name]) for method in methods]
    assert all(np.isfinite(final(result)).all() for result in results)
    first, second = noisy[: len(noisy) // 2], noisy[len(noisy) // 2 :]
    assert first
    assert all((one != two).all() for one, two in zip(first, second, strict=True))
    promised = strategy(name, noise="seeded").plan.guarantee
    assert results[0].guarantee == results[1].guarantee
    assert (results[0].guarantee.epsilon, results[0].guarantee.delta) == (promised.epsilon, promised.delta)
    assert set(SECURE_ASSUMPTIONS["user"]) <= set(results[0].guarantee.assumptions)
    for index in range(2):
        np.testing.assert_array_equal(*(requested(afresh(method), index).users for method in methods))


@pytest.mark.parametrize("name", ALLOWED)
def test_secure_noise_is_added_to_the_value_itself(name, people, monkeypatch):
    """Noise that is drawn for zero and added in floating point afterwards would leak in its last bits."""
    released = []

    def noiseless(self, value, deviation):
        released.append(np.array(value))
        return released[-1].copy()

    monkeypatch.setattr(SecureNoise, "gaussian", noiseless)
    run(strategy(name), people[name])
    assert len(released) >= 2
    assert all(value.any() for value in released)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_strategy_without_a_proof_refuses_secure_noise_before_any_data_is_seen(name):
    section = {"kind": name}
    config = parse_config(changed(strategy=section, privacy__noise="secure"))
    with pytest.raises(BadInput, match=rf"^privacy\.noise = 'secure': {name} has no proof .* because .*'seeded'"):
        make_plan(config)


@pytest.mark.parametrize("name", ALLOWED)
def test_a_guarantee_rests_on_a_seed_where_noise_follows_from_one(name):
    for noise, seeded in (("secure", False), ("seeded", True)):
        told = " ".join(strategy(name, noise=noise).plan.guarantee.assumptions)
        assert ("simulat" in told) == ("seeded" in told) == seeded


def test_each_strategy_gets_the_slack_of_what_it_adds_up():
    assert noise_again(strategy("dp_fed_sgd"), 0) == SecureNoise(rounding_slack(USERS))
    assert noise_again(strategy("dp_ftrl", rounds=4), 1) == SecureNoise(rounding_slack(USERS, 2.0))
    rotation = strategy("winsorized_rotation")
    numbers = rotation.plan.numbers
    longest = (numbers["cells"] + 1) * numbers["interval"] / 2 * math.sqrt(numbers["rotated_dimension"])
    moved = rotation.scheme.mechanism.l2_sensitivity * (USERS // 2)
    assert noise_again(rotation, 0).slack == pytest.approx(
        rounding_slack(USERS // 2, longest / moved, 2.0**-47), rel=1e-12
    )
    assert noise_again(strategy("sample_clipped_sgd"), 0).slack == rounding_slack(USERS)
    by_sample = make(
        STRATEGIES["sample_clipped_sgd"], Quadratic(3, 5.0, 5.0), USERS, 4.0, 1e-3, unit="sample", facts={"samples": 9}
    )
    assert by_sample.scheme.price.summands == 9
    assert noise_again(strategy("dp_fed_sgd", noise="seeded"), 0).slack == 0.0


def test_robust_strategies_get_the_slack_of_their_estimates():
    rounds, removal = strategy("robust_rounds"), strategy("outlier_removal")
    assert noise_again(rounds, 0).slack == rounding_slack(MANY // 2, 1.0, Winsorized(8.0).rounding(MANY // 2))
    assert noise_again(removal, 0).slack == rounding_slack(MANY // 2, 1.0, NeighbourMean(4.0).rounding(MANY // 2, 3))
    assert 2.0**-20 < noise_again(rounds, 0).slack < noise_again(removal, 0).slack < 1e-5


def test_cohorts_whose_robust_means_are_rounded_too_much_are_refused_at_plan_time():
    section = {"kind": "robust_rounds", "rounds": 2, "radius": 1.0}
    data = {"data__users": 10**5, "privacy__delta": 1e-7}
    make_plan(parse_config(changed(**data, strategy=section)))
    with pytest.raises(BadInput, match=r"privacy\.noise = 'secure'.*fewer users per round"):
        make_plan(parse_config(changed(**data, strategy=section, privacy__noise="secure")))


def test_too_many_users_for_float64_sums_are_refused_at_plan_time():
    data = {"data__users": 3 * 10**7, "privacy__delta": 1e-10}
    with pytest.raises(BadInput, match=r"privacy\.noise = 'secure'"):
        make_plan(parse_config(changed(**data, privacy__noise="secure")))


@pytest.mark.sweep(10)
@pytest.mark.parametrize("name", sorted(cases(33)))
def test_computed_one_by_one_users_do_not_touch_each_others_last_bits(name):
    """In one block they do, where one user holds a sample more: matrix products round by shape."""
    case, sizes = cases(33)[name], [5, 9, 1, 7, 8, 3]
    short = case.block(sizes, seed=4)
    end = short.offsets[2]
    positions = np.insert(np.arange(short.samples), end, 0)
    targets = None if short.targets is None else short.targets[positions]
    longer = Block(short.features[positions], short.offsets + (np.arange(7) > 1), targets)
    asked, computation = (case.model(), np.arange(6)), Computation(clip_norm=0.1, separate=True)
    answers = [
        dense(Node(case.problem, ColumnarFederation(block), np.arange(6)).compute(*asked, computation).values)
        for block in (short, longer)
    ]
    others = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(answers[0][others], answers[1][others])
    assert (answers[0][1] != answers[1][1]).any()


def test_a_secure_round_asks_for_users_one_by_one(people):
    for noise in ("secure", "seeded"):
        method, asked = strategy("adaptive_clipping", noise=noise), []
        with local_grid(method.problem, people["adaptive_clipping"]) as grid:
            send = grid.send_and_receive
            grid.send_and_receive = lambda messages, send=send, asked=asked, **how: (
                asked.extend(Reader().request(each)[1] for each in messages if each.metadata.message_type == "train")
                or send(messages, **how)
            )
            method.start(grid)
        assert {computation.separate for computation in asked} == {noise == "secure"}


def test_a_drop_in_strategy_takes_secure_noise():
    assert DropInFedAvg(users=100, epsilon=1.0, delta=1e-3, noise="secure", rounds=2).inner._noise(0).slack > 0
    assert isinstance(DropInFedAvg(users=100, epsilon=1.0, delta=1e-3, rounds=2).inner._noise(0), SeededNoise)


# --- Runs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_secure_runs_of_one_seed_differ_in_noise_and_agree_in_data_and_plan(tmp_path):
    config = parse_config(changed(privacy__noise="secure"))
    outcomes = [run_config(config, directory=tmp_path / str(index)) for index in range(2)]
    assert (outcomes[0].model != outcomes[1].model).all()
    for name in ("plan.json", "data.json", "guarantee.json", "config.toml"):
        assert (tmp_path / "0" / name).read_text() == (tmp_path / "1" / name).read_text()
    assert outcomes[0].result["reference"] == outcomes[1].result["reference"]
    assert outcomes[0].result["reference_private"]["non_private"] is None


@pytest.mark.slow
def test_guarantee_and_report_say_where_noise_came_from(tmp_path):
    for noise in ("seeded", "secure"):
        run_config(parse_config(changed(privacy__noise=noise, strategy__rounds=1)), directory=tmp_path / noise)
    told = {noise: json.loads((tmp_path / noise / "guarantee.json").read_text()) for noise in ("seeded", "secure")}
    assert told["seeded"]["noise"] == "seeded (simulation only: whoever knows the seed removes the noise)"
    assert told["secure"]["noise"].startswith("secure (the operating system's randomness, safe in floating point")
    assert not any("seed" in assumption for assumption in told["secure"]["assumptions"])
    assert set(SECURE_ASSUMPTIONS["user"]) <= set(told["secure"]["assumptions"])
    assert not set(SECURE_ASSUMPTIONS["user"]) & set(told["seeded"]["assumptions"])
    pages = {noise: (tmp_path / noise / "report.html").read_text() for noise in told}
    assert "removes the noise" in pages["seeded"]
    assert "spends the budget again" not in pages["seeded"]
    assert "never seeded" in pages["secure"]
    assert "spends the budget again" in pages["secure"]


def test_a_secure_release_is_never_written_over(tmp_path):
    """A second look may be made only from what was released: the directory refuses any other run."""
    secure, seeded = (parse_config(changed(privacy__noise=noise)) for noise in ("secure", "seeded"))
    run_config(secure, directory=tmp_path, report=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for config in (secure, seeded):
        with pytest.raises(BadInput, match="cannot be drawn again"):
            run_config(config, directory=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_number_behind_its_name_does_not_let_a_secure_run_spend_its_budget_again(tmp_path):
    output = {"directory": str(tmp_path), "reference": False}
    secure, seeded = (parse_config(changed(privacy__noise=noise, output=output)) for noise in ("secure", "seeded"))
    first = run_config(secure, report=False).directory
    assert run_config(seeded, report=False).directory.name == f"{first.name}-2"
    first.rename(tmp_path / f"{first.name}-7")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"seed3-7 holds what a run .* cannot be drawn again"):
            run_config(secure, report=False)
    assert run_config(seeded, report=False).directory.name == f"{first.name}-8"


def test_a_secure_run_that_released_nothing_can_be_run_again(tmp_path):
    config = parse_config(changed(privacy__noise="secure"))
    (tmp_path / "config.toml").write_text(config.toml())
    run_config(config, directory=tmp_path, report=False)
    assert (tmp_path / "result.json").is_file()


def test_a_comparison_refuses_secure_noise():
    raw = {
        "name": "both",
        **{key: changed()[key] for key in ("problem", "data")},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "noise": "secure"},
        "strategy": [{"kind": "dp_fed_sgd"}],
        "seeds": 1,
    }
    with pytest.raises(BadInput, match=r"privacy\.noise: a comparison"):
        parse_comparison(raw)
    raw["privacy"]["noise"] = "seeded"
    parse_comparison(raw)
