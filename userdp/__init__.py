"""Mathematics and data of user-level privacy: problems, federations, estimators, mechanisms, accounting.

The names here cover most programs, and are imported on first use. Further names are in the packages
`userdp.accounting`, `userdp.data`, `userdp.mechanisms`, `userdp.problems`, `userdp.sampling` and in `userdp.errors`.
`train`, `plan`, `compare`, `query`, `find`, `enter` and `load_model` are those of `simulations`, even if your own
folder has that name.

>>> from userdp import Privacy
>>> Privacy(epsilon=1.0, delta=1e-6).unit
'user'
"""

from typing import TYPE_CHECKING

from userdp.lazy import lazily
from userdp.siblings import load_siblings

if TYPE_CHECKING:
    from simulations.account.entering import enter
    from simulations.api.comparing import compare
    from simulations.api.prediction import load_model
    from simulations.api.querying import query
    from simulations.api.training import plan, train
    from simulations.finding.find import find
    from userdp.accounting import Guarantee, Privacy
    from userdp.data import Block, Federation, SyntheticFederation, read_table
    from userdp.errors import BadInput, RunFailed, UserdpError
    from userdp.nodes.computations import Computation
    from userdp.nodes.node import Node
    from userdp.problems import Logistic, Problem, Quadratic, Squared

__all__ = [
    "BadInput",
    "Block",
    "Computation",
    "Federation",
    "Guarantee",
    "Logistic",
    "Node",
    "Privacy",
    "Problem",
    "Quadratic",
    "RunFailed",
    "Squared",
    "SyntheticFederation",
    "UserdpError",
    "compare",
    "enter",
    "find",
    "load_model",
    "plan",
    "query",
    "read_table",
    "train",
]

__getattr__, __dir__ = lazily(__name__, before_others=load_siblings)
