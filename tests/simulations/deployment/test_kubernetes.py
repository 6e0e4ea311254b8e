"""The manifests of deploy/kubernetes: valid for the real API, and the same services as those of the compose files."""

import functools
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from simulations.deployment.keys import make_keys

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "deploy/kubernetes"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SIDES = ("coordinator", "silo", "ray")
SERVICES = {
    "superlink": "superlink",
    "gate": "gate",
    "coordinator-app": "coordinator-app",
    "accounts": "accounts",
    "serve": "serve",
    "node": "node-1",
    "app": "app-1",
}
"""Each Deployment, and its service in the compose files."""
ELSEWHERE = {"NODE"}
"""Variables of Compose that come from a ConfigMap on Kubernetes."""
POD = {"automountServiceAccountToken": False, "enableServiceLinks": False, "shareProcessNamespace": True}
CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@functools.cache
def loaded(path):
    read = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read["items"] if read["kind"] == "List" else [read]


def objects(*sides, kind=None):
    paths = [path for side in sides for path in sorted((MANIFESTS / side).glob("*.yaml"))]
    return [
        each for path in paths if path.stem != "kustomization" for each in loaded(path) if kind in {None, each["kind"]}
    ]


def pods(*sides):
    """The pods' labels and specifications, by name."""
    templates = {each["metadata"]["name"]: each["spec"]["template"] for each in objects(*sides, kind="Deployment")}
    alone = {each["metadata"]["name"]: each for each in objects(*sides, kind="Pod")}
    return {name: (pod["metadata"].get("labels", {}), pod["spec"]) for name, pod in (templates | alone).items()}


@functools.cache
def composed():
    """The services of both compose files, put together as Compose does it."""
    services = {}
    for file in ("docker-compose.yml", "docker-compose.serve.yml"):
        read = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
        for name, more in read["services"].items():
            service = services.setdefault(name, {})
            for key, value in more.items():
                if isinstance(value, dict):
                    service[key] = service.get(key, {}) | value
                else:
                    service[key] = service.get(key, []) + value if isinstance(value, list) else value
    return services


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_every_object_is_valid_for_the_api(version):
    for each in objects(*SIDES):
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
@pytest.mark.parametrize("side", SIDES)
def test_kubectl_puts_the_parts_together(side, tmp_path):
    shutil.copytree(MANIFESTS / side, tmp_path / side)
    file = tmp_path / side / "kustomization.yaml"
    text = file.read_text().replace("registry.example.org", "of.ours").replace("10.96.0.200", "10.0.0.7")
    file.write_text(text.replace("node-1", "node-3"))
    done = subprocess.run(["kubectl", "kustomize", tmp_path / side], capture_output=True, text=True, check=True)
    made = list(yaml.safe_load_all(done.stdout))
    for each in made:
        kubernetes_validate.validate(each, "1.37", strict=True)
    space = yaml.safe_load(text)["namespace"]
    assert {each["metadata"].get("namespace", each["metadata"]["name"]) for each in made} == {space}
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert (
        images
        == {
            "coordinator": {f"of.ours/userdp:{VERSION}", "postgres:17-bookworm"},
            "silo": {f"of.ours/userdp:{VERSION}"},
            "ray": {f"of.ours/userdp-ray:{VERSION}"},
        }[side]
    )
    if side == "silo":
        (service,) = (each for each in made if each["kind"] == "Service")
        (app,) = (each for each in made if each["kind"] == "Deployment" and each["metadata"]["name"] == "app")
        assert service["spec"]["clusterIP"] == "10.0.0.7"
        assert app["spec"]["template"]["spec"]["hostAliases"] == [{"ip": "10.0.0.7", "hostnames": ["node-3"]}]


def test_no_pod_has_rights_that_it_does_not_need():
    for name, (_, pod) in pods(*SIDES).items():
        user = 1000 if name in {"head", "worker"} else 10001
        assert pod.items() >= POD.items(), name
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        (container,) = pod["containers"]
        assert container["securityContext"] == CONTAINER
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
    assert {
        each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] for each in objects(*SIDES, kind="Namespace")
    } == {"restricted"}


def words(command):
    """A command's words, whether it is written for a shell or not, and however it gives its options their values."""
    split = shlex.split(command) if isinstance(command, str) else list(command)
    if split[:2] == ["sh", "-c"]:
        split = shlex.split(split[2].removeprefix("exec "))
    return [part for word in split for part in (word.split("=", 1) if word.startswith("--") else [word])]


