"""The parts of a deployment: silos' folders, people in two silos, keys, the gate, and telling how a run ended."""

import asyncio
import datetime
import json
import os
import ssl
import sys
import tomllib
import unicodedata
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import tomli_w
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from examples import GUARANTEE, altered, changed, columns_section
from flwr.app import Context, RecordDict
from helpers import federation_of
from helpers_silos import rehearsed
from hypothesis import given, settings
from hypothesis import strategies as st
from own_model import beside
from typer.testing import CliRunner

from simulations import flower
from simulations.config.run_config import load_config, parse_config
from simulations.deployment import gate as gate_module
from simulations.deployment import keys as keys_module
from simulations.deployment import submit as submit_module
from simulations.deployment import superlink
from simulations.deployment.__main__ import app, main, separated
from simulations.deployment.gate import gate
from simulations.deployment.keys import make_keys
from simulations.deployment.submit import Link, bring, follow, submit
from simulations.engines.grids import LocalGrid
from simulations.flower import node_of
from simulations.records.run_directory import CHECKPOINT
from simulations.runs.build import build_problem, server_datasets
from simulations.runs.run import run
from simulations.runs.silos import FILE, prepare, silo_node, split
from strategies.non_private import ReferenceScheme
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Node, identities, repeated
from userdp.problems import Quadratic

DEMO = Path(__file__).resolve().parents[3] / "simulations/configs/demo.toml"
SALT = b"s" * 16


def demo(*overrides):
    return load_config(DEMO, ["data.users=240", "privacy.noise='seeded'", *overrides])


def raw_table(path, **more):
    return {
        "name": "tables",
        "problem": {"kind": "quadratic", "radius": 1.0},
        "data": columns_section(path, {"x": [0.0, 10.0]}, user="person", test_fraction=0.0) | more,
        "privacy": {"epsilon": 5.0, "delta": 1e-3},
        "strategy": {"kind": "dp_fed_sgd", "rounds": 2, "max_missing": 0.0},
        "output": {"reference": False, "anyway": True},
    }


def table(path, people, rows=3, **more):
    lines = [f"{person},{(7 * at + row) % 11}" for at, person in enumerate(people) for row in range(rows)]
    path.write_text("\n".join(["person,x", *lines]) + "\n")
    return parse_config(raw_table(path, **more))


# People -------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.text(max_size=8), max_size=30), st.binary(min_size=16, max_size=64))
def test_people_are_repeated_exactly_when_their_labels_are_and_digests_of_two_salts_cannot_be_matched(labels, salt):
    same = {unicodedata.normalize("NFKC", label).strip() for label in labels}
    found = identities(labels, salt)
    assert repeated(found) == len(labels) - len(same)
    other = identities(labels, salt + b"t" if len(salt) < 64 else salt[:-1])
    assert repeated(np.concatenate([found, other])) == 2 * (len(labels) - len(same))


def nodes_of(config, folders):
    problem = build_problem(config)
    return [silo_node(config, problem, folder) for folder in folders]


def silo_grid(config, folders):
    return LocalGrid(nodes_of(config, folders))


def three(tmp_path):
    return [tmp_path / f"silo-{number}" for number in (1, 2, 3)]


def own_model(folder):
    settings = ["data.all_users=30", "data.test_fraction=0", "strategy.rounds=1", 'problem.execution="loop"']
    settings += ['problem.precision="double"', "output.reference=false"]
    return load_config(beside(folder, listeners=30, heard=10), settings)


