"""Data as users: blocks, federations, synthetic populations, tables, public data sets."""

from userdp.data.block import Block
from userdp.data.contributions import split
from userdp.data.federation import BLOCK_BYTES, ColumnarFederation, Federation, RegressionModel
from userdp.data.heavy_tails import HeavyTailedLinear, HeavyTailedLogistic, HeavyTailedRegression
from userdp.data.locations import (
    BernoulliRates,
    Gaussian,
    HardInstance,
    LogLogistic,
    LogNormal,
    MultivariateT,
    Pareto,
    StudentT,
)
from userdp.data.populations import Population
from userdp.data.public import PUBLIC_DATASETS, PublicDataset, load_public, public_columns, public_file
from userdp.data.registry import DATA_SOURCES, POPULATIONS
from userdp.data.regressions import Categorical, LinearRegression, LogisticRegression, PoissonRegression
from userdp.data.sparse_regressions import SparseRegression
from userdp.data.synthetic import SyntheticFederation
from userdp.data.tabular import LoadReport, Table, read_table

__all__ = [
    "BLOCK_BYTES",
    "DATA_SOURCES",
    "POPULATIONS",
    "PUBLIC_DATASETS",
    "BernoulliRates",
    "Block",
    "Categorical",
    "ColumnarFederation",
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
