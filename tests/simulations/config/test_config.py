import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from any_strategy import options_of
from examples import BASE, SHIPPED, changed, table_section, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.config.run_config import RunConfig, load_config, parse_config, strategy_section
from simulations.runs.build import build_problem, make_plan, public_facts
from strategies.core.recipe import meanings_of
from strategies.registry import STRATEGIES
from userdp.data import POPULATIONS, PUBLIC_DATASETS
from userdp.data.synthetic.source import synthetic_settings
from userdp.data.tables.sources import PublicData, TableData
from userdp.errors import BadInput, MissingAssumption, PopulationTooSmall
from userdp.problems.registry import PROBLEMS

CATEGORIES = {"kind": "synthetic", "population": "categorical", "levels": 3, "users": 9}
ROBUST = {"kind": "localized_robust_sgd"}
MODULE = {"kind": "torch", "loss": "mse", "has_targets": False}
SECURE = {"privacy__noise": "secure"}
CONFIGS = sorted(
    path
    for path in SHIPPED.values()
    if isinstance(tomllib.loads(path.read_text(encoding="utf-8")).get("strategy"), dict)
    and path.stem != "language"  # which needs a model that research/pretrain.py makes: test_language_file.py
)


def refusal(change):
    with pytest.raises(BadInput) as caught:
        parse_config(changed(**change))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def table(**settings):
    return {"data": table_section(Path("absent.csv"), **settings)}


def derived(**settings):
    made = {"kind": "product", "of": ["height", "height"], "range": [0.0, 9.0]} | settings
    return table(derive={"bmi": {key: value for key, value in made.items() if value is not None}})


def counts(**settings):
    return table(target="count", positive=None, **settings)


COUNTS = {"problem": {"kind": "poisson"}} | counts()
TEAMS = {"features": None, "ranges": None, "categorical": None, "codes": "team", "levels": ["red", "blue"]}
SPARSE = {"problem": {"kind": "sparse_squared"}}


def hashed(**settings):
    form = {"codes": ["film", "genre", "year"], "buckets": 40, "target": "rating", "target_range": [0.5, 5.0]}
    return table(features=None, ranges=None, categorical=None, positive=None, **form | settings)


def write(folder, text):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


# What is accepted --------------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_load_plan_and_survive_writing_out(path):
    config = load_config(path)
    assert config.name == path.stem
    assert parse_config(tomllib.loads(config.toml())) == config
    plan = make_plan(config)
    assert plan.guarantee.holds
    assert plan.guarantee.epsilon <= config.privacy.epsilon
    assert not plan.drowned


@settings(max_examples=30)
@given(
    epsilon=st.floats(1e-3, 50),
    delta=st.floats(1e-12, 0.1, exclude_max=True),
    seed=st.integers(0, 2**63 - 1),
    clip=st.floats(1e-6, 1e6),
    radius=st.floats(0.1, float("inf")),
)
def test_any_configuration_reads_back_as_it_was_written(epsilon, delta, seed, clip, radius):
    raw = changed(privacy__epsilon=epsilon, privacy__delta=delta, seed=seed, strategy__clip_norm=clip)
    raw["problem"]["radius"] = radius
    config = parse_config(raw)
    assert parse_config(tomllib.loads(config.toml())) == config


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategys_section_has_exactly_its_options(name):
    assert set(strategy_section(name).model_fields) == set(STRATEGIES[name].model_fields) | {"kind"}
    config = parse_config(changed(strategy={"kind": name}))
    assert config.strategy_options == STRATEGIES[name]().model_dump()


