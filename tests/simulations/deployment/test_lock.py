"""The lock of the image: pinned by constraints.txt, each file by its digest, all of it and nothing else."""

import re
import runpy
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]


def pins(name):
    """Each package's version, and how many digests it has."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [re.fullmatch(r"([\w.-]+)==([\w.+]+)((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line) for line in lines]
    assert all(found)
    return {canonicalize_name(each[1]): (each[2], each[3].count("--hash")) for each in found}


def test_the_lock_has_the_versions_that_are_tested_and_a_digest_for_each():
    tested, locked = pins("constraints.txt"), pins("requirements.lock")
    built = {canonicalize_name(Requirement(one).name) for one in build_system()["requires"]}
    assert {name: version for name, (version, _) in locked.items() if name not in built} == {
        name: tested[name][0] for name in locked.keys() - built
    }
    assert all(digests > 0 for _, digests in locked.values())


def build_system():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]


def test_the_lock_has_all_that_the_package_and_a_deployment_ask_for():
    locked = pins("requirements.lock")
    tool = runpy.run_path(str(ROOT / "deploy/lock.py"))
    asked = [Requirement(one) for one in tool["wanted"]()]
    there = {"python_version": "3.11", "sys_platform": "linux"}
    for one in asked:
        name = canonicalize_name(one.name)
        if name != "torch" and (one.marker is None or one.marker.evaluate(there)):
            assert locked[name][0] in one.specifier, one
    assert not locked.keys() & {"torch", "ray"}
    assert not [name for name in locked if name.startswith("nvidia")]
    (builder,) = build_system()["requires"]
    assert str(Requirement(builder).specifier) == f"=={locked['setuptools'][0]}"


def test_the_image_installs_the_lock_and_checks_it():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    installs = re.findall(r"pip install[^&\n]+", text)
    assert [set(one.split()) >= {"--no-deps"} for one in installs] == [True, False, True]
    assert "--require-hashes -r requirements.lock" in installs[0]
    assert installs[1].split()[-3:] == ["-c", "constraints.txt", "${TORCH}"]
    assert "--no-build-isolation" in installs[2]
    assert "!requirements.lock" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def test_a_release_says_what_it_is_made_of():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    steps = jobs["build"]["steps"]
    made = [at for at, step in enumerate(steps) if "cyclonedx-py requirements requirements.lock" in step.get("run", "")]
    kept = [at for at, step in enumerate(steps) if step.get("with", {}).get("path") == "sbom.json"]
    assert len(made) == len(kept) == 1
    assert made < kept
