"""Three hospitals, a PostgreSQL and `userdp serve` in containers: a run within the budget, and one beyond it."""

import json
import time

import pytest
from helpers_containers import Containers, engine_answers

pytestmark = [
    pytest.mark.containers,
    pytest.mark.skipif(not engine_answers(), reason="there is no container engine with Compose"),
]
FEW = ("--set", "privacy.account=clinic", "--set", "strategy.rounds=2", "--set", "output.anyway=true")
ASK = """
import ssl, sys, urllib.error, urllib.request
request = urllib.request.Request("https://localhost:8443" + sys.argv[1])
if len(sys.argv) > 2:
    request.add_header("Authorization", "Bearer " + open("/keys/page.token").read())
try:
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile="/keys/ca.crt")) as reply:
        print(reply.status, reply.read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture
def federation(tmp_path):
    tmp_path.chmod(0o777)
    containers = Containers(tmp_path, "docker-compose.serve.yml")
    containers.call("down", "--volumes", "--timeout", "2")
    containers.call("up", "--build", "--detach", "--wait", timeout=1500)
    yield containers
    containers.call("down", "--volumes", "--timeout", "2")


def test_a_federation_is_kept_in_containers_although_its_keeper_is_killed(federation):
    def inside(*words):
        return federation.call("exec", "-T", "serve", *words)

    def states():
        return [run["state"] for run in json.loads(inside("userdp", "serve", "list", "--json"))]

    inside("userdp", "account", "create", "clinic", "--epsilon", "2.2", "--delta", "1e-5")
    for _ in range(2):
        inside("userdp", "serve", "add", "simulations/configs/demo.toml", *FEW)
    federation.wait_for("is submitted as", "serve")
    federation.call("kill", "--signal", "KILL", "serve")
    federation.call("up", "--detach", "--no-recreate", "serve")
    deadline = time.monotonic() + 600
    while states() != ["done", "refused"]:
        assert time.monotonic() < deadline, federation.call("logs", "--no-color", "serve", "coordinator-app")
        time.sleep(5)
    assert inside("python", "-c", ASK, "/").strip() == "401"
    assert inside("python", "-c", ASK, "/healthz").strip() == "200 ok"
    page = inside("python", "-c", ASK, "/", "token")
    assert all(name in page for name in ("node-1", "node-2", "node-3", "clinic", "refused"))
    assert "not connected" not in page
    assert 'userdp_runs{state="done"} 1.0' in inside("python", "-c", ASK, "/metrics", "token")
