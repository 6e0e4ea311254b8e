"""Sections [data] of tables with codes, sequences and pictures: the shape they declare is that of what they load."""

import tomllib

import numpy as np
import pandas as pd
import pytest

from simulations.config.run_config import parse_config
from simulations.runs.build import server_datasets, with_assumptions
from simulations.runs.silos import FILE, split
from userdp.accounting import Guarantee
from userdp.data.shape import Sequence
from userdp.data.tables.sources import PublicData, TableData
from userdp.errors import BadInput, PopulationTooSmall
from userdp.problems.registry import PROBLEMS

USERS = 12
CODES = {"codes": ["film", "mood"], "levels": {"film": 3, "mood": ["good", "bad"]}, "impute": {"mood": "own level"}}
STEPS = {"sequence": {"window": 4, "inputs": {"film": 3}, "predict": "mood", "levels": ["good", "bad"]}}
TEXT = {"sequence": {"window": 5, "order": "film", "text": "mood", "alphabet": "abdgo\n"}}
IMAGES = {"images": "picture", "image_shape": [2, 2], "target": "film"}
RUN = {"features": ["pixel_[0-2]"], "ranges": {"pixel_[0-2]": [0, 16]}, "target": "film", "target_range": [0, 2]}
DATES = {"dates": {"born": ["1980-01-01", "1980-01-20"]}, "date_parts": {"born": ["weekday", "hour"]}}
SPLIT = {"split_column": "part", "split_test": "test"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(USERS), 6)
    table = pd.DataFrame(
        {
            "who": who,
            "part": np.where(who < 3, "test", "train"),
            "film": rng.integers(0, 3, len(who)),
            "mood": rng.choice(["good", "bad"], len(who)),
            "picture": [rng.bytes(4) for _ in who],
            "born": [f"1980-01-{day:02}T{day % 24:02}:30" for day in rng.integers(1, 30, len(who))],
            **{f"pixel_{place}": rng.integers(0, 17, len(who)) for place in range(3)},
        }
    )
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    table.to_parquet(path)
    return path


def source(path, **settings):
    return TableData.model_validate({"kind": "table", "path": str(path), "user": "who", **settings}, strict=True)


def config(path, problem="quadratic", **settings):
    data = {"kind": "table", "path": str(path), "user": "who", **settings}
    budget = {"epsilon": 1.0, "delta": 1e-5}
    return parse_config({"name": "n", "problem": {"kind": problem}, "data": data, "privacy": budget})


@pytest.mark.parametrize("form", [CODES, STEPS, TEXT, IMAGES, RUN, DATES])
def test_the_declared_shape_is_that_of_the_samples(path, form):
    data = source(path, **form)
    shape, loaded = data.sample_shape, data.load(0)
    block = loaded.train.block(np.arange(loaded.train.users))
    assert block.features.shape[1] == shape.columns
    assert shape.has_target == (block.targets is not None)
    assert (shape.codes_from is None) == (block.features.dtype == np.float32)
    if shape.bound is not None:
        assert np.abs(block.features).max() <= shape.bound
        assert np.abs(block.features).sum(axis=1).max() <= shape.feature_norm
    for levels in [shape.code_levels, shape.sequence and shape.sequence.levels]:
        if levels is not None:
            codes = block.features.reshape(-1, len(levels))
            assert codes.min() >= -1
            assert (codes.max(axis=0) < levels).all()


def test_shapes_by_hand(path):
    assert source(path, **CODES).sample_shape.code_levels == (3, 3)
    steps = source(path, **STEPS).sample_shape
    assert (steps.columns, steps.has_target, steps.sequence) == (8, False, Sequence(4, (4, 3)))
    assert steps.sequence.channels == 2
    assert source(path, **TEXT).sample_shape.sequence == Sequence(5, (7,))
    pictures = source(path, **IMAGES).sample_shape
    assert (pictures.columns, pictures.bound, pictures.feature_norm) == (4, 1.0, 4.0)
    one = source(path, codes="film", levels=3).sample_shape
    assert (one.levels, one.code_levels, one.codes_from) == (3, None, "data.codes")


@pytest.mark.parametrize("kind", [kind for kind in PROBLEMS if kind != "torch"])
@pytest.mark.parametrize("form", [CODES | {"target": "part", "positive": "test"}, STEPS])
def test_problems_of_numbers_refuse_codes(path, form, kind):
    needed = {
        "huber": {"threshold": 1.0},
        "poisson": {"count_bound": 9.0},
        "one_hot_poisson": {"count_bound": 9.0},
        "huber_regression": {"threshold": 1.0},
        "lp_regression": {"p": 2.0},
    }
    shape = source(path, **form).sample_shape
    with pytest.raises(BadInput, match=r"needs (feature columns|numeric features|one column of categories|sparse)"):
        PROBLEMS[kind].model_construct(kind=kind, **needed.get(kind, {})).build(shape, 0)