@pytest.mark.parametrize(("name", "service"), SERVICES.items())
def test_a_pod_is_what_its_service_is_in_the_compose_files(name, service):
    ours, (labels, pod) = composed()[service], pods("coordinator", "silo")[name]
    (container,) = pod["containers"]
    assert container["image"] == re.sub(r"\$\{\w+:-(.+)\}", r"\1", ours["image"])
    assert (ours["read_only"], ours["cap_drop"], ours["security_opt"]) == (True, ["ALL"], ["no-new-privileges"])
    assert container["resources"]["limits"]["memory"].lower().removesuffix("i") == ours["mem_limit"]
    if "command" in ours:
        settings = {"$(GATE)": "gate:8000", "$(NODE):9094": "$$NODE:9094"}
        assert [settings.get(word, word) for word in words(container.get("command", container.get("args")))] == words(
            ours["command"]
        )
    plain = {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
    assert plain == {name: value for name, value in ours.get("environment", {}).items() if name not in ELSEWHERE}
    joined = {label.removeprefix("network/") for label in labels if label.startswith("network/")}
    assert joined == {re.sub(r"-\d$", "", network) for network in ours["networks"]} - {"page"}
    assert mounted(pod) == {**dict(map(volume, ours["volumes"])), **dict(map(memory, ours["tmpfs"]))}
    assert "healthcheck" not in ours or "readinessProbe" in container


def mounted(pod):
    """Return the source of each mounted path and whether it is read-only, or the size of a folder in memory."""
    named, found = {each["name"]: each for each in pod["volumes"]}, {}
    for mount in pod["containers"][0]["volumeMounts"]:
        match named[mount["name"]]:
            case {"secret": {"secretName": name, "defaultMode": 0o400}}:
                found[mount["mountPath"]] = f"keys-{name}", mount["readOnly"]
            case {"persistentVolumeClaim": {"claimName": name}}:
                found[mount["mountPath"]] = name, mount.get("readOnly", False)
            case {"emptyDir": {"medium": "Memory", "sizeLimit": size}}:
                found[mount["mountPath"]] = size.removesuffix("Mi")
    return found


def volume(text):
    name, path, *read_only = text.split(":")
    return path, ("data" if name == "silo-1" else name.removesuffix("-1"), bool(read_only))


def memory(text):
    path, _, options = text.partition(":")
    return path, re.search(r"size=(\d+)m", options)[1]


@pytest.mark.parametrize("side", SIDES)
def test_every_pod_says_whether_it_is_ready_and_alive_and_none_is_an_image_that_changes(side):
    for name, (_, pod) in pods(side).items():
        (container,) = pod["containers"]
        ready, alive = container["readinessProbe"], container["livenessProbe"]
        how = {"exec", "httpGet", "tcpSocket"}
        assert len(how & ready.keys()) == len(how & alive.keys()) == 1, name
        for probe in (ready, alive):  # what it asks is there
            asked = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
            assert asked is None or {"containerPort": asked} in container["ports"], name
        if name != "data":  # a run outlasts what it waits for; ten minutes later it has stopped
            assert alive["periodSeconds"] * alive["failureThreshold"] >= 600, name
        repository, _, tag = container["image"].partition(":")
        assert tag not in {"", "latest"} or repository in {"userdp", "userdp-ray"}, name
    (images,) = yaml.safe_load((MANIFESTS / side / "kustomization.yaml").read_text())["images"]
    assert images["newTag"] == VERSION


def test_probes_ask_what_the_health_checks_ask():
    def probe(name):
        return pods("coordinator")[name][1]["containers"][0]["readinessProbe"]

    for name in ("superlink", "accounts"):
        check = composed()[name]["healthcheck"]
        shell = ["sh", "-c"] if check["test"][0] == "CMD-SHELL" else []
        assert probe(name)["exec"]["command"] == shell + check["test"][1:]
        assert [f"{probe(name)[key]}s" for key in ("periodSeconds", "timeoutSeconds")] == [
            check["interval"],
            check["timeout"],
        ]
    asked = probe("serve")["httpGet"]
    assert f"https://localhost:{asked['port']}{asked['path']}" in composed()["serve"]["healthcheck"]["test"][-1]


def test_nothing_runs_twice_and_volumes_of_several_pods_are_on_one_machine():
    deployments = {each["metadata"]["name"]: each["spec"] for each in objects(*SIDES, kind="Deployment")}
    once = {name: spec for name, spec in deployments.items() if name != "worker"}
    assert all((spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}) for spec in once.values())
    claims = {}
    for name, (_, pod) in pods("coordinator").items():
        for each in pod["volumes"]:
            claims.setdefault(each.get("persistentVolumeClaim", {}).get("claimName"), set()).add(name)
    together = set().union(*(names for claim, names in claims.items() if claim and len(names) > 1))
    assert together == {"superlink", "coordinator-app", "serve"}
    for name, (labels, pod) in pods("coordinator").items():
        assert (labels.get("machine") == "shared") == ("affinity" in pod) == (name in together)