@pytest.mark.parametrize(
    ("configured", "sizes", "deployed"),
    [
        (lambda folder: demo(), [80, 80, 80], True),
        (lambda folder: table(folder / "all.csv", [f"p{n}" for n in range(10)]), [4, 3, 3], False),
        (own_model, [10, 10, 10], False),
    ],
    ids=["demo", "table", "own model"],
)
def test_silos_give_the_model_and_guarantee_of_the_simulation(tmp_path, configured, sizes, deployed):
    config, folders = configured(tmp_path), three(tmp_path)
    assert split(config, folders) == sizes
    rehearsed(folders)
    nodes = nodes_of(config, folders)
    labels = [label for node in nodes for label in node.labels]
    assert len(labels) == len(set(labels)) == sum(sizes)
    with LocalGrid(nodes) as grid:
        there = run(config, grid=grid, directory=tmp_path / "there", report=False, deployed=deployed)
    here = run(config, directory=tmp_path / "here", report=False)
    np.testing.assert_allclose(there.model, here.model, rtol=1e-7, atol=1e-9)
    assert there.result["guarantee"] == here.result["guarantee"]
    assert there.result["metrics"] == pytest.approx(here.result["metrics"], rel=1e-9)


@pytest.mark.parametrize("deployed", [True, False])
@pytest.mark.usefixtures("accounts")
def test_a_person_in_two_silos_is_found_before_anything_is_trained(tmp_path, monkeypatch, deployed):
    folders = [tmp_path / name for name in "ab"]
    for folder, people, first in zip(folders, (["anna", "bert"], ["carl", " anna"]), (0, 2), strict=True):
        assert prepare(table(folder.with_suffix(".csv"), people), folder, first) == 2
    rehearsed(folders)
    config = parse_config(raw_table(tmp_path / "nowhere.csv", users=4))
    # Only noise that may protect people is accepted; which kinds there are does not matter here.
    for name in ["server_datasets"] if deployed else ["server_datasets", "load_datasets"]:
        monkeypatch.setattr(f"simulations.runs.run.{name}", lambda config: server_datasets(with_secure_noise(config)))
    with pytest.raises(RunFailed, match="one person in two places has no guarantee"):
        run(config, grid=silo_grid(config, folders), directory=tmp_path / "run", deployed=deployed)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["rounds"] == 0
    assert "anna" not in json.dumps(result)


def test_a_deployment_trains_nothing_without_privacy(tmp_path, monkeypatch):
    config, folders = demo(), three(tmp_path)
    split(config, folders)
    assert config.trains_reference
    monkeypatch.setattr(ReferenceScheme, "ask", lambda *_, **__: pytest.fail("trained without privacy"))
    grid = silo_grid(config, folders)
    outcome = run(config, grid=grid, directory=tmp_path / "run", report=False, deployed=True)
    assert outcome.result["reference_private"] == {"non_private": None}


@pytest.mark.usefixtures("accounts")
def test_the_server_of_a_deployment_opens_no_table(tmp_path, monkeypatch):
    local = with_secure_noise(table(tmp_path / "t.csv", ["anna", "bert", "carl", "dora"], users=4))
    prepare(local, tmp_path / "silo", 0)
    grid = silo_grid(local, [tmp_path / "silo"])
    monkeypatch.setattr("userdp.data.tables.sources.table_of", lambda *_, **__: pytest.fail("a table was opened"))
    result = run(local, grid=grid, directory=tmp_path / "run", report=False, deployed=True).result
    assert (result["users"], result["samples"], result["samples_private"]) == (4, None, None)
    assert json.loads((tmp_path / "run" / "data.json").read_text())["table_private"] is None


def with_secure_noise(config):
    return altered(config, privacy__noise="secure")


def test_a_deployment_refuses_silos_that_do_not_say_who_their_users_are(tmp_path):
    config, folders = demo(), three(tmp_path)
    split(config, folders)
    nodes = nodes_of(config, folders)
    for silent, deployed, told in (
        (1, True, "node 2 does not say who its users are"),
        (0, False, "node 3 alone says who its users are"),
        (2, True, "node 1 does not say who its users are"),
    ):
        nodes[silent].labels = None
        with pytest.raises(RunFailed, match=told):
            run(config, grid=LocalGrid(nodes), directory=tmp_path / f"run-{silent}", deployed=deployed)


def test_a_node_checks_labels_and_salt():
    def node(labels):
        return Node(Quadratic(1, 1.0, 1.0), federation_of(np.zeros((2, 1))), np.arange(2), labels=labels)

    with pytest.raises(BadInput, match="1 labels are given for 2 users"):
        node(["a"])
    with pytest.raises(BadInput, match="users have no labels"):
        node(None).identities(SALT)
    with pytest.raises(BadInput, match="the salt must be 16 to 64 bytes, got 3"):
        node(["a", "b"]).identities(b"abc")


