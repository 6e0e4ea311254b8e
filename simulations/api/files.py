"""Files of Python calls: DataFrames in place of table files, and folders for results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from simulations.config.run_config import RunConfig
from simulations.records.run_directory import writing
from simulations.runs.build import load_datasets
from userdp.data.source import Datasets
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import write_frame
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

FRAME = "frame.parquet"  # the path in the configuration of a table that is a DataFrame

Tabular = pd.DataFrame | str | Path  # a DataFrame, or the path of a CSV or Parquet file


@contextmanager
def folder_of(directory: str | Path | None) -> Iterator[Path]:
    """Yield ``directory``; or, if that is None, a temporary folder."""
    if directory is not None:
        yield Path(directory)
        return
    with TemporaryDirectory(prefix="userdp-") as folder:
        yield Path(folder)


@contextmanager
def table_file(data: Tabular, names: Sequence[str]) -> Iterator[Path]:
    """Yield a file with the columns ``names`` of a table; BadInput if those of a DataFrame cannot be written."""
    if not isinstance(data, pd.DataFrame):
        yield Path(data)
        return
    with folder_of(None) as folder:
        write_frame(data, folder / FRAME, names)
        yield folder / FRAME


def frame_datasets(config: RunConfig, frame: pd.DataFrame) -> Datasets:
    """Read the users of a frame like those of a table file; see `simulations.runs.build.load_datasets`."""
    with table_file(frame, Columns(**config.data.declarations).names) as path:
        data = config.data.model_copy(update={"path": str(path)})
        return load_datasets(config.model_copy(update={"data": data}))


class WithReport:
    """A result with a report: its HTML ``page`` and its ``directory``, None if nothing was kept."""

    page: str
    directory: Path | None

    @without_internals
    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one HTML page, by default into the result's directory; BadInput if it cannot be written."""
        if path is None and self.directory is None:
            raise BadInput("report(): nothing was kept on disk; give a path, such as report('report.html')")
        target = Path(path) if path is not None else (self.directory or Path()) / "report.html"
        with writing(f"report(): {target}", "choose another path"):
            target.write_text(self.page, encoding="utf-8")
        return target
