"""Where modules of version 0.1 went: importing one by its old name fails with a sentence that says so.

Names that are imported from `userdp`, `strategies` and `simulations` themselves have not moved.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ROOMS = {
    "userdp.arrays": "sparse_rows",
    "userdp.nodes": "computations identities node partition",
    "userdp.papers": "averaged_clipping high_dimensional sparse_gradients",
    "strategies.core": "base options plan results secure_noise",
    "strategies.wire": "client model_layout protocol replies roster untrusted",
    "strategies.clipping": "adaptive_clipping local_dp projected_sgd server_optimiser",
    "strategies.robust": "outlier_removal passing robust_rounds winsorized_rotation",
    "strategies.samples": "averaged_clipping averaged_clipping_restarted heavy_tailed poisson_sample_sgd sample_rounds",
    "strategies.sparse": "output_perturbation private_lasso robust_frank_wolfe sparse_optimisation stopped_sgd",
    "simulations.engines": "grids",
    "simulations.records": "evaluation released_fields run_directory",
    "simulations.reports": "explain plots report report_page",
    "simulations.runs": "build released_copy run silos trackers",
}
MOVED = {f"{room.split('.')[0]}.{name}": f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()}
MOVED |= {
    "strategies.fed_avg": "strategies.clipping.dp_fed_avg",
    "strategies.fed_sgd": "strategies.clipping.dp_fed_sgd",
    "strategies.ftrl": "strategies.clipping.dp_ftrl",
    "strategies.recentred": "strategies.clipping.recentred_clipping",
    "strategies.clipped_rounds": "strategies.clipping.clipped_strategy",
    "strategies.sample_level": "strategies.samples.sample_strategy",
    "strategies.sparse_rounds": "strategies.sparse.peeled_strategy",
    "strategies.vertex_rounds": "strategies.sparse.vertex_strategy",
    "strategies.row_rounds": "strategies.robust.tested_strategy",
    "strategies.localized_clipping": "strategies.localized.localized_clipping",
    "strategies.localized_plan": "strategies.localized.search",
    "strategies.iterative_mean": "strategies.samples.iterative_mean_sgd",
    "strategies.sample_clipped": "strategies.samples.sample_clipped_sgd",
    "strategies.smoothed_truncation": "strategies.samples.smoothed_truncation_gd",
    "strategies.sparse_regression": "strategies.sparse.private_hard_thresholding",
    "userdp.optimisers": "userdp.papers.heavy_tailed",
    "simulations.compare": "simulations.comparison.jobs",
}
"""Old name of a module -> its name now."""


class _Signpost(MetaPathFinder):
    """Asked for every module that Python looks for; has none, and points the way to those that moved."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Never a module.

        Raises:
            ModuleNotFoundError: it has moved.
        """
        if fullname in MOVED:
            package = fullname.split(".", maxsplit=1)[0]
            raise ModuleNotFoundError(
                f"{fullname} has moved: import from {MOVED[fullname]}, or from {package} itself what it offers",
                name=fullname,
            )
        return None


def point_the_way() -> None:
    """Install the signpost, once."""
    if not any(isinstance(finder, _Signpost) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Signpost())
