"""Optional dependencies: a missing one is a sentence with the line that installs it."""

from collections.abc import Iterable
from importlib.util import find_spec

from userdp.errors import BadInput

MODULES = {
    "account": ("psycopg", "sqlalchemy"),
    "datasets": ("flwr_datasets",),
    "deploy": ("Crypto", "cryptography", "httpx", "starlette", "uvicorn"),
    "excel": ("openpyxl",),
    "fast": ("numba", "threadpoolctl"),
    "language": ("peft", "safetensors", "transformers"),
    "onnx": ("onnx",),
    "report": ("jinja2", "matplotlib"),
    "secure": ("opendp",),
    "serve": ("jinja2", "matplotlib", "prometheus_client", "psycopg", "sqlalchemy", "starlette", "uvicorn"),
    "sklearn": ("sklearn",),
}
"""Extra -> the modules that it installs."""


def check_extra(extra: str, use: str, needed: Iterable[str] | None = None) -> None:
    """Refuse a ``use`` that needs modules of an extra, all of them by default, which are not installed.

    Raises:
        BadInput: a module is missing; the message has the line that installs it.
    """
    if missing := [module for module in (MODULES[extra] if needed is None else needed) if find_spec(module) is None]:
        raise BadInput(f"{use} needs {' and '.join(missing)}: pip install 'userdp[{extra}]'")


def missing_extra(error: ModuleNotFoundError) -> BadInput | None:
    """Return the sentence for a module of an extra that could not be imported; None for any other module."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in MODULES.items() if module in modules), None)
    return BadInput(f"this needs {module}, which is not installed: pip install 'userdp[{extra}]'") if extra else None