def test_a_column_holds_users_out(path):
    data = source(path, **RUN, **SPLIT)
    loaded = data.load(0)
    table = data.table(0)
    assert (loaded.train.users, loaded.test.users) == (9, 3)
    assert set(table.labels[table.held_out]) == {"0", "1", "2"}
    held = table.federation.select(np.flatnonzero(table.held_out))
    np.testing.assert_array_equal(held.block(np.arange(3)).features, loaded.test.block(np.arange(3)).features)
    assert source(path, **RUN, **SPLIT, users=5).load(0).train.users == 5
    assert "who is held out, as column 'part' says, is public" in data.assumptions
    assert source(path, **RUN).load(0).test.users == 2
    assert source(path, **RUN, test_fraction=0.0).load(0).test is None


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"test_fraction": 0.5}, BadInput, "data.split_column = 'part' and data.test_fraction = 0.5 both hold"),
        ({"all_users": USERS}, BadInput, "data.all_users = 12 with data.split_column = 'part'"),
        ({"split_test": "tset"}, PopulationTooSmall, "12 users train and 0 are held out"),
        ({"users": 10}, PopulationTooSmall, "the data leave 9 training users"),
    ],
)
def test_splits_that_contradict_themselves_or_the_table_are_refused(path, more, error, told):
    with pytest.raises(error, match=told):
        source(path, **{**RUN, **SPLIT, **more}).load(0)


def test_a_public_set_knows_how_many_its_own_column_holds_out():
    def users(**settings):
        return PublicData(kind="public", name="mnist_writers", **settings).declared_users

    assert users() == 539
    assert users(test_fraction=0.0) == 836
    assert users(test_fraction=0.25) == 836 - 209
    assert users(split_column="digit", split_test=3) is None
    assert users(split_test="another") is None
    assert users(min_samples=2) is None


def test_a_deployment_takes_nobody_who_is_held_out_and_silos_hold_sequences(path, tmp_path):
    held_out = config(path, **STEPS, **SPLIT, users=9)
    for refusing in (lambda: server_datasets(held_out), lambda: split(held_out, [tmp_path])):
        with pytest.raises(BadInput, match=r"data.split_column = 'part': .* data.test_fraction = 0"):
            refusing()
    everybody = config(path, **STEPS, test_fraction=0)
    assert split(everybody, [tmp_path / "a", tmp_path / "b"]) == [6, 6]
    train = everybody.data.load(0).train
    with np.load(tmp_path / "b" / FILE) as stored:
        np.testing.assert_array_equal(stored["features"], train.block(np.arange(6, 12)).features)


def test_a_promise_to_a_sample_says_that_it_is_one_to_a_window(path):
    for unit, form, told in (("sample", STEPS, True), ("user", STEPS, False), ("sample", RUN, False)):
        promised = Guarantee(unit, "replace_one", 1.0, 1e-5, "exact", "everybody", (), True)
        found = with_assumptions(promised, config(path, **form)).assumptions
        assert any("a sample is a window" in one for one in found) == told


def test_unknown_keys_of_a_sequence_are_named_with_the_nearest(path):
    with pytest.raises(BadInput, match=r"unknown key data\.sequence\.windw; did you mean data\.sequence\.window\?"):
        config(path, sequence={"windw": 4, "predict": "mood", "levels": 2})
    with pytest.raises(BadInput, match=r"data\.sequence\.window = 0 \(Steps of a sample"):
        config(path, sequence={"window": 0, "predict": "mood", "levels": 2})
    declared = config(path, **STEPS, **SPLIT)
    assert parse_config(tomllib.loads(declared.toml())) == declared
    assert declared.data.sequence.channels == {"film": 3, "mood": ["good", "bad"]}


def test_users_that_are_counted_in_the_table_are_an_assumption(path):
    counted, declared = (source(path, **RUN, **users).assumptions for users in ({}, {"users": USERS}))
    assert [one for one in counted if "read from the data and is taken as public" in one]
    assert not [one for one in declared if "read from the data" in one]


@pytest.mark.parametrize("declared", [{"all_users": 20}, {"users": 20, "test_fraction": 0.0}], ids=["all", "training"])
def test_a_number_that_is_protected_is_in_no_refusal_and_fewer_users_fit(path, declared):
    public, data = declared == {"all_users": 20}, source(path, **RUN, **declared)
    loaded = data.load(0, lambda: True)
    assert loaded.train.users + (0 if loaded.test is None else loaded.test.users) == USERS
    with pytest.raises(
        PopulationTooSmall, match=f"the data have {USERS} users" if public else f"leave {USERS} training"
    ):
        data.load(0)
    for fewer in ({"all_users": 11}, {"all_users": 11, "max_samples": 3}):
        with pytest.raises(BadInput, match="more users than these places, and their number is protected") as error:
            source(path, **RUN, **fewer).load(0, lambda: True)
        assert str(USERS) not in str(error.value)
    for unclear in ({"users": 11}, {"users": 11, **SPLIT}, {"users": 15, "min_samples": 2, "test_fraction": 0.0}):
        with pytest.raises(BadInput, match=r"declare data\.all_users, a number of places that is enough") as error:
            source(path, **RUN, **unclear).load(0, lambda: True)
        assert str(USERS) not in str(error.value)


def test_whoever_is_there_holds_the_first_places_and_nobody_moves_another(path, tmp_path):
    """Without one user everybody who was in a later place is one place further on; samples are the same."""
    everybody = pd.read_parquet(path)
    samples = []
    for gone in (None, 5):
        there = tmp_path / "there.parquet"
        everybody[everybody["who"] != gone].to_parquet(there)
        table = source(there, **RUN, all_users=20, max_samples=2).table(3, named=True)
        blocks = [table.federation.block(np.array([user])) for user in range(table.federation.users)]
        samples.append(
            {one: (b.features.tobytes(), b.targets.tobytes()) for one, b in zip(table.labels, blocks, strict=True)}
        )
    assert len(samples[0]) == len(samples[1]) + 1 == USERS
    assert all(samples[0][label] == own for label, own in samples[1].items())
