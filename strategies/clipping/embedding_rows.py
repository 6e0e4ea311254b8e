"""Rows of a model's embeddings that train: all, with or without a projection, found ones, or those of each round."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from strategies.clipping.clip_facts import ClipNotes
from strategies.clipping.clipped_rounds import clipped_rounds, rounds_of
from strategies.clipping.cohort_options import NoisyMean
from strategies.clipping.row_counts import Counts
from strategies.clipping.row_options import CHOICES, RowOptions, Which
from strategies.clipping.server_optimiser import ServerOptimiser
from strategies.core.mean_rounds import MeanRounds
from strategies.core.public_facts import Given
from strategies.core.results import Noise, Step
from strategies.core.scheme import Number, Outline, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.problems import Box
from userdp.problems.embeddings import Tables
from userdp.sampling import Sampler
from userdp.state import Stateful


@dataclass
class FoundRows(Stateful):
    """The server's memory: the sum of noisy counts so far (V,), of how many rounds, and its optimiser."""

    remembered: ClassVar[tuple[str, ...]] = ("counts", "counted")
    parts: ClassVar[tuple[str, ...]] = ("optimiser",)
    counts: Vector
    counted: int
    optimiser: ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class FoundScheme(Scheme):
    """A `Scheme` whose first rounds count the users of each row, and whose others train the rows that were found.

    *Formal guarantees.* *Claim.* Every round is one Gaussian mechanism of the sampler's noise multiplier, so the rounds
    cost what as many of `DPFedSGD` do. *Why.* Unit: one whole user. A user's `row_weights` are not negative and at most
    1 long, so replacing the user moves their sum by sqrt(2) at most, and adding or removing it by 1; noise is made for
    that (where cohorts are secret, for a move of 2 or 1, with a row no longer than one over it). The rows that pass are
    a function of these releases alone. Given them, a training round is that of `DPFedSGD` on the model of these rows
    and the parameters outside of tables: what a user sends is clipped to C as a whole, after the other rows are left
    out. The rows are as public as the model, so a node's sum has entries there alone. No row is free of noise: one that
    a single user touches passes by the noise on its count, which hides that user as it hides any other.

    *Assumptions.* Those of `DPFedSGD`.
    """

    counts: Counts
    sampler: Sampler
    training: MeanRounds  # of all parameters
    clip: float

    def ask(self, index: int, memory: FoundRows) -> Request:
        if memory.counted < self.counts.rounds:
            asked, relation = self.counts.computation, self.price.guarantee.relation
            check_covered(asked, self.counts.mechanism, self.sampler.expected_batch, relation)
            return Request(self.sampler.cohort(index), asked)
        return self._among(memory).ask(index, memory.optimiser)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: FoundRows, noise: Noise) -> Step:
        if memory.counted < self.counts.rounds:
            return self._count(x, gathered, memory, noise)
        return self._among(memory).take(index, x, gathered, memory.optimiser, noise)

    def _count(self, x: Vector, gathered: Gathered, memory: FoundRows, noise: Noise) -> Step:
        """Add up noisy counts; the model stays. A round that a killed run may have released is counted again."""
        if gathered.skipped:
            return Step(x, x, {"lost": 1.0})
        mechanism = self.counts.mechanism
        memory.counts = memory.counts + mechanism.release(gathered.values / self.sampler.expected_batch, noise(0))
        memory.counted += 1
        return Step(x, x, {"noise_deviation": mechanism.standard_deviation})

    def _among(self, memory: FoundRows) -> MeanRounds:
        """Return the rounds that train the rows found, and all parameters outside of tables."""
        counts, mechanism = self.counts, self.training.mechanism
        assert mechanism is not None
        rows = counts.chosen(memory.counts)
        places = counts.places(rows)
        arrays = {"tables": counts.tables.described, "rows": rows}
        asked = replace(self.training.query(0), name="kept_gradient", arrays=arrays)
        notes = ClipNotes(self.clip, mechanism.standard_deviation * math.sqrt(len(places)))
        return replace(
            self.training,
            query=lambda _: asked,
            gradient=lambda _, released: counts.placed(released, places),
            noted=lambda *told: {**notes(*told), "rows_trained": float(len(rows))},
        )


