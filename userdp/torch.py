"""Private gradients for a training loop of one's own.

>>> import torch
>>> from userdp import Privacy
>>> from userdp.torch import PrivateGradients
>>> module, budget = torch.nn.Linear(2, 3), Privacy(epsilon=8.0, delta=1e-4)
>>> people = {"users": 300, "cohort": 60}
>>> private = PrivateGradients(module, "cross_entropy", (2,), **people, rounds=5, clip_norm=0.5, privacy=budget)
>>> private.backward(lambda user: (torch.ones(4, 2), torch.zeros(4)))
>>> module.weight.grad.shape, private.spent_epsilon < private.guarantee.epsilon <= 8.0
(torch.Size([3, 2]), True)
"""

import copy
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.accounting import Guarantee, Privacy, Relation
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.errors import BadInput, RunFailed
from userdp.neural.losses import LossName, SampleLoss
from userdp.neural.problem import TorchProblem
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.nodes.node import Node
from userdp.noise import rounding_slack
from userdp.problems.bounds import count, positive
from userdp.sampling.base import Wanted
from userdp.sampling.registry import sampler_of
from userdp.streams import Streams, assumptions

__all__ = ["PrivateGradients"]

_ADVERSARY = "against whoever sees every gradient and model; this process is trusted"
_RESTS_ON = (
    "a user's number stands for one person with all their samples, and no person has two numbers",
    "nothing else follows from these samples: no printed loss, no metric, no choice of settings",
)


