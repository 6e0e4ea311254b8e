"""A release has one version everywhere, waits for a person before the index gets it, and is made by pinned tools."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
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


REPOSITORY = {"GITHUB_REPOSITORY": "people/userdp", "GITHUB_SHA": "abc123"}


def targets(text: str) -> list[str]:
    """The targets of the links and pictures of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def described():
    spec = importlib.util.spec_from_file_location("userdp_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.description


def test_the_index_shows_a_readme_whose_links_and_picture_lead_to_the_commit_that_was_built(described):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = described(readme, REPOSITORY)
    raw = "https://raw.githubusercontent.com/people/userdp/abc123/"
    page = "https://github.com/people/userdp/blob/abc123/"
    assert len(targets(shown)) == len(targets(readme)) > 20
    for before, after in zip(targets(readme), targets(shown), strict=True):
        if "://" in before:
            assert after == before
        else:
            assert after in (raw + before, page + before)
            assert (ROOT / before.partition("#")[0]).exists()
    assert f"]({raw}docs/user-level.svg)" in shown
    assert described(readme, {}) == readme
    assert described("[above](#above)", REPOSITORY) == "[above](#above)"


@pytest.mark.slow
def test_the_metadata_that_is_built_has_that_readme(described, tmp_path):
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "userdp").mkdir()
    make = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    environment = os.environ | REPOSITORY | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", make], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    made = tmp_path / done.stdout.splitlines()[-1] / "METADATA"
    metadata = message_from_string(made.read_text(encoding="utf-8"))
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.get_payload().strip() == described(readme, REPOSITORY).strip()


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