@dataclass(frozen=True, kw_only=True)
class ChoosingScheme(Scheme):
    """A `Scheme` whose rounds release noisy counts of all rows, and the noisy mean in the rows that pass.

    *Formal guarantees.* *Claim.* Every round is one Gaussian mechanism of the sampler's noise multiplier z, so the
    rounds cost what as many of `DPFedSGD` do. *Why.* Unit: one whole user; s is 2 if it is replaced, and 1 if it is
    added or removed. A user's row holds its gradient, clipped to C, and its `row_weights`, not negative and at most 1
    long. One user moves the sum of the first by at most s C, and that of the second by r = sqrt(2), or 1 if it is added
    or removed, at worst both at once. Noise ``z s C / sqrt(1 - q)`` on every entry of the one and ``z r / sqrt(q)`` on
    the other, q = count_share, make both together a Gaussian mechanism of multiplier z: divide each by its noise and
    add the squared moves. What a round releases is a function of its output: the counts, the rows that they choose, and
    the noisy mean there and outside of tables; noise elsewhere is not drawn, because nothing depends on it. (Where
    cohorts are secret, r is s: both together are one row, over its noise no longer than ``1 / (s z)``.) The clip is
    before the choice: a user all of whose rows are left out still has its other parameters clipped with them.

    *Assumptions.* Those of `DPFedSGD`. The server is trusted with sums that have entries in rows that do not pass.
    """

    counts: Counts
    sampler: Sampler
    domain: Box
    clip: float
    mechanism: GaussianMechanism  # of the mean gradient

    @property
    def _asked(self) -> Computation:
        """The question of a round; both parts of a row are in one unit, the clip's."""
        parts, whole = {"clip": self.clip, "weight": self.clip}, math.hypot(self.clip, self.clip)
        return replace(self.counts.computation, name="gradient_and_weights", clip_norm=whole, parameters=parts)

    def ask(self, index: int, memory: ServerOptimiser) -> Request:
        gradient = Computation("user_gradient", "sum", self.clip)
        for part, mechanism in ((gradient, self.mechanism), (self.counts.computation, self.counts.mechanism)):
            check_covered(part, mechanism, self.sampler.expected_batch, self.price.guarantee.relation)
        return Request(self.sampler.cohort(index), self._asked)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: ServerOptimiser, noise: Noise) -> Step:
        means, p = gathered.values / self.sampler.expected_batch, len(x)
        counts = self.counts.mechanism.release(means[p:] / self.clip, noise(1))
        rows = self.counts.chosen(counts)
        places = self.counts.places(rows)
        released = self.counts.placed(self.mechanism.release(means[places], noise(0)), places)
        deviation = self.mechanism.standard_deviation
        moved = self.domain.project(memory.step(x, released, deviation))
        return Step(*memory.output(x, moved), {"noise_deviation": deviation, "rows_trained": float(len(rows))})


def row_rounds(given: Given, options: RowOptions, gradient: Computation, rate: float) -> Scheme:
    """Return rounds that follow the noisy mean of clipped gradients in the rows that the settings name.

    ``rate`` is the default step. Raises `BadInput`: the module has no table, sums are masked, all rounds count, the
    noise of a row is not known where it is to be taken off, or a setting is of no choice and no comparison.
    """
    if options.embedding_rows == "all" and (options.max_rows is None or given.privacy.trust == "sum"):
        for name in ("finding_rounds", "count_share", "false_rows", "max_rows"):
            if (value := getattr(options, name)) != RowOptions.model_fields[name].default:
                raise BadInput(
                    f"strategy.{name} = {value}: all rows of embeddings train, and none are chosen; set embedding_rows "
                    f"= 'found' or 'each_round' without masked sums, or leave {name} out"
                )
        return clipped_rounds(given, options, gradient, rate)
    made = _Rows(given, options, gradient, rate, _tables(given, options), options.sampler(given))
    ways = {"all": made.all, "found": made.found, "each_round": made.each_round, "projected": made.projected}
    return ways[options.embedding_rows]()


def _tables(given: Given, options: RowOptions) -> Tables:
    """Return the model's tables; see `row_rounds` for what is refused."""
    which = f"strategy.embedding_rows = {options.embedding_rows!r}"
    tables = given.problem.tables
    if tables is None:
        raise BadInput(
            f"{which}: problem.kind = {given.problem.name!r} has no nn.Embedding or nn.EmbeddingBag that trains; leave "
            "embedding_rows and max_rows out"
        )
    if options.embedding_rows in ("found", "each_round") and given.privacy.trust == "sum":
        raise BadInput(
            f"{which} with privacy.trust = 'sum': which rows a node's users touch is secret, so masked sums have all "
            "rows; set embedding_rows = 'all' or 'projected'"
        )
    if options.embedding_rows == "found" and options.finding_rounds >= options.rounds:
        raise BadInput(
            f"{which}: strategy.finding_rounds = {options.finding_rounds} leaves none of strategy.rounds = "
            f"{options.rounds} to train; raise rounds"
        )
    if options.embedding_rows == "projected" and options.max_rows is None:
        raise BadInput(f"{which} needs strategy.max_rows, the most rows that a user touches: declare it")
    if options.embedding_rows in ("each_round", "projected") and options.noise_corrected:
        raise BadInput(
            f"{which} with strategy.noise_corrected: rows have noise in some rounds and less or none in others; leave "
            "noise_corrected out"
        )
    return tables


