"""Data as users: blocks, federations, synthetic populations, tables, public data sets."""

from typing import TYPE_CHECKING

from userdp.lazy import names_from

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

__getattr__ = names_from(
    __name__,
    {
        "userdp.data.block": ("Block",),
        "userdp.data.federation": ("BLOCK_BYTES", "ColumnarFederation", "Federation", "RegressionModel"),
        "userdp.data.load_report": ("LoadReport",),
        "userdp.data.registry": ("DATA_SOURCES",),
        "userdp.data.synthetic.federation": ("SyntheticFederation",),
        "userdp.data.synthetic.heavy_tails": ("HeavyTailedLinear", "HeavyTailedLogistic", "HeavyTailedRegression"),
        "userdp.data.synthetic.locations": (
            "BernoulliRates",
            "Gaussian",
            "HardInstance",
            "LogLogistic",
            "LogNormal",
            "MultivariateT",
            "Pareto",
            "StudentT",
        ),
        "userdp.data.synthetic.populations": ("Population",),
        "userdp.data.synthetic.registry": ("POPULATIONS",),
        "userdp.data.synthetic.regressions": (
            "Categorical",
            "LinearRegression",
            "LogisticRegression",
            "PoissonRegression",
        ),
        "userdp.data.synthetic.sparse_regressions": ("SparseRegression",),
        "userdp.data.synthetic.sparse_vectors": ("SparseBlocks", "SparsePacking"),
        "userdp.data.tables.contributions": ("split",),
        "userdp.data.tables.derived": ("Derivation",),
        "userdp.data.tables.public": ("load_public", "public_columns", "public_file"),
        "userdp.data.tables.public_sets": ("PUBLIC_DATASETS", "PublicDataset"),
        "userdp.data.tables.sequences": ("SequenceColumns",),
        "userdp.data.tables.tabular": ("Table", "read_table"),
    },
)
