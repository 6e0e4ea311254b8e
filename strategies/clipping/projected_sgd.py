"""Gradient descent on a noisy mean of users' gradients that is projected on where means of sparse gradients lie."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.clipping.clipped_strategy import ClippedOptions, ClippedScheme, ClippedStrategy, as_is, sampler_of
from strategies.core.options import StrategyOptions
from strategies.core.plan import Number
from userdp.errors import BadInput
from userdp.mechanisms import LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.papers.sparse_gradients.projection_mechanism import SparseVectors, expected_error
from userdp.sampling import LaplaceBatches


class ProjectedSGDOptions(ClippedOptions, restates={"clip_norm", "learning_rate"}):
    """Settings of `ProjectedSGD`."""

    clip_norm: float = Field(
        1.0, gt=0, description="L: l2 norm that each user's average gradient is clipped to; its l1 norm to L sqrt(s)."
    )
    learning_rate: float | None = Field(
        None, gt=0, description="Step size; default 1 / smoothness, or 0.5; 0.1 for adam."
    )
    sparsity: int | None = Field(
        None, ge=1, description="s: most non-zeros of a sample's gradient; the problem's certificate if not given."
    )
    projection: Literal["l1l2", "l1", "none"] = Field(
        "l1l2",
        description="What the noisy mean is projected on: the l1 ball of radius L sqrt(s), within the l2 ball of "
        "radius L (l1l2) or not (l1); none: noise as it is, to compare with.",
    )


class ProjectedSGD(ClippedStrategy):
    """Clipped mean of user gradients plus noise, projected on the means that sparse gradients can have, every round.

    With s-sparse gradients of samples, of l2 norm at most L, a user's average gradient lies in the l1 ball of radius
    ``L sqrt(s)`` and in the l2 ball of radius L, however many samples it averages. Each user is clipped to both, so the
    true mean of a cohort lies there too. Projecting the noisy mean never takes it further from any point there, and
    leaves an error of at most ``sqrt(2 L sqrt(s) ||noise||_inf)``, in which the dimension counts by its logarithm. A
    loss whose gradients are not that sparse is biased by the l1 clip, and protected all the same.

    *Formal guarantees.* *Claim.* For delta > 0 that of `dp_fed_sgd`. For delta = 0 pure epsilon, replace-one,
    disjoint cohorts. *Why.* Unit: one whole user; relation: replace-one with n public (add-or-remove for poisson and
    allocation). With delta > 0: each user's row has l2 norm at most L, and the Gaussian noise, the samplers and
    their accounting are those of dp_fed_sgd. With delta = 0: each row has l1 norm at most ``L sqrt(s)``, so
    replacing a user moves the mean of B users by at most ``2 L sqrt(s) / B`` in l1; Laplace noise makes every round
    purely private, a user's rounds add up, and disjoint cohorts compose in parallel. The projection sees only what
    is noisy already. Every iterate is released: nodes are protected from each other; the server is trusted. Nodes
    clip and sum; an answer larger than clipped users can add up to, in either norm, is refused. If samples'
    gradients have s non-zeros and norm at most L, users' averages lie in both balls whatever their size, so neither
    clip nor projection costs accuracy.

    *Assumptions.* Those of `dp_fed_sgd`. A wrong s biases the gradient and protects as before. More on
    `docs/papers/sparse-gradients.md`.
    """

    name: ClassVar[str] = "projected_sgd"
    summary_line: ClassVar[str] = "noisy mean of user gradients, projected on what sparse gradients can average to"
    family: ClassVar[str] = "sparse gradients"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d + d log d)"
    paper: ClassVar[str] = "Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 1), every round"
    needs: ClassVar[str] = "sparse gradients of samples (one_hot losses are certified)"
    pure: ClassVar[bool] = True
    promise: ClassVar[str] = "user level, against other nodes too; also pure (delta = 0), by Laplace noise"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3, "sparsity": 2}
    meanings: ClassVar[Mapping[str, str]] = {
        "l1_clip_norm": "l1 norm that gradients are clipped to as well",
        "sparsity": "most non-zeros of a sample's gradient",
        "noise_before": "expected l2 norm of the noise before the projection",
    }
    Options: ClassVar[type[StrategyOptions]] = ProjectedSGDOptions
    options: ProjectedSGDOptions

    def _make_scheme(self) -> ClippedScheme:
        options, p = self.options, self.problem.dimension
        if options.noise_corrected and options.projection != "none":
            raise BadInput(
                f"strategy.noise_corrected with projection = {options.projection!r}: how much noise a projection "
                "leaves is not known; set projection = 'none', or leave it out"
            )
        members = SparseVectors(self._sparsity(), options.clip_norm)
        computation = Computation("user_gradient", "sum", options.clip_norm, l1_norm=members.l1_norm)
        pure = self.privacy.delta == 0
        scheme = self._laplace_scheme(computation) if pure else self._gaussian_scheme(computation, self._default_step)
        numbers: dict[str, Number] = {
            "sparsity": members.sparsity,
            "l1_clip_norm": members.l1_norm,
            "noise_before": scheme.mechanism.standard_deviation * math.sqrt(p),
        }
        if options.projection == "none":
            return replace(scheme, numbers=numbers)
        noise = expected_error(scheme.mechanism, members, p, options.projection)
        gradient = partial(members.project, ball=options.projection)
        return replace(scheme, gradient=gradient, noise=noise, numbers=numbers)

    def _laplace_scheme(self, computation: Computation) -> ClippedScheme:
        """Laplace noise for the l1 norm that rows are clipped to."""
        options, drawn = self.options, sampler_of(self, self.options)
        if options.sampling != "disjoint":
            raise BadInput(
                f"strategy.sampling = {options.sampling!r} with privacy.delta = 0: pure privacy is accounted for "
                "'disjoint' cohorts only"
            )
        cohort = options.cohort or drawn.users
        sampler = LaplaceBatches(drawn.users, cohort, -(-options.rounds // (drawn.users // cohort)), self.seed)
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        l1_norm = computation.l1_norm or math.inf
        mechanism = LaplaceMechanism(sampler.sensitivity_factor * l1_norm / sampler.expected_batch, 1 / multiplier)
        return self._scheme_of(sampler, multiplier, mechanism, computation, self._default_step, as_is, {})

    def _sparsity(self) -> int:
        """The s that rows are clipped for.

        Raises:
            BadInput: it is neither set nor certified.
        """
        s = self.options.sparsity or self.problem.certificate.sparsity
        if s is None:
            raise BadInput(
                f"strategy.sparsity is not set, and {self.problem.name} certifies none: set it to the most non-zeros "
                "that a sample's gradient can have, or use dp_fed_sgd"
            )
        return min(s, self.problem.dimension)