# Silos --------------------------------------------------------------------------------------------------------------


def test_what_the_server_of_a_deployment_may_read(tmp_path):
    assert server_datasets(demo()).train.users == 240
    raw = raw_table(tmp_path / "t.csv")
    cases = {
        "output.reference = true": raw | {"output": {"reference": True}},
        "data.test_fraction = 0.5": raw_table(tmp_path / "t.csv", test_fraction=0.5),
        "data.users is missing": raw,
        "privacy.accounts = 'sqlite:////own'": raw | {"privacy": raw["privacy"] | {"accounts": "sqlite:////own"}},
        r'privacy.noise = "seeded": whoever knows the seed': raw_table(tmp_path / "t.csv", users=1),
    }
    for message, one in cases.items():
        with pytest.raises(BadInput, match=message):
            server_datasets(parse_config(one))
    datasets = server_datasets(with_secure_noise(parse_config(raw_table(tmp_path / "t.csv", users=1))))
    assert (datasets.train, datasets.test) == (None, None)
    with pytest.raises(BadInput, match="the users' data are with the silos"):
        datasets.users  # noqa: B018


def test_silos_and_keys_that_cannot_be_made_are_refused(tmp_path):
    config = table(tmp_path / "t.csv", ["anna", "bert"])
    (tmp_path / "file").write_text("")
    held_out = parse_config(raw_table(tmp_path / "t.csv", test_fraction=0.5))
    for make, told in (
        (lambda: split(config, three(tmp_path)), "3 silos for 2 users"),
        (lambda: split(held_out, three(tmp_path)[:1]), "held-out users would be in no silo"),
        (lambda: prepare(config, tmp_path / "file", 0), "users.npz cannot be written"),
        (lambda: make_keys(tmp_path, 1, ("gäte",)), "neither a name nor an address"),
        (lambda: make_keys(tmp_path / "file", 1), "cannot be written"),
    ):
        with pytest.raises(BadInput, match=told):
            make()


def test_a_folder_that_does_not_fit_the_configuration_is_refused(tmp_path):
    config = table(tmp_path / "t.csv", ["anna", "bert"])
    prepare(config, tmp_path / "silo", 0)
    rehearsed([tmp_path / "silo"])
    other = parse_config(raw_table(tmp_path / "t.csv", categorical={"y": ["anna"]}))
    with pytest.raises(BadInput, match="samples have 1 columns, and 2 are declared"):
        nodes_of(other, [tmp_path / "silo"])
    (tmp_path / "silo" / FILE).write_bytes(b"no archive")
    for folder in ("silo", "nowhere"):
        with pytest.raises(BadInput, match="is not the file of a silo"):
            nodes_of(config, [tmp_path / folder])


def test_how_many_samples_a_user_holds_does_not_keep_a_silo_away(tmp_path, caplog):
    prepare(table(tmp_path / "t.csv", ["anna", "bert"]), tmp_path / "silo", 0)

    def node(**declared):
        config = with_secure_noise(parse_config(raw_table(tmp_path / "t.csv", **declared)))
        (made,) = nodes_of(config, [tmp_path / "silo"])
        return made

    whole, most = (one._samples._federation for one in (node(), node(max_samples=2)))
    everybody = np.arange(2)
    assert whole.block(everybody).sizes.min() > 2
    np.testing.assert_array_equal(most.block(everybody).sizes, [2, 2])
    for user in everybody:
        kept, held = (part.block(everybody[user : user + 1]).features for part in (most, whole))
        np.testing.assert_array_equal(kept, held[:2])
    assert len(node(min_samples=4).users) == 2
    assert "holds fewer samples than data.min_samples = 4" in caplog.text


