"""Sweeps of estimators and algorithms on arrays, a folder a paper: a function for each table of the papers' pages."""

from sweeps.averaged_clipping import paper_tables
from sweeps.averaged_clipping import rates as averaged_rates
from sweeps.averaged_clipping import sweeps as averaged_clipping
from sweeps.heavy_tailed import claims, means
from sweeps.heavy_tailed import rates as heavy_rates
from sweeps.high_dimensional import figures, sparse
from sweeps.high_dimensional import sweeps as high_dimensional
from sweeps.robust import rates, runs
from sweeps.sparse_gradients import descent
from sweeps.sparse_gradients import means as sparse_means
from sweeps.sparse_gradients import rates as sparse_rates
from sweeps.sweep import Sweep

MODULES = (
    rates,
    runs,
    averaged_clipping,
    averaged_rates,
    paper_tables,
    means,
    claims,
    heavy_rates,
    high_dimensional,
    sparse,
    figures,
    sparse_means,
    descent,
    sparse_rates,
)
SWEEPS: dict[str, Sweep] = {name: sweep for module in MODULES for name, sweep in module.SWEEPS.items()}
"""Name of a table -> how it is made."""
