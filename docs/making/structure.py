"""The structure of the packages: their rooms and files, and the arrows between them; tests look for circles."""

import ast
from pathlib import Path

PACKAGES = ("userdp", "strategies", "simulations")
ROOT = Path(__file__).resolve().parents[2]


def _modules(root: Path, package: str) -> list[Path]:
    """Return the files of a package's modules; sweeps of papers are measurements beside it."""
    return [file for file in (root / package).rglob("*.py") if "sweeps" not in file.parts]


def arrows(root: Path, package: str) -> dict[str, set[str]]:
    """Room -> the rooms of the same package that its modules import; what a package's `__init__` offers is its door."""
    modules = {".".join(file.relative_to(root).with_suffix("").parts) for file in _modules(root, package)}

    def room(module: str) -> str:
        folder = module if f"{module}.__init__" in modules else module.rpartition(".")[0]
        return module if folder == package else folder

    found: dict[str, set[str]] = {room(module): set() for module in modules if not module.endswith("__init__")}
    for module in modules:
        if module.endswith("__init__"):
            continue
        tree = ast.parse((root / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                for target in names & modules or {node.module}:
                    found[room(module)].add(room(target))
    return {start: ends - {start, package} for start, ends in found.items()}


def files(root: Path) -> dict[str, set[str]]:
    """Module -> the modules of the packages that it imports, anywhere in it but where only type checkers look."""
    places = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in _modules(root, package)
    }
    graph = {}
    for module, file in places.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = []
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        targets = [{f"{node.module}.{alias.name}", str(node.module)} for node in imports for alias in node.names]
        targets += [{name} for name in by_name(tree)]
        graph[module] = {max(found, key=len) for target in targets if (found := target & places.keys())} - {module}
    return graph


def by_name(tree: ast.AST) -> set[str]:
    """Return the modules of ``import a.b``, ``import_module("a.b")`` and ``__import__("a.b")``."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    loaders = [call for call in calls if ast.unparse(call.func).endswith(("import_module", "__import__"))]
    return {*names, *(str(first.value) for call in loaders if isinstance(first := call.args[0], ast.Constant))}


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Rooms from which arrows lead back to them."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            room = ahead.pop()
            if room not in seen:
                seen.add(room)
                ahead += graph.get(room, ())
        return seen

    return {room for room in graph if room in reached(room)}