def test_silos_of_the_demo_share_held_out_users_and_measure_privately_without_a_key(tmp_path):
    few = ["data.users=240", "data.test_users=30", "output.anyway=true", "engine.roster_timeout=0.1"]
    config = load_config(DEMO, few)
    assert config.privacy.evaluate
    folders = three(tmp_path)
    assert split(config, folders) == [90, 90, 90]
    nodes = nodes_of(config, folders)
    assert [np.count_nonzero(node.users >= 240) for node in nodes] == [10, 10, 10]
    with LocalGrid(nodes) as grid:
        done = run(config, grid=grid, directory=tmp_path / "run", report=False, deployed=True)
    assert done.result["held_out"]["users"] == 30
    assert {"log_loss", "accuracy"} <= set(done.result["held_out"]["metrics"])
    assert "evaluate = true" in (tmp_path / "run" / "config.toml").read_text()
    with LocalGrid(nodes[:2]) as grid:  # one silo of three is silent, with a third of either part
        without = run(config, grid=grid, directory=tmp_path / "without", report=False, deployed=True)
    assert {"log_loss", "accuracy"} <= set(without.result["held_out"]["metrics"])
    seeded = load_config(DEMO, [*few, "privacy.noise='seeded'"])
    assert [len(node.users) for node in nodes_of(seeded, folders)] == [80, 80, 80]
    with LocalGrid(nodes_of(seeded, folders)) as grid:
        simulated = run(seeded, grid=grid, directory=tmp_path / "seeded", report=False, deployed=True)
    assert "held_out" not in simulated.result


def test_a_node_config_with_a_silo_reads_that_silo(tmp_path):
    split(demo(), [tmp_path])
    asked = {"config": str(DEMO), "set.data.users": 240, "set.privacy.noise": "seeded"}
    node = node_of(Context(1, 1, {"silo": str(tmp_path)}, RecordDict(), asked))
    assert len(node.users) == 240
    assert node.labels[7] == "synthetic-7"
    assert separated(" ; a=1;") == ("a=1",)


# Keys ---------------------------------------------------------------------------------------------------------------


