"""Where results of Python calls are kept: in a folder that the caller names, or nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from userdp.errors import BadInput


@contextmanager
def folder_of(directory: str | Path | None) -> Iterator[Path]:
    """``directory``; or, if that is None, a folder that is there only while it is needed."""
    if directory is not None:
        yield Path(directory)
        return
    with TemporaryDirectory(prefix="userdp-") as folder:
        yield Path(folder)


def kept_folder(directory: str | Path | None) -> Path | None:
    """``directory`` as a path, None if nothing is kept."""
    return None if directory is None else Path(directory)


def write_page(page: str, path: str | Path | None, directory: Path | None) -> Path:
    """Write a report.

    Args:
        page: HTML.
        path: of the file; report.html in ``directory`` if not given.
        directory: where results are kept; None if nowhere.

    Raises:
        BadInput: neither a path nor a directory, or a file that cannot be written.
    """
    if path is None and directory is None:
        raise BadInput("report(): nothing was kept on disk; give a path, such as report('report.html')")
    target = Path(path) if path is not None else (directory or Path()) / "report.html"
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"report(): {target} cannot be written ({type(error).__name__}); choose another path") from None
    return target
