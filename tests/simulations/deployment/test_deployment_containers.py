"""The demo in real containers: the simulation's model, nobody unknown, and no fault that costs a valid guarantee.

Seconds that a healthy round may take can be raised on a slow machine: USERDP_ROUND_SECONDS.
"""

import json
import os
import re
import shutil
import time

import numpy as np
import pandas as pd
import pytest
from examples import write_clinic
from helpers_containers import PROJECT, ROOT, Containers, engine_answers
from own_model import beside, write_songs

from simulations.config.run_config import load_config
from simulations.runs.build import build_problem
from simulations.runs.run import run

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(2000),
    pytest.mark.skipif(not engine_answers(), reason="no container engine with Compose answers"),
]
ROUND = float(os.environ.get("USERDP_ROUND_SECONDS", "30"))
CLOSE = {"rtol": 1e-6, "atol": 1e-9}
"""Single precision is rough in the seventh digit, and a container may take other kernels than this machine does."""
SEEDED = 'privacy.noise="seeded"'
SILO, USERS = 1000, 3000
PATIENT = {"engine.timeout": 6 * ROUND, "engine.roster_timeout": 6 * ROUND}
"""Timeouts where no silo falls silent; where one does, every round without it lasts as long as a round may take."""
SILENT = {"engine.timeout": ROUND}
ROUNDS = 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("out", "lies")]
    for folder in folders:
        folder.chmod(0o777)
    return folders


@pytest.fixture(scope="module")
def image(folders):
    """The image, and nothing left of an earlier test; nothing left behind either."""
    containers = Containers(folders[0])
    containers.call("down", "--volumes", "--timeout", "2")
    containers.call("build", timeout=1200)
    yield containers
    containers.call("down", "--volumes", "--timeout", "2")


@pytest.fixture(scope="module")
def demo(image, folders):
    """`docker compose up` from nothing, and its exit code."""
    patient = "; ".join([SEEDED, *(f"{key}={value}" for key, value in PATIENT.items())])
    containers = Containers(folders[0], environment={"OVERRIDES": patient})
    process = containers.start("up", "--exit-code-from", "run", "--no-color", "--timeout", "2")
    said, _ = process.communicate(timeout=1500)
    kept = folders[0].with_name("demo")
    shutil.copytree(folders[0], kept)
    return process.returncode, said, kept


@pytest.fixture(scope="module")
def federation(image, folders):
    """The same services, up and waiting for runs; the third silo's code is its own, but it lies only when told to."""
    containers = Containers(
        folders[0], "tests/lying_silo/docker-compose.yml", environment={"OVERRIDES": SEEDED, "LIES": str(folders[1])}
    )
    services = containers.call("config", "--services").split()
    containers.call("up", "--detach", "--no-build", *(name for name in services if name != "run"), timeout=300)
    containers.wait_for("SuperNode ID", "node-1", "node-2", "node-3")
    containers.lies = folders[1]
    return containers


CLIPPING = {"strategy.kind": '"dp_fed_sgd"', "strategy.clip_norm": 0.5, "strategy.learning_rate": 10.0}


def overrides(rounds, max_missing=0.4, **more):
    settings = CLIPPING | {"strategy.rounds": rounds, "strategy.max_missing": max_missing} | PATIENT | more
    return "; ".join([SEEDED, *(f"{key}={value}" for key, value in settings.items())])


def planned(text):
    config = load_config(ROOT / "simulations/configs/demo.toml", [part.strip() for part in text.split(";")])
    return config.privacy.epsilon


