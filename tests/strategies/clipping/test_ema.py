"""The average of models that a server releases, and that it changes nothing else."""

import numpy as np
import pytest
from helpers import final, make, run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import AdaptiveClipping, DPFedAvg, DPFedSGD, model_vector
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import BadInput
from userdp.problems import Quadratic

PEOPLE = SyntheticFederation(Gaussian(dimension=3), users=60, seed=1, samples_per_user=5)
paths = st.integers(1, 12).flatmap(lambda rounds: arrays(np.float64, (rounds, 2), elements=st.floats(-1e3, 1e3)))


def averaged(models, decay):
    """The average of models (T, p) after each of them, (T, p)."""
    ages = np.subtract.outer(np.arange(len(models)), np.arange(len(models)))
    weights = np.where(ages >= 0, float(decay) ** np.maximum(ages, 0), 0.0)
    return weights @ models / weights.sum(axis=1, keepdims=True)


@given(paths, st.floats(0, 0.99))
def test_a_model_weighs_a_share_of_what_the_next_one_weighs_and_all_weights_add_up_to_one(models, decay):
    optimiser = ServerOptimiser(ServerOptions(ema_decay=decay), 0.1, 2)
    released = [optimiser.output(np.full(2, 7e7), model) for model in models]
    np.testing.assert_array_equal([following for following, _ in released], models)
    np.testing.assert_allclose([model for _, model in released], averaged(models, decay), rtol=1e-9, atol=1e-9)
    if not decay:
        np.testing.assert_array_equal([model for _, model in released], models)


@pytest.mark.parametrize("strategy", [DPFedSGD, DPFedAvg, AdaptiveClipping])
def test_a_run_releases_the_average_of_the_models_of_the_same_run_without_it_for_the_same_promise(strategy):
    def models_of(**options):
        # A step of rate 1 would forget where it begins.
        options |= {"rounds": 5, "clip_norm": 3.0, "learning_rate": 0.3}
        method, models = make(strategy, Quadratic(3, 5.0, 4.0), 60, 4.0, 1e-3, **options), []
        result = run(method, PEOPLE, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
        np.testing.assert_array_equal(final(result), models[-1])
        return method.plan, np.array(models)

    (plain, path), (plan, released) = models_of(), models_of(ema_decay=0.8)
    np.testing.assert_array_equal(released[0], path[0])
    np.testing.assert_allclose(released[1:], averaged(path[1:], 0.8), rtol=1e-12)
    assert plan.guarantee == plain.guarantee
    assert plan.numbers == plain.numbers | {"ema_decay": 0.8}


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_an_average_that_forgets_nothing_or_subtracts_is_refused(decay):
    with pytest.raises(BadInput, match=r"strategy.ema_decay = "):
        make(DPFedSGD, Quadratic(3, 5.0, 4.0), 60, ema_decay=decay)