@pytest.mark.parametrize("name", SERVICES)
def test_a_pod_has_the_keys_of_its_party_alone_and_all_that_it_reads_of_them(name, tmp_path):
    make_keys(tmp_path, 1, serve=True)
    _, pod = pods("coordinator", "silo")[name]
    (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each)
    party = {"serve": "coordinator", "coordinator-app": "coordinator"}.get(name, name)
    assert secret == party
    (container,) = pod["containers"]
    texts = [*container.get("command", []), *(each.get("value", "") for each in container.get("env", []))]
    folder = tmp_path / {"node": "node-1", "app": "app-1"}.get(party, party)
    assert all((folder / file).is_file() for text in texts for file in re.findall(r"/keys/([\w.]+)", text))
    for each in container.get("env", []):
        reference = each.get("valueFrom", {}).get("secretKeyRef")
        assert reference is None or (tmp_path / reference["name"] / reference["key"]).is_file()


@pytest.mark.parametrize("side", SIDES)
def test_the_parts_fit_each_other(side):
    claims = {each["metadata"]["name"] for each in objects(side, kind="PersistentVolumeClaim")}
    assert claims == {
        each["persistentVolumeClaim"]["claimName"]
        for _, pod in pods(side).values()
        for each in pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    for each in objects(side, kind="Service"):
        labels, pod = pods(side)[each["metadata"]["name"]]
        assert labels.items() >= each["spec"]["selector"].items()
        assert [port["port"] for port in each["spec"]["ports"]] == [
            port["containerPort"] for port in pod["containers"][0]["ports"]
        ]
    for each in objects(side, kind="Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert labels.items() >= each["spec"]["selector"]["matchLabels"].items()


@pytest.mark.parametrize("side", SIDES)
def test_pods_of_one_network_reach_each_other_and_nothing_else(side):
    policies = {each["metadata"]["name"]: each["spec"] for each in objects(side, kind="NetworkPolicy")}
    assert policies.pop("nothing-else") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    joined = {label for labels, _ in pods(side).values() for label in labels if label.startswith("network/")}
    outwards = {"coordinator": "ingress", "silo": "egress"}
    for network in (label.removeprefix("network/") for label in joined):
        members = {"matchLabels": {f"network/{network}": "joined"}}
        policy = policies.pop(network)
        assert policy["podSelector"] == members
        if network == "link":
            assert policy[outwards[side]] == [{"ports": [{"port": 8000}]}]
            assert policy["policyTypes"] == [outwards[side].capitalize()]
        else:
            assert policy["ingress"] == [{"from": [{"podSelector": members}]}]
            assert policy["egress"] == [{"to": [{"podSelector": members}]}]
    (dns,) = policies.values()
    assert {port["port"] for rule in dns["egress"] for port in rule["ports"]} == {53}
    assert not dns["podSelector"]["matchLabels"].items() <= {"app": "app", "network/silo": "joined"}.items()


def test_data_are_where_the_app_is_which_reaches_its_supernode_alone():
    labels, pod = pods("silo")["app"]
    assert labels == {"app": "app", "network/silo": "joined"}
    assert [name for name, (_, pod) in pods("silo").items() if "/data" in mounted(pod)] == ["app", "data"]
    assert {name for name, (labels, _) in pods("silo").items() if "network/silo" in labels} == {"app", "node"}
    (alias,) = pod["hostAliases"]
    (service,) = objects("silo", kind="Service")
    assert service["spec"]["clusterIP"] == alias["ip"]
