"""A SuperNode that is killed while it is asked, in each phase of a run, and started anew: the run goes on."""

import json
import shutil
import time

import numpy as np
import pandas as pd
import pytest
import tomli_w
from examples import changed
from helpers import PATIENCE
from helpers_flower import RUN, FlowerDeployment
from helpers_killed import QUIET

NODES, VICTIM, ROUNDS, USERS = 3, 1, 2, 400
CLIENT = """
import time
from pathlib import Path

from flwr.clientapp import ClientApp

from simulations.flower import node_of
from strategies import client_app

answers = client_app(node_of)


class Held(ClientApp):
    def __call__(self, message, context):
        phase, said = (str(context.node_config.get(name, "")) for name in ("phase", "said"))
        if phase and message.metadata.message_type == phase and not Path(said).exists():
            Path(said).touch()
            time.sleep(3600)
        return answers(message, context)


app = Held()
"""
"""A node that never answers the first question of its phase, and says that it was asked."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("phase", ["query", "train", "evaluate"])
def test_where_a_supernode_is_killed_while_it_is_asked_the_run_goes_on(phase, tmp_path):
    home, said = tmp_path / "flower", tmp_path / "said"
    home.mkdir()
    app = shutil.copytree(RUN, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (app / "userdp_run" / "client_app.py").write_text(CLIENT)
    strategy = {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": ROUNDS, "max_missing": 0.5}
    raw = changed(strategy=strategy, data__users=USERS, data__test_users=USERS, privacy__delta=1e-4)
    raw["privacy"]["evaluate"] = True
    raw["engine"] = {"timeout": PATIENCE, "roster_timeout": PATIENCE}  # whoever is slow is not missing
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw))
    nodes = [f"partition-id={number} num-partitions={NODES}" for number in range(NODES)]
    nodes[VICTIM] += f' phase="{phase}" said="{said}"'
    deployment = FlowerDeployment(home, nodes)
    try:
        settings = {"config": str(tmp_path / "run.toml"), "output": str(tmp_path / "results")}
        number = deployment.submit(app, NODES, settings)
        deadline = time.monotonic() + PATIENCE
        while not said.exists() and time.monotonic() < deadline:
            time.sleep(QUIET)
        deployment.renew(VICTIM)
        deployment.wait(number)
    finally:
        deployment.stop()
    result = json.loads((tmp_path / "results" / "result.json").read_text())
    assert said.exists()
    assert result["rounds"] == ROUNDS
    # The one started anew takes its place; what the other was asked last stays without an answer.
    missing = pd.read_parquet(tmp_path / "results" / "rounds.parquet")["missing_users_private"]
    assert [users > 0 for users in missing] == [phase == "train", False]
    assert result["guarantee"]["holds"]
    assert np.isfinite(result["metrics"]["test_loss"])