def test_every_setting_is_described():
    sections = [*map(synthetic_settings, POPULATIONS), TableData, PublicData, *PROBLEMS.values()]
    sections += map(strategy_section, STRATEGIES)
    sections += [RunConfig.model_fields[name].annotation for name in ("privacy", "engine", "output")]
    for section in sections:
        for name, field in section.model_fields.items():
            assert field.description or name in ("kind", "population"), (section.__name__, name)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_number_of_a_plan_is_explained(name):
    strategy = STRATEGIES[name]
    raw = changed(strategy={"kind": name} | options_of(name), data__users=20_000, data__samples_per_user=50)
    if strategy.about.example_problem["kind"] != "quadratic":
        raw["problem"] = {"target_range": [-1.0, 1.0], **strategy.about.example_problem}
        raw["data"] |= {"population": "linear_regression"}
    meanings = meanings_of(strategy)
    for number in make_plan(parse_config(raw)).numbers:
        assert meanings.get(number), f"say what {number!r} means in {strategy.__name__}.meanings"


@pytest.mark.parametrize(
    ("problem", "data", "dimension"),
    [
        ({"kind": "linear", "bound": 2.0}, {"population": "gaussian", "dimension": 4}, 4),
        ({"kind": "huber", "bound": 2.0}, {"population": "student_t", "dimension": 1}, 1),
        ({"kind": "bernoulli"}, {"population": "bernoulli", "dimension": 6}, 6),
        ({"kind": "quadratic"}, {"population": "bernoulli", "dimension": 6}, 6),
        ({"kind": "logistic", "ridge": 0.5}, {"population": "logistic_regression", "dimension": 4}, 5),
        ({"kind": "logistic", "intercept": False}, {"population": "logistic_regression", "dimension": 4}, 4),
        ({"kind": "squared", "target_range": [-2.0, 2.0]}, {"population": "linear_regression", "dimension": 4}, 5),
        ({"kind": "poisson", "count_bound": 9.0}, {"population": "poisson_regression", "dimension": 4}, 5),
        ({"kind": "one_hot_logistic"}, {"population": "categorical", "levels": 7}, 7),
        ({"kind": "one_hot_squared"}, {"population": "categorical", "levels": 7}, 7),
        ({"kind": "one_hot_poisson", "count_bound": 9.0}, {"population": "categorical", "levels": 7}, 7),
        (
            {"kind": "torch", "loss": "bce_with_logits", "hidden": [3]},
            {"population": "logistic_regression", "dimension": 4},
            4 * 3 + 3 + 3 + 1,
        ),
    ],
    ids=lambda value: value.get("kind", value.get("population")) if isinstance(value, dict) else None,
)
def test_the_dimension_follows_from_the_declared_data(problem, data, dimension):
    raw = changed(problem=problem, data={"kind": "synthetic", "users": 100, **data})
    assert build_problem(parse_config(raw)).dimension == dimension
    raw["problem"]["dimension"] = dimension
    assert build_problem(parse_config(raw)).dimension == dimension
    raw["problem"]["dimension"] = dimension + 1
    with pytest.raises(BadInput, match=rf"problem.dimension = {dimension + 1}, but .* give {dimension} parameters"):
        build_problem(parse_config(raw))


@pytest.mark.parametrize("wanted", [None, True, False])
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_where_noise_protects_people_nothing_without_privacy_is_computed_or_shown_by_default(noise, wanted):
    config = parse_config(changed(privacy__noise=noise))
    output = config.output.model_copy(update={"reference": wanted, "private_figures": wanted})
    config = config.model_copy(update={"output": output})
    assert config.trains_reference == config.shows_private == (noise == "seeded" if wanted is None else wanted)


def test_a_tables_shape_follows_from_its_declarations_alone():
    problem = build_problem(parse_config(changed(problem={"kind": "logistic"}, **table())))
    # height, three teams, the intercept; |height| <= 1, one team at most, the intercept's 1.
    assert problem.dimension == 5
    assert problem.feature_norm == 3.0
    coded = table(features=None, ranges=None, categorical=None, codes="team", levels=3)
    assert build_problem(parse_config(changed(problem={"kind": "one_hot_logistic"}, **coded))).dimension == 3
    ranged = table(positive=None, target="count", target_range=[0.0, 9.0])
    for problem in (
        build_problem(parse_config(changed(problem={"kind": "squared"}, **ranged))),
        build_problem(parse_config(changed(**SPARSE, **hashed()))),
    ):
        assert (problem.family.low, problem.family.high) == (-1.0, 1.0)
    assert (problem.dimension, problem.sparsity, problem.feature_norm) == (40, 3, 1.0)
    assert build_problem(parse_config(changed(**SPARSE, **hashed(buckets=2)))).sparsity == 2


