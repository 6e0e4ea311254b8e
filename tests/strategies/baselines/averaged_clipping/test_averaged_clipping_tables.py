"""The paper's own tables: runs that go side by side are those of the reference."""

import numpy as np

from strategies.baselines.averaged_clipping.reference.descent import averaged_clipping_sgd, ball, sample_clipping_sgd


def test_runs_side_by_side_take_the_steps_of_the_reference(module_of, monkeypatch):
    tables = module_of("strategies.baselines.averaged_clipping.sweeps.paper_tables")
    sizes = {"SAMPLES": 40, "BATCH": 10, "EPOCHS": 6, "EARLIER": (2,), "SEEDS": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(tables, name, value)
    monkeypatch.setattr(tables, "paper_noise", lambda *_: 0.0)
    monkeypatch.setattr(tables, "METHODS", {"CC": (0.5, 1.0), "UC": (0.9, 0.2), "DP-SGD": (0.7, 0.4)})
    monkeypatch.setattr(tables, "RADIUS", 0.6)
    rng = np.random.default_rng(1)
    features, targets = rng.standard_normal((2, 40, 10)), rng.standard_normal((2, len(tables.NOISES), 40))
    found = tables._descended(tables.MODELS["ridge"], features, targets, np.random.default_rng(5))

    rng, batches = np.random.default_rng(5), []
    for _ in range(6):
        batches.extend(rng.permutation(40).reshape(4, 10))
        rng.standard_normal((4, 2, 3 * len(tables.NOISES), 10))
    start, seed, law = np.zeros(10), 1, 2

    def rows(index, x):
        drawn = features[seed, batches[index]]
        return 2 * (drawn @ x - targets[seed, law, batches[index]])[:, None] * drawn

    def mean(index, x):
        return rows(index, x).mean(axis=0)

    for moment, rounds in enumerate((8, 24)):
        noiseless = {"noise_multiplier": 0.0, "rng": rng}
        wanted = [
            averaged_clipping_sgd(mean, start, rounds, step=1.0, clip=0.5, **noiseless, project=ball(start, 0.6)),
            averaged_clipping_sgd(mean, start, rounds, step=0.2, clip=0.9, **noiseless),
            sample_clipping_sgd(rows, start, rounds, batch=10, step=0.4, clip=0.7, **noiseless),
        ]
        np.testing.assert_allclose(found[moment, seed, law], [each.average for each in wanted], rtol=1e-9, atol=1e-12)


def test_the_best_model_of_the_tables_has_no_gradient(module_of, monkeypatch):
    tables = module_of("strategies.baselines.averaged_clipping.sweeps.paper_tables")
    rng = np.random.default_rng(2)
    features = rng.standard_normal((500, 10))
    for model in tables.MODELS.values():
        targets = model.targets(features @ rng.standard_normal(10) + rng.standard_t(2, 500))
        best = tables._best(model, features, targets)
        assert np.abs(features.T @ model.slope(features @ best, targets)).max() < 1e-6 * 500