class PrivateGradients:
    """Noisy mean gradients of cohorts that it draws, clips, hides and accounts for, in place of a loss's `backward`.

    The plan is made before data are read. What a loop makes of the gradients costs nothing.

    Args:
        module: read before each round, and computed in its present mode, on a GPU if it is there.
        loss: as for `userdp.problems.TorchProblem`.
        input_shape: of one sample.
        users: n, the public number of people, whose numbers are 0 to n - 1.
        cohort: users a round, on average for "poisson"; for "allocation" give ``participations`` instead.
        rounds: calls of `backward`.
        clip_norm: l2 norm that a user's mean gradient is clipped to.
        privacy: the budget.
        sampling: as ``strategy.sampling``; so are relation and participations.
        levels: the number of codes, if inputs are whole numbers from 0.
        max_samples: most samples of a user; more are refused.
        seed: of SIMULATED cohorts and noise; drawn, and kept secret, if not given.

    Attributes:
        guarantee: of all rounds together.

    Formal guarantees:
        *Claim.* All gradients together are (epsilon, delta)-DP for one whole user, under the sampler's relation, for
        any data and any loop that follows them. *Why.* At a model a user's row follows from that user's samples alone
        (`userdp.neural.isolation`), is zero where it is not finite or no sample can be used, and is clipped to l2 norm
        C. So one user moves the sum by 2C if replaced, by C if added or removed; the divisor is the sampler's public
        one. The sampler that draws a cohort prices all rounds; each is charged before it is computed, and its noise is
        opened once. Later models follow from releases alone: buffers and frozen parameters, which a forward pass could
        fill with data, may not change. No copy draws noise again (`userdp.streams.Streams`).
        *Assumptions.* This process is trusted, with who takes part too; a number stands for one person; nothing else
        follows from the samples.

    Raises `BadInput` for settings, a module or a loss that cannot be used.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossName | SampleLoss,
        input_shape: Sequence[int],
        *,
        users: int,
        rounds: int,
        clip_norm: float,
        privacy: Privacy,
        cohort: int | None = None,
        sampling: str = "poisson",
        relation: Relation | None = None,
        participations: int | None = None,
        levels: int | None = None,
        max_samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        privacy.check_population(users)
        if privacy.unit != "user" or privacy.trust != "server" or not privacy.delta:
            raise BadInput(f"{privacy}: whole users get Gaussian noise here: leave out unit and trust, give a delta")
        named = dict(module.named_parameters(remove_duplicate=False))
        self._module, self._coded = module, levels is not None
        self._most = math.inf if max_samples is None else count("max_samples", max_samples)
        self._shape, self._trained = (*input_shape,), {name for name, one in named.items() if one.requires_grad}
        on_gpu, columns = any(one.is_cuda for one in named.values()), math.prod(input_shape)
        problem = self._problem = TorchProblem(
            copy.deepcopy(module).cpu() if on_gpu else module,
            loss,
            columns,
            precision="double" if all(named[name].dtype == torch.float64 for name in self._trained) else "single",
            levels=None if levels is None else (levels,) * columns,
            input_shape=input_shape,
            device="cuda" if on_gpu else "cpu",
        )
        self._original, secure = problem.engine.model.original, privacy.noise == "secure"
        self._seed = secrets.randbits(128) if seed is None else seed
        drawn = self._seed, None if secure else self._seed
        sampler = self._sampler = sampler_of(sampling, Wanted(users, rounds, cohort, relation, participations, *drawn))
        multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        self._mechanism = sampler.mean_mechanism(positive("clip_norm", clip_norm), multiplier)
        self._asked = Computation(reduce="sum", clip_norm=clip_norm, separate=secure)
        check_covered(self._asked, self._mechanism, sampler.expected_batch, sampler.relation)
        self._ledger, self._round = sampler.ledger(multiplier, privacy), 0
        self._streams, self._slack = Streams(secure=secure, once=True), rounding_slack(users) if secure else 0.0
        promise = sampler.guarantee(multiplier, privacy.delta, _ADVERSARY, _RESTS_ON)
        self.guarantee: Guarantee = promise.assuming(*assumptions(privacy.noise, "user", drawn=seed is None))

    @property
    def spent_epsilon(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        return self._ledger.epsilon()

    def backward(self, samples_of: Callable[[int], tuple[Any, Any]]) -> None:
        """Set ``grad`` of the trainable parameters to the noisy mean gradient of the next round's users.

        ``samples_of`` returns inputs (m, *input_shape) and targets (m,) of a user's number, m at least 1; it is called
        for the cohort, in rising order. A sample with a NaN, an infinity, an unknown class or code does not count.

        Raises `RunFailed`: no round is left. Raises `BadInput` before anything is spent, and asks for the same users
        again: samples of another shape, none or too many of a user; a buffer or frozen parameter has changed.
        """
        index, sampler = self._round, self._sampler
        if index == sampler.rounds:
            raise RunFailed(f"all {index} rounds are spent: plan more of them before the first")
        x, cohort = self._model(), sampler.cohort(index)
        node = self._node(cohort, samples_of) if len(cohort) else None
        self._ledger.charge(cohort)
        self._round += 1
        total = np.zeros(len(x)) if node is None else node.compute(x, cohort, self._asked).values[0]
        noise = self._streams.open(self._seed, index, 0, self._slack)
        released = torch.as_tensor(self._mechanism.release(np.asarray(total) / sampler.expected_batch, noise))
        self._ledger.check_drawn(self._streams.drawn())
        own = dict(self._module.named_parameters())
        for name, gradient in self._original.parameters.named(released).items():
            own[name].grad = gradient.to(own[name], copy=True)

    def _model(self) -> Vector:
        """Return (p,) the trainable parameters; `BadInput` if anything else of the module has changed."""
        now, first = map(_tensors, (self._module, self._original.module))
        for name in now.keys() - self._trained:
            if name not in first or not torch.equal(now[name].to(first[name].dtype), first[name]):
                raise BadInput(
                    f"{name} of the module has changed since the plan, and a forward pass may have filled it with "
                    "data: call module.eval() before your own passes, or make new private gradients"
                )
        return np.concatenate([now[name].double().numpy().ravel() for name in self._original.parameters.shapes])

    def _node(self, cohort: NDArray[np.int64], samples_of: Callable[[int], tuple[Any, Any]]) -> Node:
        """Return a node that holds the samples of these users; `BadInput` for samples of another form."""
        features, targets = list[Tensor](), list[Tensor]()
        for user in cohort.tolist():
            inputs, wanted = map(torch.as_tensor, samples_of(user))
            size, most = inputs.shape[:1], self._most
            fits = inputs.shape[1:] == self._shape and wanted.shape == size and 1 <= sum(size) <= most
            if not fits or (self._coded and inputs.is_floating_point()):
                raise BadInput(
                    f"user {user} has inputs {(*inputs.shape,)} of {inputs.dtype} and targets {(*wanted.shape,)}: give "
                    f"(m, {', '.join(map(str, self._shape))}) {'whole ' * self._coded}numbers and (m,), for m from 1 "
                    f"to {most}"
                )
            form = torch.int32 if self._coded else torch.float32  # copies: the next user's may come in the same memory
            features.append(inputs.detach().flatten(1).to("cpu", form, copy=True))
            targets.append(wanted.detach().to("cpu", torch.float32, copy=True))
        places = np.cumsum([0, *map(len, targets)])
        block = Block(torch.cat(features).numpy(), places, torch.cat(targets).numpy())
        return Node(self._problem, ColumnarFederation(block), cohort, np.arange(len(cohort)))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by all their names, on the processor."""
    held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: one.detach().cpu() for name, one in held}