def test_declared_norms_hold_for_every_sample(tmp_path):
    from simulations.runs.build import load_datasets

    raw = changed(problem={"kind": "logistic"}, data=table_section(write_table(tmp_path / "t.csv")))
    config = parse_config(raw)
    train = load_datasets(config).train
    block = train.block(np.arange(train.users))
    assert np.abs(block.features).sum(axis=1).max() <= config.data.sample_shape.feature_norm
    assert build_problem(config).bound(block)[1] == 0


def test_a_public_data_set_brings_its_columns_and_counts():
    data = parse_config(changed(data={"kind": "public", "name": "males"}, problem={"kind": "logistic"})).data
    assert data.declarations["user"] == "nr"
    assert data.declared_users == 545 - 109
    own = parse_config(
        changed(data={"kind": "public", "name": "males", "features": ["exper"], "ranges": {"exper": [0.0, 20.0]}})
    ).data
    assert own.sample_shape.columns == 1
    assert own.declarations["positive"] == "yes"
    other = parse_config(
        changed(data={"kind": "public", "name": "males", "target": "wage", "target_range": [0.0, 3.0]})
    )
    assert "positive" not in other.data.declarations
    assert PUBLIC_DATASETS["males"].columns["positive"] == "yes"


# Overrides ---------------------------------------------------------------------------------------------------------


def test_overrides_set_dotted_keys_with_toml_values_or_bare_words(tmp_path):
    path = write(tmp_path, parse_config(BASE).toml())
    config = load_config(
        path, ["privacy.epsilon=2", "name = renamed", "seed=9", "engine.kind=ray", "data.mean=[1, 2.5, 3]"]
    )
    assert (config.privacy.epsilon, config.name, config.seed, config.engine.kind) == (2.0, "renamed", 9, "ray")
    assert config.data.mean == [1.0, 2.5, 3.0]
    replaced = load_config(path, ['strategy={kind="non_private", rounds=7}'])
    assert (replaced.strategy.kind, replaced.strategy.rounds) == ("non_private", 7)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("privacy.epsilon", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("privacy..epsilon=3", "write it as section.key=value"),
        ("name.first=x", "name holds a value, not a section"),
        ("privacy.epsilonn=1", "unknown key privacy.epsilonn; did you mean privacy.epsilon?"),
    ],
)
def test_overrides_that_cannot_be_meant_are_refused(tmp_path, override, told):
    with pytest.raises(BadInput, match=re.escape(told)):
        load_config(write(tmp_path, parse_config(BASE).toml()), [override])


