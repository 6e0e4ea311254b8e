"""Data as users: blocks, federations, synthetic populations, tables, public data sets."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.data.block import Block
    from userdp.data.federation import BLOCK_BYTES, ColumnarFederation, Federation, RegressionModel
    from userdp.data.registry import DATA_SOURCES
    from userdp.data.shape import Shape, require_number
    from userdp.data.source import Datasets, DataSettings, LoadReport
    from userdp.data.synthetic.federation import SyntheticFederation
    from userdp.data.synthetic.locations import BernoulliRates, Gaussian, Location
    from userdp.data.synthetic.populations import Population, Source, VectorPopulation, student_t_in_place
    from userdp.data.synthetic.registry import POPULATIONS
    from userdp.data.synthetic.regressions import (
        Categorical,
        LinearRegression,
        LogisticRegression,
        PoissonRegression,
        WithParameter,
        column_edges,
        linear_targets,
        logistic_targets,
    )
    from userdp.data.tables.contributions import split
    from userdp.data.tables.derived import Derivation
    from userdp.data.tables.partitions import Partitions, from_partitioner
    from userdp.data.tables.public import PUBLIC_DATASETS, PublicDataset, load_public, public_columns, public_file
    from userdp.data.tables.sequences import SequenceColumns
    from userdp.data.tables.tabular import Table, read_table

__all__ = [
    "BLOCK_BYTES",
    "DATA_SOURCES",
    "POPULATIONS",
    "PUBLIC_DATASETS",
    "BernoulliRates",
    "Block",
    "Categorical",
    "ColumnarFederation",
    "DataSettings",
    "Datasets",
    "Derivation",
    "Federation",
    "Gaussian",
    "LinearRegression",
    "LoadReport",
    "Location",
    "LogisticRegression",
    "Partitions",
    "PoissonRegression",
    "Population",
    "PublicDataset",
    "RegressionModel",
    "SequenceColumns",
    "Shape",
    "Source",
    "SyntheticFederation",
    "Table",
    "VectorPopulation",
    "WithParameter",
    "column_edges",
    "from_partitioner",
    "linear_targets",
    "load_public",
    "logistic_targets",
    "public_columns",
    "public_file",
    "read_table",
    "require_number",
    "split",
    "student_t_in_place",
]

__getattr__, __dir__ = lazily(__name__)
