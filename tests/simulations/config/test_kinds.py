"""Kinds that configurations name stay, whatever room they move to."""

import pytest

from simulations.config.keys import keys
from simulations.records.released_fields import all_fields
from strategies import STRATEGIES
from userdp.data import POPULATIONS, PUBLIC_DATASETS
from userdp.data.registry import DATA_SOURCES
from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS

KINDS = (
    (
        STRATEGIES,
        "adaptive_clipping auto averaged_clipping averaged_clipping_restarted dp_fed_avg dp_fed_sgd dp_ftrl "
        "iterative_mean_sgd local_dp localized_clipping localized_robust_sgd localized_weighting non_private "
        "outlier_removal output_perturbation poisson_sample_sgd private_hard_thresholding private_lasso projected_sgd "
        "recentred_clipping recovered_sgd robust_frank_wolfe robust_rounds sample_clipped_sgd smoothed_truncation_gd "
        "sparse_exponential sparse_optimisation stopped_sgd vote_descent winsorized_rotation",
    ),
    (
        PROBLEMS,
        "bernoulli biweight_regression huber huber_regression linear logistic lp_regression one_hot_logistic "
        "one_hot_poisson one_hot_squared poisson quadratic softmax sparse_logistic sparse_squared squared torch",
    ),
    (
        POPULATIONS,
        "bernoulli categorical gaussian hard_instance heavy_tailed_linear heavy_tailed_logistic linear_regression "
        "log_logistic log_normal logistic_regression multivariate_t pareto poisson_regression sparse_blocks "
        "sparse_packing sparse_regression student_t",
    ),
    (PUBLIC_DATASETS, "assistments2015 chem97 gerdracor insteval males mnist_writers movielens"),
    (DATA_SOURCES, "public synthetic table"),
)


def test_every_kind_of_before_can_still_be_named():
    for registry, names in KINDS:
        assert set(names.split()) <= set(registry)
        assert all(registry[name] is not None for name in names.split())


def test_a_packages_population_must_be_one(monkeypatch):
    monkeypatch.setitem(POPULATIONS.installed, "wrong", "userdp.errors:BadInput")
    with pytest.raises(BadInput, match="names BadInput, which is no class below Population: a population turns noise"):
        _ = POPULATIONS["wrong"]
    assert "wrong" not in POPULATIONS.loaded()[0]


def test_lists_of_keys_and_of_fields_leave_out_a_packages_broken_kinds(monkeypatch):
    every = keys(), all_fields()
    for registry in (STRATEGIES, PROBLEMS, POPULATIONS):
        monkeypatch.setitem(registry.installed, "broken", "userdp.errors:NoSuchClass")
        with pytest.raises(BadInput, match="NoSuchClass"):
            _ = registry["broken"]
    assert (keys.__wrapped__(), all_fields.__wrapped__()) == every  # without their caches