def test_data_paths_are_relative_to_the_configuration_file(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    folder.mkdir()
    raw = changed(problem={"kind": "logistic"}, data=table_section(Path("data.csv")))
    write(folder, parse_config(raw).toml())
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/run.toml").data.path == str(folder / "data.csv")


# What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"privacy__epsilonn": 1.0}, "unknown key privacy.epsilonn; did you mean privacy.epsilon?"),
        ({"strategy__clipnorm": 1.0}, "unknown key strategy.clipnorm; did you mean strategy.clip_norm?"),
        ({"problem__raduis": 1.0}, "unknown key problem.raduis; did you mean problem.radius?"),
        ({"nmae": "x"}, "unknown key nmae; did you mean name?"),
        ({"epsilon": 1.0}, "unknown key epsilon; did you mean privacy.epsilon?"),
        ({"strategy__samples_per_user": 5}, "did you mean data.samples_per_user?"),
        ({"zzz": 1}, "unknown key zzz; there are name, seed, problem"),
        ({"engine__zzz": 1}, "unknown key engine.zzz; [engine] knows kind, users_per_node, workers"),
        ({"privacy__epsilon": "one"}, "privacy.epsilon = 'one'"),
        ({"privacy__epsilon": 0}, "privacy.epsilon = 0"),
        ({"privacy__epsilon": -1.0}, "must be greater than 0"),
        ({"privacy__epsilon": float("nan")}, "privacy.epsilon = nan"),
        ({"privacy__epsilon": float("inf")}, "must be a finite number"),
        ({"privacy__delta": -0.1}, "privacy.delta = -0.1"),
        ({"privacy__delta": 1.0}, "must be less than 1"),
        ({"privacy__unit": "house"}, "must be 'user' or 'sample'"),
        ({"privacy": None}, "privacy is missing"),
        ({"privacy": 3}, "must be a section, written [privacy]"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"name": "../escape"}, "name = '../escape'"),
        ({"strategy__kind": "dp_fedsgd"}, "strategy.kind = 'dp_fedsgd' is unknown: did you mean 'dp_fed_sgd'?"),
        ({"strategy__kind": None}, "strategy.kind is missing: choose one of auto, dp_fed_sgd"),
        ({"strategy__rounds": 0}, "strategy.rounds = 0"),
        ({"strategy__rounds": True}, "strategy.rounds = True"),
        ({"problem__kind": "cubic"}, "problem.kind = 'cubic' is unknown"),
        (
            {"problem__kind": "linear_regression"},
            "is unknown: did you mean 'squared'?",
        ),
        ({"problem__kind": "Classification"}, "did you mean 'logistic'?"),
        ({"problem__kind": "multi-class"}, "did you mean 'softmax'?"),
        ({"problem__kind": "count"}, "did you mean 'poisson'?"),
        ({"data__kind": "tabel"}, "data.kind = 'tabel' is unknown: did you mean 'table'?"),
        ({"data__population": "gausian"}, "did you mean 'gaussian'?"),
        ({"data__population": None}, "data.population is missing: choose one of gaussian"),
        ({"data__dimension": None}, "data.dimension is missing: give d, coordinates (features) of a sample"),
        ({"data__users": 0}, "data.users = 0"),
        ({"data__mean": "high"}, "data.mean = 'high'"),
        ({"engine__kind": "spark"}, "engine.kind = 'spark'"),
        ({"engine__timeout": 0.0}, "engine.timeout = 0.0"),
        ({"output__evaluate_every": 0}, "output.evaluate_every = 0"),
        ({"output": {"trackers": ["wandb"]}}, "output.trackers.0 = 'wandb': must be 'mlflow' or 'tensorboard'"),
        (SECURE | {"output": {"reference": True}}, "output.reference = true with privacy.noise = 'secure'"),
        ({"engine": {"kind": "ray", "gpus_per_actor": 0.5}}, "engine.gpus_per_actor = 0.5 with engine.device = 'cpu'"),
        (derived(kind="ratoi"), "data.derive.bmi.kind = 'ratoi'"),
        (derived(of="height"), "data.derive.bmi.of = 'height'"),
        (derived(range=None), "data.derive.bmi.range is missing: give [low, high]"),
        (derived(threshhold=2), "unknown key data.derive.bmi.threshhold; did you mean data.derive.bmi.threshold?"),
    ],
    ids=lambda value: next(iter(value.items())).__repr__()[:60] if isinstance(value, dict) else None,
)
def test_a_bad_setting_gives_one_sentence_with_field_and_value(change, told):
    assert told in refusal(change)


def test_several_problems_give_a_sentence_each():
    with pytest.raises(BadInput) as caught:
        parse_config(changed(privacy__epsilon=-1, strategy__rounds=0, privacy__detla=1))
    assert len(str(caught.value).splitlines()) == 3


def test_a_missing_file_and_a_syntax_error_are_refused(tmp_path):
    written = write(tmp_path, 'name = "x"\nseed = = 3\n')
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for path, told in (
        (tmp_path / "absent.toml", r"absent.toml does not exist"),
        (written, r"is not valid TOML: .*line 2"),
        (tmp_path / "binary.toml", "cannot be read"),
        (tmp_path, "or is a folder"),
    ):
        with pytest.raises(BadInput, match=told):
            load_config(path)


