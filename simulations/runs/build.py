"""The problem, users, strategy and plan of a configuration. Only `load_datasets` reads data."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from simulations.account.entering import VARIABLE, refusal, wanted
from simulations.config.run_config import REFERENCE, RunConfig
from simulations.records.coefficients import reading_of
from simulations.records.named_code import digests
from simulations.runs.trackers import TRACKERS
from strategies.auto.preparation import LearnCoordinates
from strategies.core.base import UserLevelStrategy
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.registry import STRATEGIES
from strategies.wire.questions import model_vector
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.data import Federation
from userdp.data.source import Datasets, LoadReport
from userdp.data.tables.unusable import CHECK_RANGE, clipped_end
from userdp.errors import BadInput
from userdp.extras import check_extra
from userdp.problems import Problem
from userdp.problems.initial_model import public_model
from userdp.tracebacks import without_internals

log = logging.getLogger("userdp")
_NO_DATA = Datasets(None, None, None)
_PRIVATE = "Private: this follows from all cells of the table, and is for the holder of the data alone"


@without_internals
def build_problem(config: RunConfig) -> Problem:
    """Build the loss, with its dimension from the declared data; it reads no data. BadInput for a contradiction."""
    problem: Problem = config.problem.build(config.data.sample_shape, config.seed)
    problem.use_device(config.engine.device)
    return problem


def starting_problem(config: RunConfig) -> Problem:
    """Build the loss for training, at the configuration's public model if it names one, which has to fit."""
    problem, file = build_problem(config), config.problem.initial_model
    return problem if file is None else problem.starting_at(public_model(problem, Path(file)))


@without_internals
def load_datasets(config: RunConfig, hidden: Callable[[], bool] | None = None) -> Datasets:
    """Read or describe the users; the same configuration gives the same users in the same order everywhere.

    ``hidden`` says whether their number is protected; by default `hides_number` of the configuration does.

    Raises:
        BadInput: a file that cannot be used, a row without a user, or in a simulation a column that teaches nothing.
        PopulationTooSmall: fewer training users than data.users declares.
    """
    datasets: Datasets = config.data.load(config.seed, partial(hides_number, config) if hidden is None else hidden)
    columns = [] if datasets.report is None else [*datasets.report.nothing_usable, *_all_one(config, datasets.report)]
    # One person's cell can decide whether any sample is usable, and everybody sees whether a run stops. So a run with
    # secure noise, which protects real people, continues, and a warning in the log informs the holder of the data.
    if columns and config.privacy.noise != "secure":
        raise BadInput(f"{'; '.join(columns)}. Nothing would be learnt from that. {_PRIVATE}")
    for sentence in columns:
        log.warning("%s. Then the model will be noise, or learn nothing of this column. %s", sentence, _PRIVATE)
    return datasets


def _all_one(config: RunConfig, report: LoadReport) -> list[str]:
    """Return a sentence if the loss clips all targets to one number; warn of codes that are none of two classes."""
    bounds, ends = config.problem.target_bounds, report.target_ends
    if bounds is None or ends is None:
        return []
    target, kind = f"the target {config.data.declarations['target']!r} has", f"problem.kind = {config.problem.kind!r}"
    two = bounds == (0.0, 1.0)
    remedy = "set data.positive to the cell that means 1, or data.target_levels to two cells" if two else CHECK_RANGE
    if end := clipped_end(ends, bounds):
        clipped = f"[{bounds[0]:g}, {bounds[1]:g}], into which {kind} clips"
        return [f"{target} no cell {end} of {clipped}, so all of them count as that end: {remedy}"]
    outside = "below -1 or above 1" if two and not -1.0 <= ends[0] <= ends[1] <= 1.0 else ""
    if getattr(config.problem, "count_bound", None) is not None and ends[0] < 0.0:
        outside = "below 0"
    if outside:
        log.warning("%s cells %s, and %s clips into %s: %s. %s", target, outside, kind, [*bounds], remedy, _PRIVATE)
    return []


def server_datasets(config: RunConfig) -> Datasets:
    """Return the data that the server of a deployment may read: the recipe of synthetic users, nothing of a table.

    BadInput if it would need users' data, noise does not protect real people, or the configuration says where accounts
    are: who writes it would choose what is left in them.
    """
    data = config.data
    if config.privacy.accounts is not None:
        raise BadInput(
            f"privacy.accounts = {config.privacy.accounts!r}: a deployment's accounts are where {VARIABLE} says at its "
            "server, never where a configuration does; leave it out"
        )
    if config.output.reference:
        raise BadInput("output.reference = true: a deployment must not also train without privacy; leave it out")
    if data.simulated:
        return load_datasets(config)
    if data.holds_out and not config.privacy.evaluate:
        raise BadInput(
            f"{data.holds_out}: a deployment's server has no people to hold out; set privacy.evaluate = true, so that "
            "held-out users evaluate models from their silos, or data.test_fraction = 0"
        )
    if data.declared_users is None:
        raise BadInput("data.users is missing: the server of a deployment has no data to count people in; declare it")
    if config.privacy.noise == "seeded":
        raise BadInput(
            'privacy.noise = "seeded": whoever knows the seed can remove the noise; deploy only synthetic data with it'
        )
    return _NO_DATA


