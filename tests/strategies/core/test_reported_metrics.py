"""Metrics that held-out clients of an ordinary app report: what they move, what they cost, and what is refused."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from helpers import charged_twice
from helpers_flower import ClientGrid
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import DropInAdaptiveClipping, DropInFedAvg
from strategies.core.held_out import ReportedMetrics
from userdp.errors import BadInput, RunFailed

RANGES = {"accuracy": (0, 1), "loss": (0, 4)}
TRAIN, HELD_OUT = 5, 4
REPORTS = [{"accuracy": 0.5, "loss": 1.0}, {"accuracy": 1.0, "loss": 9.0}, {"accuracy": 0.0, "loss": 0.0}]
REPORTS.append({"accuracy": 0.25, "loss": math.nan})


def clients(reports=REPORTS, update=1.0):
    """Clients that add a number to the model if they train; the held-out ones report what is given."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        x = message.content["arrays"]["x"].numpy() + update * (1 + context.node_config["partition-id"])
        return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)})}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        assert message.content["config"]["batch-size"] == 32
        report = reports[context.node_config["partition-id"] - TRAIN]
        if isinstance(report, Exception):
            raise report
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 7, **report})}), reply_to=message)

    return app


def ran(reports=REPORTS, kind=DropInFedAvg, epsilon=4.0, seed=1, rounds=3, **options):
    options = {"held_out": HELD_OUT, "metrics": RANGES, "max_missing": 0.3, **options}
    made = kind(users=TRAIN, epsilon=epsilon, delta=1e-4, rounds=rounds, seed=seed, clip_norm=0.1, **options)
    config = ConfigRecord({"batch-size": 32})
    with ClientGrid(clients(reports), TRAIN + HELD_OUT) as grid:
        start = ArrayRecord({"x": Array(np.zeros(2))})
        return made, made.start(grid, start, evaluate_config=config)


@pytest.mark.parametrize("kind", [DropInFedAvg, DropInAdaptiveClipping])
def test_training_is_the_same_to_the_bit_whatever_is_reported(kind):
    others = [{"accuracy": 1.0, "loss": 4.0}] * HELD_OUT
    models = [ran(reports, kind)[1].arrays["x"].numpy() for reports in (REPORTS, others)]
    np.testing.assert_array_equal(*models)


def test_with_little_noise_metrics_are_means_of_clipped_reports():
    _, result = ran(epsilon=1e8)
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    last = result.evaluate_metrics_clientapp[3]
    assert last["accuracy"] == pytest.approx(1.75 / 4, abs=1e-3)
    assert last["loss"] == pytest.approx((1.0 + 4.0 + 0.0 + 2.0) / 4, abs=4e-3)  # NaN counts as the middle


@settings(max_examples=20)
@given(
    st.fixed_dictionaries({name: st.floats(allow_nan=True, allow_infinity=True) for name in RANGES}),
    st.integers(0, HELD_OUT - 1),
)
def test_a_replaced_user_moves_reports_by_the_sensitivity_at_most(report, which):
    made, result = ran(rounds=1)
    other = ran([*REPORTS[:which], report, *REPORTS[which + 1 :]], rounds=1)[1]  # the same simulated noise
    scaled = [
        np.array([one.evaluate_metrics_clientapp[1][name] / (high - low) for name, (low, high) in RANGES.items()])
        for one in (result, other)
    ]
    moved = HELD_OUT * np.linalg.norm(scaled[0] - scaled[1])
    testers = made.inner.testers
    assert moved <= math.sqrt(len(RANGES)) * (1 + 1e-9)
    assert testers._mechanism.l2_sensitivity == pytest.approx(math.sqrt(len(RANGES)))


def test_noise_is_as_deep_as_stated_and_all_reports_together_cost_the_budget():
    found = []
    for seed in range(150):
        made, result = ran(seed=seed, rounds=2)
        found += [one["accuracy"] for one in result.evaluate_metrics_clientapp.values()]
    stated = result.evaluate_metrics_clientapp[2]["accuracy_noise"]
    assert np.std(found) == pytest.approx(stated, rel=0.12)
    assert made.plan.numbers["held_out_noise"] == pytest.approx(stated)
    assert made.inner.testers.spent() == pytest.approx(4.0, rel=1e-6)
    assert any("4 held-out users are protected alike" in one for one in made.plan.guarantee.assumptions)


def test_reports_with_less_noise_than_is_charged_end_the_run(monkeypatch):
    charged_twice(monkeypatch, ReportedMetrics, "release")
    with pytest.raises(RunFailed, match="is charged"):
        ran()


def test_long_runs_ask_eight_times_within_the_same_budget():
    made, result = ran(rounds=20)
    assert len(result.evaluate_metrics_clientapp) == 8
    assert max(result.evaluate_metrics_clientapp) == 20
    assert made.inner.testers.spent() == pytest.approx(4.0, rel=1e-6)


def test_a_silent_client_counts_as_the_middle_and_too_many_end_the_run():
    _, result = ran([*REPORTS[:3], ConnectionError()], epsilon=1e8)
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == pytest.approx(2.0 / 4, abs=1e-3)
    with pytest.raises(RunFailed, match="did not report accuracy, loss, each as a number"):
        ran([{"acc": 1.0, "loss": 1.0}] * HELD_OUT)


def test_what_cannot_be_promised_is_refused():
    with pytest.raises(BadInput, match="nodes that train evaluate nothing"):
        ran(held_out=0)
    with pytest.raises(BadInput, match="the range of each metric"):
        ran(metrics={})
    with pytest.raises(BadInput, match="give a finite range"):
        ran(metrics={"loss": (0, math.inf)})
    with pytest.raises(BadInput, match="by a trusted server"):
        ran(trust="sum")