def test_a_file_may_begin_as_editors_of_windows_write_it(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_text(tomli_w.dumps(changed()), encoding="utf-8-sig")
    assert load_config(path) == parse_config(changed())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"problem__bound": None}, "problem.bound is missing"),
        ({"problem": {"kind": "logistic"}}, "problem.feature_norm is missing"),
        ({"problem": {"kind": "one_hot_logistic"}}, "set data.codes"),
        ({"problem": {"kind": "logistic", "feature_norm": 2.0}}, "set data.target"),
        ({"problem": {"kind": "squared", "feature_norm": 2.0}}, "problem.target_range is missing"),
        ({"data__deviation": -1.0}, "data.deviation = -1.0"),
        ({"data__mean": [1.0]}, None),
        ({"engine__device": "auto"}, None),
        ({"data": {"kind": "public", "name": "male"}}, "data.name = 'male' is unknown; did you mean 'males'?"),
        ({"problem": {"kind": "quadratic"}, "data": CATEGORIES}, "needs numeric features"),
        ({"problem": {"kind": "logistic"}, "data": CATEGORIES}, "use problem.kind = 'one_hot_logistic'"),
        (
            {"problem": MODULE | {"module": "no.such:thing"}},
            "problem.module = 'no.such:thing' cannot be imported (ModuleNotFoundError: No module named 'no')",
        ),
        ({"problem": {"kind": "torch", "loss": "mse", "module": "math"}}, "cannot be imported"),
        *(({"problem": {"kind": kind}} | table(), "'squared' to predict it") for kind in ("linear", "quadratic")),
        ({"problem": {"kind": "bernoulli"}} | table(), "use problem.kind = 'logistic'"),
        (COUNTS, "problem.count_bound is missing"),
        (COUNTS | counts(target_range=[1, 9]), "data.target_range = [1, 9]: counts begin at 0; declare [0, 9]"),
        (COUNTS | counts(target_range=[0, "9"]), "problem.count_bound = '9'"),
        (
            {"problem": {"kind": "poisson", "count_bound": 5.0}} | counts(target_range=[0, 9]),
            "data.target_range = [0, 9] and problem.count_bound = 5.0 differ",
        ),
        (table(ranges=None), "[data] ranges has no [low, high]"),
        (SPARSE | hashed(), None),
        ({"problem": {"kind": "squared"}} | hashed(), "'squared' needs dense samples, and the data's are sparse"),
        (SPARSE | hashed(buckets=None), "or buckets to hash a list of columns"),
        (SPARSE | hashed(buckets=0), "data.buckets = 0"),
        (SPARSE | hashed(codes="film"), "buckets = 40: cells are hashed for a LIST of codes"),
        (SPARSE | hashed(levels=3), "levels = 3 has no meaning for hashed codes"),
        ({"engine__device": "cuda"}, "problem.kind = 'quadratic' is computed on the processor"),
    ],
    ids=str,
)
def test_declarations_that_do_not_fit_are_refused_before_any_data(change, told):
    if told is None:
        assert build_problem(parse_config(changed(**change))).dimension in (3, 40)
        return
    with pytest.raises(BadInput, match=re.escape(told)):
        build_problem(parse_config(changed(**change)))


@pytest.mark.parametrize(("kind", "section"), [("poisson", {}), ("one_hot_poisson", TEAMS)])
def test_the_range_of_counts_is_their_bound(kind, section):
    declared = parse_config(changed(problem={"kind": kind}, **counts(target_range=[0, 9], **section)))
    assert declared == parse_config(changed(problem={"kind": kind, "count_bound": 9.0}, **counts(**section)))
    assert parse_config(tomllib.loads(declared.toml())) == declared


