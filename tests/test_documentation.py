"""Documents and code agree, and the code keeps the rules that it sets itself."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import made_pages
import pytest
import yaml

from simulations.config.run_config import EngineSection, OutputSection, PrivacySection, RunConfig, strategy_section
from simulations.deployment.keys import DAYS
from strategies import STRATEGIES
from userdp.data import POPULATIONS
from userdp.data.synthetic.source import synthetic_settings
from userdp.data.tables.sources import PublicData, TableData
from userdp.problems.registry import PROBLEMS

ROOT = Path(__file__).resolve().parent.parent
made_pages.made()
PACKAGES = ("userdp", "strategies", "simulations")
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("research/*.md"),
        *ROOT.glob("strategies/**/*.md"),
        *ROOT.glob("apps/*/*.md"),
    ]
)
REHEARSED = {"keys", "silos"}
"""Services of docker-compose.yml that are done before a run starts."""
FORBIDDEN = {
    "userdp": {"flwr", "ray", "strategies", "simulations"},
    "strategies": {"ray", "simulations"},
    "simulations": {"tests", "benchmarks", "research"},
}


def sources(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "sweeps" not in path.parts)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_of_documents_exist(document):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [link for link in links if link and "://" not in link and not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", ["docs/guarantees.md", "docs/architecture.md"])
def test_files_that_documents_name_exist(document):
    named = re.findall(r"`([\w/]+\.(?:py|toml|md))`", (ROOT / document).read_text(encoding="utf-8"))
    assert named
    folders = (ROOT, *(ROOT / package for package in PACKAGES))
    assert not [name for name in named if not any((folder / name).exists() for folder in folders)]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tables_of_the_architecture_have_every_room_and_no_other(package):
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    _, _, rows = page.partition(f"| `{package}` | what is there |\n|---|---|\n")
    listed = re.findall(r"`([\w.]+)`", "".join(re.findall(r"^\| (.+?) \|", rows.partition("\n\n")[0], re.MULTILINE)))
    modules = {file.relative_to(ROOT / package) for file in sources(package)} - {Path("__init__.py")}
    assert sorted(listed) == sorted({file.parts[0] for file in modules})


def test_the_page_for_operators_names_what_the_compose_file_has():
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = {name: service for name, service in compose["services"].items() if "-2" not in name and "-3" not in name}
    assert not [name for name in services if f"`{name.replace('-1', '-k')}`" not in page]
    assert {name for name, service in services.items() if "healthcheck" in service} == {*REHEARSED, "superlink"}
    assert {service["mem_limit"] for service in services.values()} == {"1g", "2g"}
    assert compose["services"]["superlink"]["mem_limit"] == "2g"
    assert f"last {DAYS} days" in page
    for network in ("coordinator", "silo-1", "link-1"):
        assert compose["networks"][network] == {"internal": True}
        assert f"`{network.replace('-1', '-k')}`" in page


def test_every_sharp_edge_names_a_test_that_there_is():
    rows = re.findall(
        r"^\| .* \| `(\w+)` \|$", (ROOT / "docs/sharp-edges.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    texts = (path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    known = {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}
    assert len(rows) >= 20
    assert not set(rows) - known


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_in_the_documents_with_its_assumptions(name):
    strategy = STRATEGIES[name]
    assert f"| [{name}](strategy/{name}.md) |" in (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    page = (ROOT / f"docs/strategy/{name}.md").read_text(encoding="utf-8")
    wanted = ["*Claim.*", f"`{strategy.__name__}`", *(["*Assumptions.*"] if name != "non_private" else [])]
    assert [words for words in wanted if words not in page] == []
    assert "*Formal guarantees.*" in inspect.getdoc(strategy)
    # docs/guarantees.md sorts strategies by what they release; whoever trusts nodes releases no iterates.
    trusted = strategy.about.adversary.partition(";")[2]
    assert (strategy.about.release == "phase") == ("nodes" in trusted and "trusted not to use" not in trusted)


def public_members() -> list[tuple[str, object]]:
    """Public classes, functions and methods that are defined in userdp and strategies."""
    found = []
    for package in map(importlib.import_module, ("userdp", "strategies")):
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for module in [package, *(importlib.import_module(one.name) for one in walked)]:
            found.append((module.__name__, module))
            for name, member in vars(module).items():
                if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
                    continue
                if inspect.isclass(member) or inspect.isfunction(member):
                    found.append((f"{module.__name__}.{name}", member))
                for key, value in list(vars(member).items()) if inspect.isclass(member) else []:
                    method = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
                    inherited = any(
                        inspect.getdoc(vars(base).get(key)) for base in member.__mro__[1:] if key in vars(base)
                    )
                    if not key.startswith("_") and inspect.isfunction(method) and not inherited:
                        found.append((f"{module.__name__}.{name}.{key}", method))
    return found


def test_everything_public_has_a_docstring():
    members = public_members()
    assert len(members) > 300  # the walk finds them
    assert not [name for name, member in members if not (inspect.getdoc(member) or "").strip()]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.sweep(1)
@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    wrong = {str(path.relative_to(ROOT)): imported(path) & FORBIDDEN[package] for path in sources(package)}
    if package == "userdp":
        # The one arrow up: userdp.train, plan and compare, the estimators, and the contract of strategies, loaded when
        # they are asked for (docs/architecture.md).
        for door in ("userdp/__init__.py", "userdp/sklearn.py", "userdp/testing.py"):
            wrong[door] -= {"simulations"}
    assert not {path: names for path, names in wrong.items() if names}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_longer_than_400_lines(package):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(package)
    }
    assert not {path: length for path, length in lengths.items() if length > 400}


@pytest.fixture(scope="module")
def configuration() -> str:
    return (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


def test_every_page_that_is_made_is_up_to_date(module_of):
    make = module_of("make")
    for path, text in make.pages().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is stale; run: python docs/make.py"


def test_a_strategy_that_cannot_be_loaded_is_one_sentence_of_the_command_that_makes_pages(monkeypatch, module_of):
    make = module_of("make")
    monkeypatch.setitem(STRATEGIES.places, "new", "strategies.non_private:NonPrivat")
    monkeypatch.setattr("sys.argv", ["make.py", "--check"])
    with pytest.raises(SystemExit, match=r"names NonPrivat, which \S+ does not define; did you mean"):
        make.main()


def test_a_made_part_needs_a_place_and_leaves_the_rest_alone(module_of):
    marked = module_of("making.marked")
    page = f"above\n{marked.begin('table')}\nold\n{marked.END}\nbelow\n"
    made = marked.put(page, {"table": "new\n"})
    assert made == f"above\n{marked.begin('table')}\n\nnew\n\n{marked.END}\nbelow\n"
    assert marked.put(made, {"table": "new"}) == made
    with pytest.raises(ValueError, match="no place for 'list'"):
        marked.put(page, {"list": "new"})


def test_every_key_of_the_configuration_is_in_the_reference_with_a_meaning(configuration):
    models = [RunConfig, PrivacySection, EngineSection, OutputSection, TableData, PublicData]
    models += [*PROBLEMS.values(), *map(synthetic_settings, POPULATIONS), *map(strategy_section, STRATEGIES)]
    told = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*?) \|$", configuration, flags=re.MULTILINE))
    keys = (
        {key for model in models for key in model.model_fields} - set(RunConfig.model_fields) - {"kind", "population"}
    )
    assert len(keys) > 60
    assert not [key for key in keys | {"name", "seed"} if not told.get(key)]
    kinds = [*PROBLEMS, *POPULATIONS, *STRATEGIES, "table", "public", "synthetic", "local", "ray"]
    assert not [kind for kind in kinds if f'"{kind}"' not in configuration]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_between_rooms_never_lead_back(package, module_of):
    structure = module_of("making.structure")
    graph = structure.arrows(ROOT, package)
    assert len(graph) > 5
    assert not structure.in_circles(graph)


def test_no_file_imports_what_imports_it(module_of):
    structure = module_of("making.structure")
    graph = structure.files(ROOT)
    assert "userdp.problems.base" in graph["userdp.problems.settings"]
    assert {"simulations.runs.run", "strategies.core.base"} <= structure.by_name(
        ast.parse("def late():\n import simulations.runs.run\n return importlib.import_module('strategies.core.base')")
    )
    assert not structure.in_circles(graph)
    assert structure.in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}
