"""The public faces that programs import, what the documents import from them, and what packages must not."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import made_pages
import pytest

import strategies

ROOT = Path(__file__).resolve().parents[2]
made_pages.made()
PACKAGES = ("userdp", "strategies", "simulations")
BASELINES = ROOT / "strategies" / "baselines"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


def faces() -> list[str]:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Public faces\n")[2].partition("\nSo do")[0].partition(":\n")[2]
    return re.findall(r"`([\w.]+)`", section)


def names_of(face: str) -> set[str]:
    module = importlib.import_module(face)
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == face}
    return set(getattr(module, "__all__", own))


def imports(code: str) -> list[tuple[str, str | None]]:
    """(module, name) of what Python code imports from this project; name is None for ``import module``."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
    return [(module, name) for module, name in found if module.partition(".")[0] in PACKAGES]


def file_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def from_faces(code: str) -> list[tuple[str, str | None]]:
    """Imports of packages' faces in code of the packages, which should name modules."""
    return [
        (module, name)
        for module, name in imports(code)
        if module in PACKAGES and (name is None or file_of(f"{module}.{name}") is None)
    ]


# Faces -------------------------------------------------------------------------------------------------------------


def test_the_list_of_faces_has_the_packages_and_nothing_that_is_not_there():
    listed = faces()
    assert set(PACKAGES) < set(listed)
    assert len(listed) == len(set(listed))
    assert all(file_of(face) for face in listed)


@pytest.mark.parametrize("face", faces())
def test_every_name_of_a_face_can_be_had(face):
    module = importlib.import_module(face)
    assert names_of(face)
    for name in names_of(face):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = module.nothing_of_the_kind


def test_what_a_strategy_of_ones_own_is_made_of_is_public():
    assert {"Scheme", "Step", "Plan", "Request", "Gathered", "UserLevelStrategy", "StrategyOptions"} <= set(
        dir(strategies)
    )


@pytest.mark.parametrize("package", [*PACKAGES, "userdp.audit", "userdp.data"])
def test_the_list_of_a_package_is_what_type_checkers_see(package):
    tree = ast.parse((file_of(package) or ROOT).read_text(encoding="utf-8"))
    (checking,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {one.name for node in checking.body if isinstance(node, ast.ImportFrom) for one in node.names}
    called = {ast.unparse(node.target) for node in checking.body if isinstance(node, ast.AnnAssign)}
    module = importlib.import_module(package)
    loaded = {"STRATEGIES"} if package == "strategies" else set()  # a list of names, which costs nothing
    assert seen | loaded | called == set(module.__all__)
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_of_a_package_is_that_of_a_module_in_it(package):
    """Importing the module would put it in the place of the name."""
    assert not [name for name in names_of(package) if file_of(f"{package}.{name}")]


def test_importing_the_packages_loads_nothing_heavy():
    code = (
        "import sys, userdp, strategies, simulations;"
        "print({'numpy', 'pandas', 'flwr', 'ray', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"


# The rule ----------------------------------------------------------------------------------------------------------


def blocks(path: Path) -> list[tuple[str, bool]]:
    """(code, whether it is a file of a package) of a page's blocks of Python or of a notebook's cells.

    A block is such a file if the line before it names one: "`strategies/my_strategy.py`:".
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return [("".join(cell["source"]), False) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    found = []
    for match in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        found.append((match[1], re.fullmatch(r"`(userdp|strategies|simulations)/\w+\.py`:", before) is not None))
    return found


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_documents_import_from_public_faces_only(page):
    public = {(face, name) for face in faces() for name in names_of(face)}
    for code, of_a_package in blocks(page):
        if code.startswith("    "):
            continue  # a fragment of a function
        if of_a_package:
            assert all(file_of(module) for module, _ in imports(code))
        assert set(imports(code)) <= public


def test_the_rule_sees_the_imports_of_the_documents():
    counts = {
        page.name: sum(len(imports(code)) for code, _ in blocks(page) if not code.startswith("    "))
        for page in [*PAGES, *NOTEBOOKS]
    }
    least = {"README.md": 1, "flower-app.md": 5, "drop-in.md": 3, "extend.md": 15, "first-model.ipynb": 3}
    assert all(counts[page] >= number for page, number in least.items())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_from_modules_and_not_from_faces(package):
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in sorted((ROOT / package).rglob("*.py"))
        if BASELINES not in path.parents
        and "sweeps" not in path.parts
        and (found := from_faces(path.read_text(encoding="utf-8")))
    }
    assert not wrong


def test_baselines_import_from_public_faces_only_as_a_strangers_package_would():
    public = {(face, name) for face in faces() for name in names_of(face)}
    for path in sorted(path for path in BASELINES.rglob("*.py") if "sweeps" not in path.parts):
        own = [
            one for one in imports(path.read_text(encoding="utf-8")) if not one[0].startswith("strategies.baselines")
        ]
        assert set(own) <= public, path


def test_the_rest_of_the_house_imports_no_baseline():
    for package in PACKAGES:
        for path in set((ROOT / package).rglob("*.py")) - set(BASELINES.rglob("*.py")):
            assert "baselines" not in {part for module, _ in imports(path.read_text()) for part in module.split(".")}, (
                path
            )


def test_an_import_of_a_face_is_found():
    assert from_faces("from userdp import Privacy") == [("userdp", "Privacy")]
    assert from_faces("import strategies\nfrom simulations import cli, train") == [
        ("strategies", None),
        ("simulations", "train"),
    ]
    assert not from_faces("from userdp.accounting import Privacy\nimport simulations.runs.run")