def test_a_plan_asks_for_what_is_not_declared(tmp_path):
    raw = changed(problem={"kind": "logistic"}, data=table_section(tmp_path / "absent.csv"))
    with pytest.raises(BadInput, match=r"data.users is missing: a plan reads no data"):
        make_plan(parse_config(raw))
    raw["data"] |= {"users": 1000, "samples": 5000, "max_samples": 10, "min_samples": 2}
    raw["strategy"] = {"kind": "sample_clipped_sgd", "rounds": 3}
    plan = make_plan(parse_config(raw))
    assert plan.users == 1000
    assert "who holds at least 2 samples is public" in plan.guarantee.assumptions
    small = changed(data={"kind": "public", "name": "males", "min_samples": 3}, problem={"kind": "logistic"})
    with pytest.raises(BadInput, match=r"data.users is missing"):
        make_plan(parse_config(small))


def test_public_facts_come_from_declarations():
    tail = parse_config(changed(data__samples_tail=1.5, data__samples=5000))
    facts = public_facts(tail)
    assert (facts.users, facts.min_samples, facts.max_samples, facts.samples) == (400, 6, 600, 5000)
    equal = public_facts(parse_config(BASE))
    assert (equal.users, equal.min_samples, equal.max_samples, equal.samples) == (400, 6, 6, 2400)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"privacy__delta": 0.01}, BadInput, "at least 1/n"),
        ({"data__users": 30, "strategy": ROBUST}, PopulationTooSmall, "data.users = 30: too few"),
        ({"strategy": ROBUST | {"statistic": "median"}}, BadInput, "use statistic = 'trimmed_mean'"),
        ({"strategy": ROBUST, "problem": MODULE | {"outputs": 3}}, MissingAssumption, "A4"),
        ({"privacy__unit": "sample"}, BadInput, "protects user level"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_plan_that_cannot_be_made_says_what_to_change(change, error, told):
    with pytest.raises(error, match=re.escape(told)):
        make_plan(parse_config(changed(**change)))


TRUSTED = {"noise": "secure"}


@pytest.mark.parametrize(
    ("privacy", "data", "strategy", "on"),
    [
        (TRUSTED, {}, {}, True),
        ({"noise": "seeded"}, {}, {}, False),
        (TRUSTED | {"evaluate": False}, {}, {}, False),
        (TRUSTED | {"trust": "sum"}, {}, {}, False),
        (TRUSTED | {"delta": 0.0}, {}, {}, False),
        (TRUSTED, {}, {"kind": "local_dp"}, False),
        (TRUSTED, {"test_fraction": 0.0}, {}, False),
        (TRUSTED, {"test_fraction": 0.02}, {}, False),  # one held-out user
        (TRUSTED, {"test_fraction": 0.04}, {}, True),
        (TRUSTED, {"all_users": None}, {}, False),
        (TRUSTED, {"all_users": None, "test_fraction": None, "split_column": "x", "split_test": 1.0}, {}, False),
    ],
)
def test_held_out_users_evaluate_by_default_where_noise_protects_people_and_their_number_is_public(
    privacy, data, strategy, on
):
    columns = {"kind": "table", "path": "people.csv", "user": "who", "target": "y", "features": ["x"]}
    columns |= {"ranges": {"x": [-1.0, 1.0]}, "all_users": 60, "test_fraction": 0.25} | data
    raw = changed(problem={"kind": "logistic"}, strategy={"kind": "dp_fed_sgd"} | strategy)
    raw |= {"data": {key: value for key, value in columns.items() if value is not None}}
    config = parse_config(raw | {"privacy": {"epsilon": 4.0, "delta": 1e-3} | privacy})
    assert config.privacy.evaluate is on
    assert parse_config(tomllib.loads(config.toml())).privacy.evaluate is on


@pytest.mark.parametrize("text", ["name = " + "[" * 100_000, "seed = " + "9" * 5000])
def test_a_file_that_python_cannot_hold_is_refused(text, tmp_path):
    (tmp_path / "file.toml").write_text(text)
    with pytest.raises(BadInput, match="nested too deeply, or has too long a number"):
        load_config(tmp_path / "file.toml")
