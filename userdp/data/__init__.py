"""Data as users: blocks, federations, synthetic populations, tables, public data sets."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.data.block import Block
    from userdp.data.federation import BLOCK_BYTES, ColumnarFederation, Federation, RegressionModel
    from userdp.data.load_report import LoadReport
    from userdp.data.registry import DATA_SOURCES
    from userdp.data.synthetic.federation import SyntheticFederation
    from userdp.data.synthetic.heavy_tails import HeavyTailedLinear, HeavyTailedLogistic, HeavyTailedRegression
    from userdp.data.synthetic.locations import (
        BernoulliRates,
        Gaussian,
        HardInstance,
        LogLogistic,
        LogNormal,
        MultivariateT,
        Pareto,
        StudentT,
    )
    from userdp.data.synthetic.populations import Population
    from userdp.data.synthetic.registry import POPULATIONS
    from userdp.data.synthetic.regressions import Categorical, LinearRegression, LogisticRegression, PoissonRegression
    from userdp.data.synthetic.sparse_regressions import SparseRegression
    from userdp.data.synthetic.sparse_vectors import SparseBlocks, SparsePacking
    from userdp.data.tables.contributions import split
    from userdp.data.tables.derived import Derivation
    from userdp.data.tables.public import load_public, public_columns, public_file
    from userdp.data.tables.public_sets import PUBLIC_DATASETS, PublicDataset
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
    "Derivation",
    "Federation",
    "Gaussian",
    "HardInstance",
    "HeavyTailedLinear",
    "HeavyTailedLogistic",
    "HeavyTailedRegression",
    "LinearRegression",
    "LoadReport",
    "LogLogistic",
    "LogNormal",
    "LogisticRegression",
    "MultivariateT",
    "Pareto",
    "PoissonRegression",
    "Population",
    "PublicDataset",
    "RegressionModel",
    "SequenceColumns",
    "SparseBlocks",
    "SparsePacking",
    "SparseRegression",
    "StudentT",
    "SyntheticFederation",
    "Table",
    "load_public",
    "public_columns",
    "public_file",
    "read_table",
    "split",
]

__getattr__, __dir__ = lazily(__name__)