def test_keys_are_one_authoritys_each_partys_own_and_for_its_owner_alone(tmp_path):
    assert make_keys(tmp_path, 2, ("gate.example.org", "10.1.2.3"))
    authority = x509.load_pem_x509_certificate((tmp_path / "superlink/ca.crt").read_bytes())
    for party, host in (("superlink", "superlink"), ("gate", "gate.example.org"), ("node-2", "node-2")):
        certificate = x509.load_pem_x509_certificate((tmp_path / party / "server.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert host in names.get_values_for_type(x509.DNSName)
        lasts = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=29) < lasts <= datetime.timedelta(days=30)
    for number in (1, 2):
        private = serialization.load_ssh_private_key((tmp_path / f"node-{number}/node.key").read_bytes(), None)
        public = serialization.load_ssh_public_key((tmp_path / f"superlink/node-{number}.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.public_key() == public
        assert (tmp_path / f"app-{number}/superexec.secret").read_bytes() == (
            tmp_path / f"node-{number}/superexec.secret"
        ).read_bytes()
        assert not (tmp_path / f"app-{number}/node.key").exists()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    # Of two servers and of two nodes a certificate's key each, two nodes' own keys, and three secrets.
    assert len({path.read_bytes() for path in files if path.suffix in {".key", ".secret"}}) == 4 + 2 + 3


def test_good_keys_stay_and_others_are_all_made_anew(tmp_path, monkeypatch):
    assert make_keys(tmp_path, 2)
    before = (tmp_path / "superlink/ca.crt").read_bytes()
    assert not make_keys(tmp_path, 2)
    assert (tmp_path / "superlink/ca.crt").read_bytes() == before
    assert make_keys(tmp_path, 1)
    assert [path.name for path in (tmp_path / "superlink").glob("*.pub")] == ["node-1.pub"]
    (tmp_path / "app-1/ca.crt").write_bytes(before)
    assert make_keys(tmp_path, 1)
    (tmp_path / "gate/server.key").unlink()
    assert make_keys(tmp_path, 1)
    monkeypatch.setattr(keys_module, "_RENEW", datetime.timedelta(days=keys_module.DAYS + 1))
    assert make_keys(tmp_path, 1)


# The gate -----------------------------------------------------------------------------------------------------------


def through_the_gate(upstream, *requests):
    reached = []

    def answer(request):
        reached.append(request)
        return upstream(request)

    async def ask():
        behind = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://superlink:8000")
        front = httpx.ASGITransport(gate(behind))
        async with httpx.AsyncClient(transport=front, base_url="https://gate:8000") as client:
            return [await client.request(method, path, **more) for method, path, more in requests]

    return asyncio.run(ask()), reached


def test_the_gate_passes_on_what_supernodes_send_and_the_signature_with_it():
    def upstream(request):
        return httpx.Response(200, stream=httpx.ByteStream(b"reply to " + request.content), headers={"x-kind": "x"})

    request = ("POST", "/v1/fleet/pull-messages", {"content": b"hello", "headers": {"x-signature": "abc"}})
    (reply,), (reached,) = through_the_gate(upstream, request)
    assert (reply.status_code, reply.content, reply.headers["x-kind"]) == (200, b"reply to hello", "x")
    assert (reached.url.path, reached.headers["x-signature"]) == ("/v1/fleet/pull-messages", "abc")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/runtime/pull-messages",
        "/docs",
        "/v1/fleet",
        "/",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/pull-messages/more",
        "/v1/fleet//..%2fcontrol/start-run",
    ],
)
def test_the_gate_lets_nothing_else_through(path, caplog):
    (reply,), reached = through_the_gate(lambda request: httpx.Response(200), ("POST", path, {}))
    assert (reply.status_code, reached) == (403, [])
    assert "is not for silos" in caplog.text


def test_the_gate_says_who_was_refused_and_when_the_superlink_is_gone(caplog):
    gone = Mock(side_effect=httpx.ConnectError("nobody there"))
    request = ("POST", "/v1/fleet/activate-node", {})
    (refused,), _ = through_the_gate(lambda request: httpx.Response(401, stream=httpx.ByteStream(b"")), request)
    (lost,), _ = through_the_gate(gone, request)
    assert (refused.status_code, lost.status_code) == (401, 503)
    assert "/v1/fleet/activate-node gave 401" in caplog.text
    assert "the SuperLink does not answer (ConnectError)" in caplog.text


# Flower's command line, the SuperLink, the end of a run ---------------------------------------------------------------


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()

    def answers(body):
        program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return answers


@pytest.mark.slow
def test_a_link_reads_answers_and_tells_what_went_wrong(flwr, tmp_path, monkeypatch):
    link = Link("superlink:8000", tmp_path)
    assert f'root-certificates = "{tmp_path}/ca.crt"' in (link.home / "config.toml").read_text()
    assert "insecure = true" in (Link("superlink:8000", None).home / "config.toml").read_text()
    flwr('print(\'Loading\'); print(\'{"success": true, "run-id": "7"}\')')
    assert link.ask("run", "LINK")["run-id"] == "7"
    for body, message in {
        "sys.exit('first\\nno such key')": "no such key",
        'print(\'{"success": false, "error-message": "not you"}\')': "not you",
        "print('{half')": "half",
        "pass": "nothing",
    }.items():
        flwr(body)
        with pytest.raises(RunFailed, match=f"flwr run failed: .*{message}"):
            link.ask("run", "LINK")
    flwr("import time; time.sleep(9)")
    monkeypatch.setattr("simulations.deployment.submit._SECONDS", 0.2)
    with pytest.raises(RunFailed, match="did not answer within"):
        link.ask("run", "LINK")


def test_a_run_is_followed_to_its_end_or_given_up_when_the_superlink_forgets_it(flwr, tmp_path, monkeypatch):
    monkeypatch.setattr(submit_module, "_PAUSE_SECONDS", 0.01)
    link = Link("superlink:8000", None)
    count = tmp_path / "count"
    count.write_text("")
    flwr(
        f"path = {str(count)!r}\n"
        "if sys.argv[1] == 'log': sys.exit(0)\n"
        "polls = len(open(path).read())\n"
        "open(path, 'a').write('x')\n"
        "if polls == 0: sys.exit('busy')\n"
        "status = 'running' if polls == 1 else 'finished:completed'\n"
        'print(\'{"success": true, "runs": [{"status": "%s"}]}\' % status)'
    )
    assert follow(link, "7") == "finished:completed"
    monkeypatch.setattr(submit_module, "_PATIENCE_SECONDS", 0.0)
    flwr('print(\'{"success": true, "runs": []}\')')
    assert follow(link, "7").startswith("lost: the SuperLink restarted or is gone")


def leave(folder, *, error=None, without=()):
    folder.mkdir(exist_ok=True)
    contents = {
        "result.json": json.dumps({"rounds": 1} | ({} if error is None else {"error": error})),
        "guarantee.json": json.dumps(GUARANTEE.as_dict()),
        "model.npz": "x",
        "report.html": "<html>",
    }
    for name, content in contents.items():
        if name not in without:
            (folder / name).write_text(content)


def test_exit_code_zero_means_completed_without_error_and_with_all_files(tmp_path, capsys):
    out, there = tmp_path / "out", tmp_path / "there"
    out.mkdir()
    leave(there)
    assert bring(there, out, "finished:completed") == 0
    assert bring(there, out, "finished:failed") == 1
    assert "the run failed (finished:failed): its log says why" in capsys.readouterr().err
    leave(there, error="too few answered")
    assert bring(there, out, "finished:completed") == 1
    assert "too few answered" in capsys.readouterr().err
    (there / "report.html").unlink()
    leave(there, without=("report.html",))
    assert bring(there, out, "finished:completed") == 1
    assert "it left no report.html" in capsys.readouterr().err
    assert not (out / "report.html").exists()  # of the run before
    assert bring(tmp_path / "nowhere", out, "lost") == 1


SCRIPT = """
import json, pathlib, tomllib
if sys.argv[1] == 'run':
    settings = tomllib.loads(pathlib.Path(sys.argv[sys.argv.index('--run-config') + 1]).read_text())
    assert settings['deployed'] is True and tomllib.loads(settings['settings'])['seed'] == 3
    folder = pathlib.Path(settings['output'])
    {submitted}
    print(json.dumps({{'success': True, 'run-id': 5}}))
elif sys.argv[1] == 'ls':
    print(json.dumps({{'success': True, 'runs': [{{'status': 'finished:{ending}'}}]}}))
"""
"""A `flwr` that takes a run and says how it ended."""


def test_a_submission_runs_the_configuration_as_a_deployment(flwr, tmp_path):
    out, results, whole = tmp_path / "out", tmp_path / "results", tmp_path / "whole"
    out.mkdir()
    leave(whole)
    flwr(SCRIPT.format(submitted=f"import shutil; shutil.copytree({str(whole)!r}, folder)", ending="completed"))
    assert submit(Link("superlink:8000", None), tmp_path, "seed = 3", results=results, output=out) == 0
    arguments = ["submit", "--config", str(DEMO), "--overrides", "seed=3", "--app", str(tmp_path), "--insecure"]
    arguments += ["--results", str(results), "--output", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    with pytest.raises(BadInput, match="cannot be written by user"):
        submit(Link("superlink:8000", None), tmp_path, "seed = 3", results=results, output=tmp_path / "nowhere")


def test_a_submission_goes_on_with_a_run_that_stopped(flwr, tmp_path, capsys):
    out, folder = tmp_path / "out", tmp_path / "results" / "stopped"
    out.mkdir()
    folder.mkdir(parents=True)
    flwr(SCRIPT.format(submitted=f"assert str(folder) == {str(folder)!r}", ending="failed"))
    given = Link("superlink:8000", None), tmp_path, "seed = 3"
    places = {"results": tmp_path / "results", "output": out, "resume": "stopped"}
    with pytest.raises(BadInput, match="holds no checkpoint"):
        submit(*given, **places)
    (folder / CHECKPOINT).touch()
    assert submit(*given, **places) == 1
    assert "resume it with --resume stopped" in capsys.readouterr().err
    assert not (out / CHECKPOINT).exists()


def test_the_superlink_is_ready_only_while_healthy_and_with_every_key(flwr, tmp_path, monkeypatch):
    make_keys(tmp_path / "keys", 2)
    keys = tmp_path / "keys" / "superlink"
    assert "--enable-supernode-auth" in superlink.command(keys)
    assert "--insecure" in superlink.command(None)
    ready, seen = tmp_path / "ready", []
    monkeypatch.setattr(superlink, "READY", ready)
    monkeypatch.setattr(superlink, "_POLL_SECONDS", 0.01)
    tried = tmp_path / "tried"
    flwr(
        f"path = {str(tried)!r}\n"
        "open(path, 'a').write(sys.argv[3] + '\\n')\n"
        "if len(open(path).readlines()) == 1: sys.exit('busy')\n"
        'print(\'{"success": true, "node-id": 7}\')'
    )

    class Process:
        returncode = 3
        polls = 0

        def poll(self):
            seen.append(ready.exists())
            self.polls += 1
            return 3 if self.polls > 5 else None

        def terminate(self):
            pass

    health = iter([False, True, True, True, False])
    monkeypatch.setattr(superlink, "_healthy", lambda keys: next(health))
    monkeypatch.setattr(superlink, "Popen", lambda command, env: Process())
    monkeypatch.setattr(superlink.signal, "signal", lambda *_: None)
    assert superlink.serve(keys, tmp_path / "names") == 3
    assert seen == [False, False, False, True, True, False]
    assert [Path(line).name for line in tried.read_text().split()] == ["node-1.pub", "node-2.pub", "node-1.pub"]
    assert json.loads((tmp_path / "names").read_text()) == {"7": "node-2"}  # or 1: this SuperLink knows one number


def test_with_keys_every_program_believes_its_own_authority_alone_and_none_is_without_tls(tmp_path, monkeypatch):
    make_keys(tmp_path, 1)
    keys = tmp_path / "superlink"
    linked = tomllib.loads((Link("superlink:8000", keys).home / "config.toml").read_text())["superlink"]
    assert linked[linked["default"]] == {"address": "superlink:8000", "root-certificates": str(keys / "ca.crt")}
    command = superlink.command(keys)
    given = dict(pairwise(command))
    files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
    for option, name in files.items():
        assert given[f"--ssl-{option.removeprefix('ssl-')}"] == str(keys / name)
    assert given["--superexec-auth-secret-file"] == str(keys / "superexec.secret")
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    asked = []

    def opened(address, timeout, context):
        asked.append((address.partition(":")[0], context))
        raise OSError

    monkeypatch.setattr(superlink.urllib.request, "urlopen", opened)
    assert not superlink._healthy(keys)
    ((scheme, context),) = asked
    assert (scheme, context.verify_mode, context.check_hostname) == ("https", ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1


def test_a_superlink_that_does_not_listen_is_not_healthy(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink, "PORT", 1)
    assert not superlink._healthy(None)
    make_keys(tmp_path, 1)
    assert not superlink._healthy(tmp_path / "superlink")


# The compose files --------------------------------------------------------------------------------------------------


def composed(name):
    return yaml.safe_load((DEMO.parents[2] / name).read_text())


@pytest.mark.parametrize("service", composed("docker-compose.yml")["services"])
def test_every_service_gives_up_what_it_does_not_need(service):
    found = composed("docker-compose.yml")["services"][service]
    wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
    assert {name: found[name] for name in wanted} == wanted
    assert found["mem_limit"]
    assert "ports" not in found
    assert service == "run" or not {"user", "cap_add"} & found.keys()


def test_networks_are_closed_and_each_silos_own():
    whole = composed("docker-compose.yml")
    assert all(network == {"internal": True} for network in whole["networks"].values())
    services = whole["services"]
    for number in "123":
        assert services[f"app-{number}"]["networks"] == [f"silo-{number}"]
        assert services[f"node-{number}"]["networks"] == [f"link-{number}", f"silo-{number}"]
        assert sorted(services[f"app-{number}"]["volumes"]) == [
            f"keys-app-{number}:/keys:ro",
            f"silo-{number}:/data",
        ]
    assert "coordinator" in services["gate"]["networks"]
    inside = {name for name, service in services.items() if "coordinator" in service.get("networks", [])}
    assert inside == {"superlink", "gate", "coordinator-app", "run"}


def test_tls_is_off_by_the_override_alone():
    whole, override = composed("docker-compose.yml")["services"], composed("docker-compose.insecure.yml")["services"]
    assert "insecure" not in json.dumps(whole)
    assert override.keys() <= whole.keys()
    assert all("--insecure" in service["command"] for service in override.values())
    assert override.keys() == {name for name in whole if name not in {"keys", "silos"}}


# The jobs -----------------------------------------------------------------------------------------------------------


def test_jobs_make_keys_and_silos(tmp_path):
    runner, keys_, data = CliRunner(), tmp_path / "keys", tmp_path / "data"
    for word in ("made for", "kept of"):
        assert word in runner.invoke(app, ["keys", "--output", str(keys_), "--silos", "1"]).output
    assert ssl.create_default_context(cafile=str(keys_ / "gate/ca.crt")).get_ca_certs()
    smaller = "data.users=9; privacy.noise='seeded'"
    said = runner.invoke(app, ["split", "--config", str(DEMO), "--output", str(data), "--overrides", smaller]).output
    assert "silos: 3, 3, 3 users" in said
    path = tmp_path / "run.toml"
    table(tmp_path / "t.csv", ["anna", "bert"])
    path.write_text(tomli_w.dumps(raw_table(tmp_path / "t.csv")))
    said = runner.invoke(
        app, ["prepare", "--config", str(path), "--output", str(tmp_path / "own"), "--first-user", "300"]
    ).output
    assert "silo: users 300 to 301" in said


@pytest.mark.parametrize(("error", "code"), [(BadInput("mend this"), 2), (RunFailed("it broke"), 1)], ids=repr)
def test_errors_of_jobs_are_sentences_with_exit_codes(error, code, monkeypatch, capsys):
    monkeypatch.setattr("simulations.deployment.__main__.app", Mock(side_effect=error))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == code
    assert capsys.readouterr().err == f"userdp: {error}\n"


def test_a_deployed_run_is_always_kept(monkeypatch, tmp_path):
    """A round that was asked must be on disk, whatever the configuration says of checkpoints."""
    config, run = parse_config(changed(output={"checkpoint": False})), Mock(return_value=Mock(directory=tmp_path))
    monkeypatch.setattr(flower, "run", run)
    monkeypatch.setattr(flower, "run_configuration", lambda context: config)
    monkeypatch.setattr(flower, "output_directory", lambda context, config: tmp_path)
    for deployed in (False, True):
        flower.main(None, SimpleNamespace(run_config={"deployed": deployed}))
        assert (run.call_args.kwargs["deployed"], run.call_args.kwargs["checkpoint"]) == (deployed, deployed)


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize(
    ("job", "module", "name"),
    [("gate", gate_module, "serve"), ("superlink", superlink, "serve"), ("submit", submit_module, "Link")],
)
def test_a_job_is_without_keys_only_if_it_is_asked_to_be(job, module, name, insecure, monkeypatch):
    given = Mock(side_effect=BadInput("stopped here"))
    monkeypatch.setattr(module, name, given)
    words = ["--config", "c.toml"] if job == "submit" else []
    CliRunner().invoke(app, [job, *words, *["--insecure"] * insecure])
    (arguments,) = [call.args for call in given.call_args_list]
    assert [one for one in arguments if one == Path("/keys")] == [Path("/keys")] * (not insecure)
    assert insecure == (None in arguments) or job == "superlink"
    if job == "gate":
        door, body = arguments[3:]
        assert (door.connections, door.each, door.seconds, body) == (256, 64, 30.0, 64 * 2**20)