@pytest.mark.scenario
def test_one_command_gives_the_model_and_the_guarantee_of_the_simulation(demo, tmp_path):
    code, said, out = demo
    assert code == 0, said
    for name in ("model.npz", "result.json", "guarantee.json", "report.html"):
        assert (out / name).is_file()
    here = run(load_config(ROOT / "simulations/configs/demo.toml", [SEEDED]), directory=tmp_path / "local")
    np.testing.assert_allclose(np.load(out / "model.npz")["x"], here.model, **CLOSE)
    guarantee = json.loads((out / "guarantee.json").read_text())
    assert guarantee == json.loads((tmp_path / "local" / "guarantee.json").read_text())
    result = json.loads((out / "result.json").read_text())
    assert (result["engine"], result["strategy"]) == ("flower", "robust_rounds")
    assert result["missing_users_private"] == 0
    for name, value in here.result["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=CLOSE["rtol"])


def test_the_image_is_below_two_gigabytes(image):
    size = int(image.engine("image", "inspect", "userdp", "--format", "{{.Size}}"))
    assert size < 2e9


REACH = (
    "import socket, sys\n"
    "for host, port in [target.split(':') for target in sys.argv[1:]]:\n"
    "    try:\n"
    "        socket.create_connection((host, int(port)), 3).close()\n"
    "        print(host, 'reached')\n"
    "    except OSError:\n"
    "        print(host, 'out of reach')\n"
)


def test_a_silo_reaches_the_gate_alone_and_its_data_reach_nobody(federation):
    superlink = next(
        network["IPAddress"]
        for network in json.loads(federation.engine("inspect", federation.container("superlink")))[0][
            "NetworkSettings"
        ]["Networks"].values()
    )
    targets = ["gate:8000", "superlink:8000", f"{superlink}:8000", "node-2:9094", "app-2:9094", "node-1:9094"]

    def reached(service, wanted):
        """The services that a service can connect to, once all that it should reach listen."""
        deadline = time.monotonic() + 2 * ROUND
        while True:
            said = federation.call("exec", "-T", service, "python", "-c", REACH, *targets).splitlines()
            found = {line.split()[0] for line in said if line.endswith(" reached")}
            if found >= wanted or time.monotonic() > deadline:
                return found
            time.sleep(1)

    assert reached("node-1", {"gate", "node-1"}) == {"gate", "node-1"}
    assert reached("app-1", {"node-1"}) == {"node-1"}


STRANGER = (
    "python -m simulations.deployment keys --output /tmp/own >/dev/null && exec flower-supernode --superlink gate:8000 "
    "--root-certificates /keys/ca.crt --auth-supernode-private-key /tmp/own/node-1/node.key --max-retries 1 "
    "--isolation process --insecure-runtime"
)
SUBMITTER = (
    "import ssl, urllib.error, urllib.request\n"
    "trust = ssl.create_default_context(cafile='/keys/ca.crt')\n"
    "paths = ('control/register-node', 'control/start-run', 'runtime/pull-task-input', 'fleet/../control/list-runs')\n"
    "for path in paths:\n"
    "    try:\n"
    "        urllib.request.urlopen('https://gate:8000/v1/' + path, data=b'', context=trust)\n"
    "        print(path, 'passed')\n"
    "    except urllib.error.HTTPError as error:\n"
    "        print(path, error.code)\n"
)


def test_supernodes_with_an_unknown_key_or_without_tls_are_refused_and_the_log_says_so(federation):
    command = STRANGER.replace(" --insecure-runtime", "")
    said = federation.call("run", "--rm", "--no-deps", "-T", "node-1", "sh", "-c", command, check=False, timeout=120)
    assert "Failed to initialize the connection to the SuperLink" in said
    assert "SuperNode ID" not in said
    assert "the SuperLink refused" in federation.call("logs", "--no-color", "gate")
    plain = "exec flower-supernode --insecure --superlink gate:8000 --max-retries 1 --isolation process"
    said = federation.call("run", "--rm", "--no-deps", "-T", "node-1", "sh", "-c", plain, check=False, timeout=120)
    assert "Failed to initialize the connection to the SuperLink" in said
    assert "SuperNode ID" not in said


def test_a_silo_can_neither_register_keys_nor_start_runs(federation):
    said = federation.call("exec", "-T", "node-1", "python", "-c", SUBMITTER)
    assert [line.split()[1] for line in said.splitlines()] == ["403"] * 4
    assert "is not for silos" in federation.call("logs", "--no-color", "gate")


def test_noise_comes_from_the_operating_system_unless_a_rehearsal_asks_for_a_seed(federation):
    models = []
    for _ in range(2):
        code, said, _, guarantee = federation.submit(overrides(1).removeprefix(f"{SEEDED}; ")).end()
        assert code == 0, said
        assert guarantee["noise"].startswith("secure (the operating system's randomness")
        assert not any("seed" in assumption for assumption in guarantee["assumptions"])
        models.append(np.load(federation.output / "model.npz")["x"])
    assert (models[0] != models[1]).all()


@pytest.mark.scenario
def test_silos_mask_their_sums_and_the_total_is_that_of_the_simulation(federation, tmp_path):
    settings = overrides(2, **{"privacy.trust": '"sum"'})
    code, said, result, guarantee = federation.submit(settings).end()
    assert code == 0, said
    assert (result["rounds"], result["missing_users_private"]) == (2, 0)
    assert guarantee["holds"]
    assert "the server, which sees the noisy sum over all nodes" in guarantee["adversary"]
    told = [*settings.split("; "), f"engine.users_per_node={SILO}"]  # simulated shares of noise are a node's own
    here = run(load_config(ROOT / "simulations/configs/demo.toml", told), directory=tmp_path / "local")
    np.testing.assert_allclose(np.load(federation.output / "model.npz")["x"], here.model, **CLOSE)


def test_a_silo_that_sends_nan_a_wrong_shape_or_more_users_is_missing_and_the_guarantee_holds(federation):
    (federation.lies / "kind").write_text("nan,shape,more")
    settings = overrides(3)
    code, said, result, guarantee = federation.submit(settings).end()
    (federation.lies / "kind").unlink()
    assert code == 0, said
    assert "the norm of its sum exceeds what its clipped users can add up to" in said
    assert said.count("a reply does not follow the protocol") == 2
    assert "values must be numbers of shape (1, " in said
    assert "users must be whole numbers of shape (" in said
    assert result["missing_users_private"] == 3 * SILO
    assert guarantee["holds"]
    assert guarantee["epsilon"] == pytest.approx(planned(settings), rel=1e-6)


@pytest.mark.parametrize(
    ("lie", "complaint"), [("claims", "claims a user that is claimed already"), ("twin", "one person in two places")]
)
def test_a_silo_that_claims_anothers_user_or_holds_anothers_person_stops_the_run(federation, lie, complaint):
    (federation.lies / "kind").write_text(lie)
    code, said, result, guarantee = federation.submit(overrides(1)).end()
    (federation.lies / "kind").unlink()
    assert code == 1, said
    assert complaint in result["error"]
    assert result["rounds"] == 0
    assert not guarantee["holds"] or guarantee["epsilon"] == 0


def test_a_silo_that_sleeps_past_the_timeout_or_loses_its_network_is_missing_and_comes_back(federation):
    network, node = f"{PROJECT}_link-2", federation.container("node-2")
    # Rounds enough for a silo that finds its way back after minutes; those with everybody take seconds.
    settings = overrides(ROUNDS, **SILENT)
    submitted = federation.submit(settings)
    submitted.wait_for_round(1)
    federation.call("pause", "app-3", "node-3")
    try:
        asleep = submitted.wait_for_a_whole_round()
    finally:
        federation.call("unpause", "app-3", "node-3")
    submitted.wait_for_round(asleep + 3)  # it first answers what it had been asked meanwhile
    federation.engine("network", "disconnect", network, node)
    try:
        cut_off = submitted.wait_for_a_whole_round()
    finally:
        federation.engine("network", "connect", network, node)
    code, said, result, guarantee = submitted.end(timeout=1200)
    assert code == 0, said
    assert result["rounds"] == ROUNDS
    missing = pd.read_parquet(federation.output / "rounds.parquet")["missing_users_private"].tolist()
    assert missing[asleep - 1] == missing[cut_off - 1] == max(missing) == SILO, missing
    assert 0 in missing[asleep : cut_off - 1], missing
    assert missing[-1] == 0, missing
    assert guarantee["epsilon"] == pytest.approx(planned(settings), rel=1e-6)


@pytest.mark.scenario
def test_a_superlink_restarted_amid_a_run_ends_it_closed_and_it_goes_on_to_the_end_that_it_would_have_had(
    federation, tmp_path
):
    settings = overrides(6)
    submitted = federation.submit(settings)
    submitted.wait_for_round(3)
    federation.call("restart", "--timeout", "2", "superlink")
    code, said, _, guarantee = submitted.end()
    assert code == 1, said
    assert 0 < guarantee["epsilon"] < planned(settings)  # of the rounds whose model is there
    assert "userdp: the run failed (lost: the SuperLink restarted or is gone" in said
    folder = re.search(r"resume it with --resume ([\w-]+)", said)[1]
    federation.call("up", "--detach", "--no-build", "--wait", "superlink", timeout=300)
    code, said, _, _ = federation.submit(settings.replace("rounds=6", "rounds=7"), folder).end()
    assert code == 1, said
    assert "strategy.rounds" in said
    code, said, result, guarantee = federation.submit(settings, folder).end()
    assert code == 0, said
    assert (result["rounds"], result["missing_users_private"]) == (6, 0)
    assert guarantee["holds"]
    assert guarantee["epsilon"] == pytest.approx(planned(settings), rel=1e-6)
    here = run(load_config(ROOT / "simulations/configs/demo.toml", settings.split("; ")), directory=tmp_path / "local")
    np.testing.assert_allclose(np.load(federation.output / "model.npz")["x"], here.model, **CLOSE)


@pytest.mark.scenario
def test_a_killed_silo_is_missing_and_two_killed_silos_stop_the_run_with_what_it_had(federation):
    settings = overrides(6, **SILENT)
    submitted = federation.submit(settings)
    submitted.wait_for_round(1)
    federation.call("kill", "node-3", "app-3")
    # Silos may be faster than the kill: which rounds they had answered, they say.
    of_the_third = submitted.answered("node-3")
    submitted.wait_for_round(of_the_third + 2)  # one without it has ended
    federation.call("kill", "app-2", "node-2")
    code, said, result, guarantee = submitted.end()
    of_the_second = submitted.answered("node-2")
    assert code == 1, said
    assert "too many users of a cohort did not answer" in result["error"]
    assert of_the_third < of_the_second == result["rounds"]
    assert result["missing_users_private"] == SILO * (of_the_second - of_the_third)
    assert guarantee["holds"]
    assert 0 < guarantee["epsilon"] < planned(settings)
    assert (federation.output / "model.npz").is_file()


def test_a_module_of_ones_own_is_trained_by_silos_that_hold_their_own_listeners(image, folders, tmp_path):
    """Last: it takes the other services down, whose silos hold other people."""
    tables, own = tmp_path / "tables", tmp_path / "own"
    for folder in (tables, own):
        folder.mkdir()
    write_songs(tables, listeners=60, heard=20)
    for path in (tmp_path, tables, tables / "songs.csv"):
        path.chmod(0o755)
    image.call("down", "--volumes", "--timeout", "2")
    # Hardly any noise, which is not seeded: the simulation's model is the same but for that.
    rounds = ["strategy.rounds=2", "data.all_users=60", "data.test_fraction=0", "privacy.epsilon=1e8"]
    settings = [*rounds, 'problem.precision="double"']
    told = [*settings, 'data.path="/source/songs.csv"', 'privacy.noise="secure"']
    told += [f"{key}={value}" for key, value in PATIENT.items()]
    variables = {
        "CONFIG": "simulations/configs/own-model.toml",
        "SOURCE": str(tables),
        "OVERRIDES": "; ".join(told),
    }
    containers = Containers(folders[0], environment=variables)
    process = containers.start("up", "--no-build", "--exit-code-from", "run", "--no-color", "--timeout", "2")
    said, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, said
    result = json.loads((folders[0] / "result.json").read_text())
    assert (result["users"], result["missing_users_private"], result["non_finite_users_private"]) == (60, 0, 0)
    config = beside(own, listeners=60, heard=20)
    here = run(load_config(config, [*settings, "output.reference=false"]), directory=tmp_path / "local", report=False)
    model = np.load(folders[0] / "model.npz")["x"]
    start = build_problem(load_config(config)).initial()
    assert np.abs(model - start).max() > 0.01
    np.testing.assert_allclose(model, here.model, atol=1e-3)


def test_a_robust_strategy_trains_on_a_table_of_people_with_secure_noise(image, folders, tmp_path):
    """The last but for the one before it: the other services are down."""
    write_clinic(tmp_path / "clinic.csv").chmod(0o644)
    tmp_path.chmod(0o755)
    image.call("down", "--volumes", "--timeout", "2")
    told = ['data.path="/source/clinic.csv"', *(f"{key}={value}" for key, value in PATIENT.items())]
    variables = {
        "CONFIG": "simulations/configs/robust-table.toml",
        "SOURCE": str(tmp_path),
        "OVERRIDES": "; ".join(told),
    }
    containers = Containers(folders[0], environment=variables)
    process = containers.start("up", "--no-build", "--exit-code-from", "run", "--no-color", "--timeout", "2")
    said, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, said
    guarantee = json.loads((folders[0] / "guarantee.json").read_text())
    assert guarantee["holds"]
    assert guarantee["noise"].startswith("secure")
    result = json.loads((folders[0] / "result.json").read_text())
    assert (result["users"], result["rounds"], result["missing_users_private"]) == (1200, 3, 0)
