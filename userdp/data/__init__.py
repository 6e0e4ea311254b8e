"""Data as users: blocks, federations, synthetic populations, tables, public data sets."""

from userdp.data.block import Block
from userdp.data.contributions import split
from userdp.data.federation import BLOCK_BYTES, ColumnarFederation, Federation
from userdp.data.locations import BernoulliRates, Gaussian, HardInstance, LogNormal, Pareto, StudentT
from userdp.data.populations import Population
from userdp.data.public import PUBLIC_DATASETS, PublicDataset, load_public, public_columns, public_file
from userdp.data.regressions import Categorical, LinearRegression, LogisticRegression, PoissonRegression
from userdp.data.synthetic import POPULATIONS, SyntheticFederation
from userdp.data.tabular import LoadReport, Table, read_table

__all__ = [
    "BLOCK_BYTES",
    "POPULATIONS",
    "PUBLIC_DATASETS",
    "BernoulliRates",
    "Block",
    "Categorical",
    "ColumnarFederation",
    "Federation",
    "Gaussian",
    "HardInstance",
    "LinearRegression",
    "LoadReport",
    "LogNormal",
    "LogisticRegression",
    "Pareto",
    "PoissonRegression",
    "Population",
    "PublicDataset",
    "StudentT",
    "SyntheticFederation",
    "Table",
    "load_public",
    "public_columns",
    "public_file",
    "read_table",
    "split",
]
