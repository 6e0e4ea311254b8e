"""DataFrames in place of table files: written to a file that is there only while it is read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from simulations.config.run_config import RunConfig
from simulations.runs.build import load_datasets
from userdp.data.source import Datasets
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import write_frame

FRAME = "frame.parquet"
"""What a configuration says in place of a path when the table is a DataFrame."""

Tabular = pd.DataFrame | str | Path
"""A DataFrame, or the path of a CSV or Parquet file."""


@contextmanager
def table_file(data: Tabular, names: Sequence[str]) -> Iterator[Path]:
    """A file that holds the columns ``names`` of a table.

    Raises:
        BadInput: columns of a DataFrame that cannot be written; a file is not looked into.
    """
    if not isinstance(data, pd.DataFrame):
        yield Path(data)
        return
    with TemporaryDirectory(prefix="userdp-") as folder:
        path = Path(folder) / FRAME
        write_frame(data, path, names)
        yield path


def frame_datasets(config: RunConfig, frame: pd.DataFrame) -> Datasets:
    """The users of a frame, read as those of a table file are.

    Raises:
        BadInput: see `simulations.runs.build.load_datasets`.
    """
    with table_file(frame, Columns(**config.data.declarations).names) as path:
        data = config.data.model_copy(update={"path": str(path)})
        return load_datasets(config.model_copy(update={"data": data}))