def public_facts(config: RunConfig, train: Federation | None = None) -> PublicFacts:
    """Return the facts that a plan may use: declarations, and the counted users ``train`` if no number is declared.

    BadInput if users are neither declared nor counted, or both with different numbers.
    """
    data = config.data
    users, samples = data.declared_users, data.declared_samples
    if users is None and train is None:
        raise BadInput(
            "data.users is missing: a plan reads no data, so declare the public number of training users "
            "(after those held out by data.test_fraction and data.min_samples), or as data.all_users that of all users "
            "in the table, from which it follows"
        )
    if train is not None:
        if users not in (None, train.users):
            _check_number(config, train.users, users)
        users = users or train.users
    fewest, most = data.sample_limits
    reading = reading_of(config) if getattr(config.strategy, "coefficients", 0) else None
    assumptions, start = list(data.assumptions), config.problem.initial_model
    if start is not None:
        assumptions.append(
            f"the initial model is public: {Path(start).name} was made without these users' data, or what it cost them "
            "is counted on top"
        )
    return PublicFacts(users, fewest, most, samples, reading, tuple(assumptions))


def hides_number(config: RunConfig) -> bool:
    """Return whether a user may be added or removed: the number of places is public then, and that of users is not.

    Raises `BadInput` if the declarations give no plan. Where a sample is added or removed its user stays.
    """
    return Prepared.of(config).plan.guarantee.users_come_and_go


def _check_number(config: RunConfig, users: int, declared: int) -> None:
    """Refuse (`BadInput`) another number of training users than is declared, and if it is protected more users."""
    if not hides_number(config):
        raise BadInput(f"the data give {users} training users where {declared} are declared: correct data.users")
    if users > declared:
        raise BadInput(
            f"data.users = {declared}: there are more training users than these places, and their number is protected; "
            "declare more places, by public knowledge"
        )


def check_places(config: RunConfig, guarantee: Guarantee) -> None:
    """Refuse (`BadInput`) a number of users that was read from the data, where it is protected.

    Where a user may be added or removed, whatever is divided by that number, or shows it, would tell. That of a public
    data set is known.
    """
    protected = guarantee.users_come_and_go and not config.data.published
    if config.data.declared_users is None and protected:
        raise BadInput(
            "data.all_users is missing: a user may be added or removed, so their number is protected, and cannot be "
            "read from the table; declare a number of places that is enough for all, by public knowledge, or set "
            "relation = 'replace_one'"
        )


def held_out_users(config: RunConfig, datasets: Datasets = _NO_DATA) -> int:
    """Return the number of held-out users who evaluate models privately; 0 without ``privacy.evaluate``.

    BadInput if nobody is held out, or the number is not public, or who is follows from private data.
    """
    if not config.privacy.evaluate:
        return 0
    if config.data.held_out_by_data:
        raise BadInput(
            "privacy.evaluate = true with data.split_column: who is held out would follow from people's own data, and "
            "replacing one could change both parts; use data.test_fraction"
        )
    declared: int | None = config.data.declared_held_out
    if declared is None and datasets.test is not None:
        declared = datasets.test.users
    if not declared:
        raise BadInput(
            "privacy.evaluate = true: no public number of held-out users above 0 is declared; declare data.all_users "
            "with data.test_fraction, or data.test_users"
        )
    return declared


def check_samples(facts: PublicFacts, train: Federation, guarantee: Guarantee) -> None:
    """Compare the declared number of samples, by which means are divided, with that of the training users.

    One user's number of samples must not decide whether a run is refused, which everybody can see. So a difference is a
    warning to the holder of the data alone, without the number. Only a guarantee for replacing one sample makes the
    number public, and a difference an error.
    """
    if facts.samples in (None, train.samples):
        return
    if guarantee.holds and guarantee.unit == "sample" and guarantee.relation == "replace_one":
        raise BadInput(f"data.samples = {facts.samples}, but training users hold {train.samples}: correct data.samples")
    log.warning(
        "data.samples = %d is not the number of samples that the training users hold: means are divided by the "
        "declared number, so all gradients are too long or too short by the same factor",
        facts.samples,
    )


@without_internals
def make_strategy(
    config: RunConfig, problem: Problem, facts: PublicFacts, *, name: str | None = None, held_out: int = 0
) -> UserLevelStrategy:
    """Plan the configured strategy, or another by ``name`` with its defaults; BadInput says what to change."""
    if name:
        simulated = replace(config.privacy.budget, noise="seeded")
        return STRATEGIES[name]().strategy(problem, facts, simulated, seed=config.seed, held_out=held_out)
    make = partial(
        STRATEGIES[config.strategy.kind](**config.strategy_options).strategy,
        problem,
        facts,
        config.privacy.budget,
        seed=config.seed,
        compare_with_initial=config.output.compare_with_initial,
        held_out=held_out,
        choose_best=config.privacy.choose_best,
    )
    if config.preparation == "learn":
        return make(preparation=LearnCoordinates)
    if config.preparation == "where_useful":
        with suppress(BadInput):
            prepared = make(preparation=LearnCoordinates)
            if prepared.plan.forecast is None or not prepared.plan.forecast.hopeless:
                return prepared
    return make()