@dataclass(frozen=True)
class _Rows:
    """Everything that the schemes are made from."""

    given: Given
    options: RowOptions
    computation: Computation
    rate: float
    tables: Tables
    sampler: Sampler

    @cached_property
    def multiplier(self) -> float:
        return self.sampler.calibrate(self.given.privacy.epsilon, self.given.privacy.delta)

    @property
    def per_user(self) -> int:
        """The most rows that a user touches."""
        return min(self.options.max_rows or self.tables.rows, self.tables.rows)

    @property
    def radius(self) -> float:
        """The largest sum of the l2 norms of rows of a mean of users' clipped gradients."""
        return self.options.clip_norm * math.sqrt(self.per_user)

    def share(self, which: Which) -> float:
        """Return the share of a round's budget that counts take beside a gradient."""
        return self.options.count_share if which == "each_round" else 0.0

    def mechanism(self, which: Which) -> GaussianMechanism:
        """Return the mechanism of the mean gradient."""
        return self.sampler.mean_mechanism(self.options.clip_norm, self.multiplier / math.sqrt(1 - self.share(which)))

    def counts(self, which: Which) -> Counts:
        """Return the counts that rows are chosen by; those of two users are sqrt(2) apart."""
        reach = math.sqrt(0.5) if self.sampler.relation == "replace_one" and not self.sampler.secret else 1.0
        mechanism = self.sampler.mean_mechanism(reach, self.multiplier / math.sqrt(self.share(which) or 1.0))
        rounds = self.options.finding_rounds if which == "found" else 1
        return Counts(self.tables, self.given.dimension, mechanism, rounds, self.options.false_rows)

    def noise(self, which: Which) -> float:
        """Bound the expected l2 norm of a training round's noise, from public numbers."""
        deviation, tables, entries = self.mechanism(which).standard_deviation, self.tables, float(self.tables.entries)
        if which == "projected":
            longest = math.sqrt(tables.widest) + math.sqrt(2 * math.log(tables.rows))
            entries = min(entries, 4 * self.radius * longest / deviation)
        elif which != "all":
            entries = min(entries, tables.widest * self.counts(which).expected_rows(self.per_user))
        return deviation * math.sqrt(self.given.dimension - tables.entries + entries)

    def outlined(self, outline: Outline) -> Outline:
        """Return an outline with the noise of each choice, and the name of the least."""
        chosen = self.options.embedding_rows
        noises = {which: self.noise(which) for which in CHOICES}
        least = min(noises, key=noises.__getitem__)
        numbers: dict[str, Number] = {"table_rows": self.tables.rows, "least_noise": least}
        if chosen in ("found", "each_round"):
            numbers["row_threshold"] = self.counts(chosen).threshold * self.sampler.expected_batch
        numbers |= {f"noise_of_{which}": noise for which, noise in noises.items()}
        return replace(outline, numbers={**outline.numbers, **numbers})

    def all(self) -> Scheme:
        """Return rounds that train all rows."""
        made = clipped_rounds(self.given, self.options, self.computation, self.rate)
        return replace(made, outline=self.outlined(made.outline))

    def projected(self) -> Scheme:
        """Return rounds that follow the nearest mean that users of ``max_rows`` rows can have to the noisy one.

        *Formal guarantees.* *Claim.* Privacy is that of ``embedding_rows = "all"``, whatever ``max_rows`` is. *Why.*
        What is followed is a function of the same release. *Claim.* If users touch ``max_rows`` rows at most, and no
        more of them are drawn than expected, what is followed is no farther from the mean than what is released, and
        the expected squared distance in tables of V rows of w entries is at most ``4 R s (sqrt(w) + sqrt(2 ln V))``, s
        the noise of an entry, R `radius`. *Why.* A user's rows have norms of sum R at most (Cauchy-Schwarz), and so has
        the mean. A projection on a convex set moves no two points apart; its squared distance e from a point of the set
        is at most twice the inner product of noise and e (Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024, Lemma 3.1), so
        at most twice the noise's longest row times 2 R; the longest of V Gaussian rows is expected to be ``s (sqrt(w) +
        sqrt(2 ln V))`` at most.
        """

        def nearest(_: int, released: Vector) -> Vector:
            return self.tables.shrunk(released, self.radius)

        made = clipped_rounds(self.given, self.options, self.computation, self.rate, nearest)
        masked = self.given.privacy.trust == "sum"
        return made if masked else replace(made, outline=self.outlined(made.outline))

    def _training(self) -> MeanRounds:
        """Return rounds that train all rows with the noise of those that are chosen."""
        which = self.options.embedding_rows
        price = self.given.price(self.sampler, self.multiplier)
        mean = NoisyMean(self.sampler, self.mechanism(which), self.multiplier, price)
        made = rounds_of(self.given, self.options, mean, self.computation, self.rate, noise=self.noise(which))
        return replace(made, outline=self.outlined(made.outline))

    def found(self) -> Scheme:
        """Return rounds that find the rows first."""
        training, options = self._training(), self.options
        rate, p = options.rate(self.rate), self.given.dimension
        return FoundScheme(
            price=training.price,
            outline=training.outline,
            new_memory=lambda: FoundRows(np.zeros(self.tables.rows), 0, ServerOptimiser(options, rate, p)),
            counts=self.counts("found"),
            sampler=self.sampler,
            training=training,
            clip=options.clip_norm,
        )

    def each_round(self) -> Scheme:
        """Return rounds that choose the rows of each."""
        training = self._training()
        return ChoosingScheme(
            price=training.price,
            outline=training.outline,
            new_memory=training.new_memory,
            counts=self.counts("each_round"),
            sampler=self.sampler,
            domain=training.domain,
            clip=self.options.clip_norm,
            mechanism=self.mechanism("each_round"),
        )
