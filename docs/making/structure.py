"""The structure of the packages in numbers: rooms, arrows and circles, and what a strategy has to know of its bases."""

import ast
import importlib
import inspect
import pkgutil
from functools import cached_property
from pathlib import Path

PACKAGES = ("userdp", "strategies", "simulations")
ROOT = Path(__file__).resolve().parents[2]
ROWS = {
    "lines": "lines, baselines of papers apart",
    "modules": "modules",
    "rooms": "rooms: folders, and modules on top",
    "largest room": "modules in the largest folder",
    "arrows": "arrows between rooms",
    "circles": "rooms in a circle",
}
STRATEGIES = {
    "longest chain": "levels of classes below `Scheme`",
    "most hooks": "methods that a scheme leaves open, at most",
    "redefined": "methods redefined although a base has a body for them",
}


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


def lines(root: Path, package: str) -> int:
    """Count the lines of a package's modules, without those of the papers' baselines."""
    house = (file for file in _modules(root, package) if "baselines" not in file.parts)
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in house)


def rooms(root: Path, package: str) -> dict[str, int]:
    """The numbers of a package's rooms."""
    files = [file for file in _modules(root, package) if file.name != "__init__.py"]
    folders = [file.parent for file in files]
    graph = arrows(root, package)
    return {
        "lines": lines(root, package),
        "modules": len(files),
        "rooms": len(graph),
        "largest room": max(map(folders.count, folders)),
        "arrows": sum(map(len, graph.values())),
        "circles": len(in_circles(graph)),
    }


def classes() -> dict[str, int]:
    """The numbers of the strategies' classes, of the tree that Python imports."""
    strategies = importlib.import_module("strategies")
    for module in pkgutil.walk_packages(strategies.__path__, "strategies."):
        importlib.import_module(module.name)
    base = strategies.Scheme
    kinds = {kind for kind in _below(base) if kind.__module__.startswith("strategies.")}
    redefined = {(kind, name) for kind in kinds for name in _own(kind) if _has_body(kind, name, base)}
    changed = {name for _, name in redefined}
    chains = [[each for each in kind.__mro__ if issubclass(each, base)] for kind in kinds]
    hooks = [
        {name for each in chain for name, value in _own(each).items() if name in changed or _is_open(value)}
        for chain in chains
    ]
    return {
        "longest chain": max(len(chain) - 1 for chain in chains),
        "most hooks": max(map(len, hooks)),
        "redefined": len(redefined),
    }


def _below(base: type) -> set[type]:
    return {kind for child in base.__subclasses__() for kind in {child, *_below(child)}}


def _own(kind: type) -> dict[str, object]:
    methods = (property, cached_property, classmethod, staticmethod)
    return {
        name: value
        for name, value in vars(kind).items()
        if (inspect.isfunction(value) or isinstance(value, methods)) and (name == "__init__" or name[:2] != "__")
    }


def _is_open(value: object) -> bool:
    return bool(getattr(value, "__isabstractmethod__", False))


def _has_body(kind: type, name: str, base: type) -> bool:
    above = [each for each in kind.__mro__[1:] if issubclass(each, base) and name in _own(each)]
    return any(not _is_open(_own(each)[name]) for each in above)


def measured(root: Path) -> dict[str, dict[str, int]]:
    """All numbers, by package; those of classes under "classes"."""
    return {package: rooms(root, package) for package in PACKAGES} | {"classes": classes()}


def table() -> str:
    """The numbers, for docs/architecture.md."""
    now = measured(ROOT)
    lines = ["| what | how many |", "|---|---|"]
    for package in PACKAGES:
        lines += [f"| `{package}`: {text} | {now[package][key]} |" for key, text in ROWS.items()]
    return "\n".join([*lines, *(f"| {text} | {now['classes'][key]} |" for key, text in STRATEGIES.items())])