def with_assumptions(guarantee: Guarantee, config: RunConfig) -> Guarantee:
    """Add what a sample is to a guarantee that protects samples; unchanged if it does not hold."""
    if not guarantee.holds:
        return guarantee
    found = list[str]()
    counted_by_sample = (guarantee.unit, guarantee.relation) == ("sample", "add_or_remove")
    if counted_by_sample and config.data.keeps_some_samples:
        # A further sample of a user above the limit can replace another one among those kept.
        found.append("a sample is one of those that data.max_samples keeps, and which are kept is public")
    if guarantee.unit == "sample" and config.data.sample_shape.sequence is not None:
        # A further row moves every later step, into other windows.
        found.append("a sample is a window of its user's steps, and where windows begin is public")
    return guarantee.assuming(*found)


@dataclass(frozen=True)
class Prepared:
    """A run before anybody is asked: the loss, the users, what is public about them, and the planned strategy."""

    config: RunConfig
    problem: Problem
    datasets: Datasets
    facts: PublicFacts
    strategy: UserLevelStrategy
    code: dict[str, str]
    """Field of the configuration -> digest of the code that it names, before that was imported."""
    begun: float
    """The moment when preparing began, in seconds."""

    @classmethod
    def of(cls, config: RunConfig, datasets: Datasets | Callable[[RunConfig], Datasets] = _NO_DATA) -> "Prepared":
        """Plan the configured strategy for its users, or those that ``datasets`` reads; by default declared ones.

        BadInput: parts contradict each other, or what the plan needs is not public.
        """
        begun, code = time.perf_counter(), digests(config)
        problem = starting_problem(config)
        datasets = datasets(config) if callable(datasets) else datasets
        facts = public_facts(config, datasets.train)
        strategy = make_strategy(config, problem, facts, held_out=held_out_users(config, datasets))
        check_places(config, strategy.plan.guarantee)
        return cls(config, problem, datasets, facts, strategy, code, begun)

    @property
    def plan(self) -> Plan:
        """The strategy's plan with the declarations of the configuration."""
        return with_declarations(self.strategy.plan, self.config)

    @property
    def model(self) -> Vector:
        """The last released model; the initial one before the first release."""
        arrays = self.strategy.result.arrays
        return model_vector(arrays) if len(arrays) else self.problem.initial()

    def reference(self) -> UserLevelStrategy:
        """Return the strategy without privacy, for the same users."""
        held_out = held_out_users(self.config, self.datasets)
        return make_strategy(self.config, self.problem, self.facts, name=REFERENCE, held_out=held_out)

    def check_run(self, *, computes: bool) -> None:
        """Refuse (`BadInput`) what a plan alone lets pass; the run ``computes`` on this machine, or elsewhere alone."""
        insist(self.config, self.strategy.plan)
        if computes:
            self.problem.settle_device()
        if self.datasets.train is not None:
            check_samples(self.facts, self.datasets.train, self.strategy.plan.guarantee)
        names = self.config.output.trackers
        check_extra("trackers", f"output.trackers = {names!r}", [TRACKERS[name][0] for name in names])


def insist(config: RunConfig, plan: Plan) -> None:
    """Refuse a run whose plan predicts a model far worse than the initial one, unless ``output.anyway`` is set."""
    if plan.forecast is None or not plan.forecast.hopeless or config.output.anyway:
        return
    reasons = "; ".join(plan.forecast.warnings())
    raise BadInput(f"strategy.kind = {plan.strategy!r}: {reasons}. To run it anyway, use --anyway or output.anyway")


def make_plan(config: RunConfig) -> Plan:
    """Compute all numbers of a run from the configuration; BadInput if facts are missing or users too few.

    If the run names an account that would refuse it as things stand, a warning says so.
    """
    prepared, asked = Prepared.of(config), config.privacy
    plan = prepared.plan
    if asked.account is None:
        return plan
    refused = refusal(asked.accounts, asked.account, wanted(prepared.strategy, config.name))
    if refused is None:
        return plan
    return replace(plan, warnings=(*plan.warnings, f"this run would be refused: {refused}"))


def with_declarations(plan: Plan, config: RunConfig) -> Plan:
    """Add to a strategy's plan what a sample is, and the initial model."""
    file = config.problem.initial_model
    numbers = plan.numbers if file is None else {**plan.numbers, "initial_model": Path(file).name}
    return replace(plan, guarantee=with_assumptions(plan.guarantee, config), numbers=numbers)
