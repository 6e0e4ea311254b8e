"""Partitions of `flwr-datasets` as users: the samples of a node, read like any other table."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import write_batches
from userdp.data.tables.ids import ids_of
from userdp.data.tables.reading import read_cells, require_columns
from userdp.data.tables.tabular import Table, owners_of, read_table
from userdp.errors import BadInput
from userdp.extras import check_extra
from userdp.tracebacks import without_internals

if TYPE_CHECKING:
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import Partitioner

log = logging.getLogger("userdp")
PARTITION = "partition-id"
"""The column that names the partition of each row; Flower's name of a node's number."""


@dataclass(frozen=True, eq=False)
class Partitions:
    """The users of a partitioned data set, and the node of each.

    Attributes:
        table: the users, as `userdp.data.read_table` returns them; its labels are natural ids, or numbers of
            partitions.
        nodes: for each partition, the rising numbers (U,) of its users among those of ``table.federation``.
        facts: the arguments of `strategies.PublicFacts`; they hold what the guarantee assumes about users.
    """

    table: Table
    nodes: tuple[NDArray[np.int64], ...]
    facts: Mapping[str, Any]


@without_internals
def from_partitioner(
    source: "FederatedDataset | Partitioner",
    *,
    split: str = "train",
    min_samples: int = 1,
    max_samples: int | None = None,
    **options: Any,
) -> Partitions:
    """Read the partitions of a `flwr-datasets` partitioner as nodes that hold users.

    ``source`` is a partitioner with a data set, or a FederatedDataset, whose partitioner of ``split`` counts. The other
    arguments are those of `userdp.data.read_table`, with the same readers, bounds and refusals. It has no split column,
    and ``user`` follows from the partitioner:

    - `NaturalIdPartitioner`, `GroupedNaturalIdPartitioner`: a user is a natural id, with all its samples; users of one
      group share a node and are bounded one by one.
    - any other: a user is a PARTITION and no person, which the facts' assumptions and a warning say.

    *Formal guarantees.* *Claim.* Replacing one user's rows changes the samples of this user alone, bit for bit, as in
    `read_table`. *Why.* Each row is one of `read_table`'s, and its user is the text of its natural id, or its
    partition's number. What partitioners may do to ids is looked up in the rows: the rows of each id in all partitions
    must be as many as in the data set, and an id must lie in one partition. *Assumptions.* Those of `read_table`; which
    node holds which users is public; where a partition is a user, so is the number of partitions.

    Raises:
        BadInput: besides what `read_table` refuses, a partitioner without data or that fails, an empty partition, or
            one that lacks columns; natural ids of a FederatedDataset that shuffles; one that is missing, lies in
            several partitions, loses or repeats rows, or is the same text as another, such as "1" and "1.0".
        PopulationTooSmall: fewer users than ``users``.
    """
    check_extra("datasets", "from_partitioner")
    partitioner = _partitioner(source, split)
    natural = _natural_column(partitioner)
    if natural is not None and getattr(source, "_shuffle", False):
        raise BadInput(
            "the FederatedDataset shuffles, and the new order of one user's rows depends on the number of everybody's: "
            "give it shuffle=False"
        )
    if "user" in options:
        raise BadInput("user follows from the partitioner: leave it out, or take a NaturalIdPartitioner of it")
    if "split_column" in options:
        raise BadInput("split_column: all users of a partitioner train; partition those who train alone")
    user, beside = natural or PARTITION, ("users", "seed", "memory")
    names = Columns(user=user, **{key: value for key, value in options.items() if key not in beside}).names
    with TemporaryDirectory(prefix="userdp-") as folder:
        path = Path(folder) / "partitions.parquet"
        write_batches(_rows(partitioner, names), path, [*dict.fromkeys([*names, PARTITION])])
        partition_of = _checked_partitions(partitioner, path, natural)
        table = read_table(path, user=user, min_samples=min_samples, max_samples=max_samples, **options)
    node = np.array([partition_of[label] for label in table.labels])
    assumptions = ["which users there are and which node holds them is public, and so is what is declared of columns"]
    if min_samples > 1:
        assumptions.append(f"who holds at least {min_samples} samples is public")
    unit = None
    if natural is None:
        unit = f"a user is a partition of {type(partitioner).__name__}, not a person"
        log.warning("%s: whoever has samples in several partitions is not protected as a whole", unit)
    else:
        assumptions.append(f"a person is one value of the user column {natural!r}")
    facts = {
        "users": table.federation.users,
        "min_samples": min_samples,
        "max_samples": max_samples,
        "assumptions": tuple(assumptions),
        "user_is": unit,
    }
    nodes = tuple(np.flatnonzero(node == number) for number in range(partitioner.num_partitions))
    return Partitions(table, nodes, facts)


def _partitioner(source: "FederatedDataset | Partitioner", split: str) -> "Partitioner":
    from flwr_datasets import FederatedDataset  # noqa: PLC0415 -- optional, and slow to import
    from flwr_datasets.partitioner import Partitioner  # noqa: PLC0415 -- as above

    if isinstance(source, FederatedDataset):
        partitioners = source.partitioners
        if split not in partitioners:
            raise BadInput(f"split = {split!r} has no partitioner; those of the data set are {', '.join(partitioners)}")
        return partitioners[split]
    if not isinstance(source, Partitioner):
        raise BadInput(
            f"source is a {type(source).__name__}: give a FederatedDataset or a partitioner of flwr-datasets"
        )
    if not source.is_dataset_assigned():
        raise BadInput("the partitioner has no data set: assign one, partitioner.dataset = ...")
    return source


def _natural_column(partitioner: "Partitioner") -> str | None:
    from flwr_datasets import partitioner as kinds  # noqa: PLC0415 -- as above

    if isinstance(partitioner, kinds.NaturalIdPartitioner | kinds.GroupedNaturalIdPartitioner):
        return str(partitioner._partition_by)
    return None


def _rows(partitioner: "Partitioner", names: list[str]) -> Iterator[pa.Table]:
    """Yield the declared columns of each partition, and its number beside each row."""
    names, whole = [name for name in names if name != PARTITION], partitioner.dataset.column_names
    require_columns("the data set", names, whole)
    if PARTITION in whole:
        raise BadInput(f"the data set has a column {PARTITION!r}, the name of partitions here: rename it")
    with _explained(partitioner):
        count: int = partitioner.num_partitions
    for number in range(count):
        with _explained(partitioner):
            part = partitioner.load_partition(number)
        if not len(part):
            raise BadInput(f"partition {number} is empty, and every node needs a user; take fewer partitions")
        if part.column_names != whole:
            raise BadInput(f"partition {number} lacks columns of the data set: a user's samples are whole rows")
        cells = part.select_columns(names).with_format("arrow")[:]
        yield cells.append_column(PARTITION, pa.array(np.full(len(part), number)))


@contextmanager
def _explained(partitioner: "Partitioner") -> Iterator[None]:
    """Turn any failure of a partitioner into `BadInput`, without its text, which may quote ids."""
    try:
        yield
    except Exception as error:
        kind = f"{type(partitioner).__name__} cannot make its partitions ({type(error).__name__})"
        raise BadInput(f"{kind}: fill or remove missing ids, and check its arguments") from None


def _checked_partitions(partitioner: "Partitioner", path: Path, natural: str | None) -> dict[str, int]:
    """Return label of a user -> its partition, by the rows themselves; refuse what partitioners do to natural ids."""
    name = PARTITION if natural is None else natural
    rows = read_cells(path, [name, PARTITION] if natural else [PARTITION])
    partitions = rows[PARTITION].to_numpy()
    labels, owner = owners_of(ids_of(rows[name], name), name)
    first = np.unique(owner, return_index=True)[1]
    if natural is not None:
        ids = partitioner.dataset.select_columns([natural]).with_format("arrow")[:][natural]
        whole, owner_in_whole = owners_of(ids_of(ids, natural), natural)
        if len(ids.unique()) != len(whole):
            raise BadInput(f"column {natural!r} has ids that are the same as text, such as '1' and '1.0': rename them")
        if not (np.array_equal(labels, whole) and np.array_equal(np.bincount(owner), np.bincount(owner_in_whole))):
            raise BadInput(
                f"{type(partitioner).__name__} leaves rows of {natural!r} out or repeats them, so who takes part would "
                "depend on the rows: choose mode='allow-smaller'"
            )
        if np.any(partitions != partitions[first][owner]):
            raise BadInput(f"an id of {natural!r} lies in several partitions: a user has one node")
    return dict(zip(labels.tolist(), partitions[first].tolist(), strict=True))
