"""A release has one version everywhere, waits for a person before the index gets it, and is made by pinned tools."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def test_the_version_is_the_same_wherever_it_is_written():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert cited["version"] == newest[1] == PROJECT["version"] == str(Version(PROJECT["version"]))
    assert cited["license"] == PROJECT["license"]
    assert [one["name"] for one in cited["authors"]] == [one["name"] for one in PROJECT["authors"]]


@pytest.mark.parametrize("app", sorted(ROOT.glob("apps/*/pyproject.toml")), ids=lambda path: path.parent.name)
def test_apps_take_this_version(app):
    needs = map(Requirement, tomllib.loads(app.read_text(encoding="utf-8"))["project"]["dependencies"])
    (own,) = (one for one in needs if one.name == "userdp")
    assert own.specifier.contains(PROJECT["version"], prereleases=True)


def test_nothing_is_published_before_a_person_approves_it_and_no_secret_is_kept():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "secrets." not in text
    assert "password" not in text
    release = workflow("release")
    assert release["permissions"] == {"contents": "read"}
    build, publish = (release["jobs"][name] for name in ("build", "publish"))
    assert "environment" not in build
    assert "permissions" not in build
    assert "make dist" in [step.get("run") for step in build["steps"]]
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert publish["permissions"]["id-token"] == publish["permissions"]["attestations"] == "write"
    publishing = [job for job in release["jobs"].values() if "pypi-publish" in str(job)]
    assert publishing == [publish]


def test_every_change_is_built_and_spelt_with_pinned_tools():
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    named = {Requirement(one).name for one in PROJECT["optional-dependencies"]["dev"]}
    for tool in ("build", "codespell", "twine"):
        assert tool in named
        assert re.search(rf"^{tool}==", pins, re.MULTILINE)
    assert {".ci/run"} <= {step.get("run") for step in workflow("ci")["jobs"]["change"]["steps"]}
    assert '"dist" make dist' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(called in makefile for called in ("-m build\n", "twine check --strict dist/*\n", "$(BIN)/codespell\n"))


def test_whoever_opens_a_development_container_gets_what_ci_installs():
    opened = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    torch = workflow("ci")["jobs"]["change"]["env"]["TORCH"]
    assert opened["postCreateCommand"] == f"make install TORCH='{torch}'"
    python = next(iter(workflow("ci")["jobs"]["change"]["steps"][1]["with"].values()))
    assert opened["image"].endswith(f":{python}")
    assert workflow("release")["jobs"]["build"]["env"]["TORCH"] == torch
