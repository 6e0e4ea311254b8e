"""The problem, users, strategy and plan of a configuration, or of all strategies. Only `load_datasets` reads data."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simulations.account.entering import VARIABLE, refusal, wanted
from simulations.config.run_config import REFERENCE, OutputSection, RunConfig, strategy_section
from simulations.records.coefficients import reading_of
from strategies.auto.preparation import LearnCoordinates
from strategies.core.base import UserLevelStrategy
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.registry import STRATEGIES
from userdp.accounting import Guarantee
from userdp.data import Federation
from userdp.data.source import Datasets
from userdp.errors import BadInput, UserdpError
from userdp.problems import Problem
from userdp.problems.initial_model import public_model
from userdp.problems.shares import SharesProblem
from userdp.tracebacks import without_internals

log = logging.getLogger("userdp")
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
        BadInput: a file that cannot be used, a row without a user, or in a simulation a column without a usable cell.
        PopulationTooSmall: fewer training users than data.users declares.
    """
    datasets: Datasets = config.data.load(config.seed, partial(hides_number, config) if hidden is None else hidden)
    columns = [] if datasets.report is None else datasets.report.nothing_usable
    # One person's cell can decide whether any sample is usable, and everybody sees whether a run stops. So a run with
    # secure noise, which protects real people, continues, and a warning in the log informs the holder of the data.
    if columns and config.privacy.noise != "secure":
        raise BadInput(f"{'; '.join(columns)}. Every sample would be set aside, and nothing be learnt. {_PRIVATE}")
    for sentence in columns:
        log.warning("%s. Every sample is set aside, and the model will be noise. %s", sentence, _PRIVATE)
    return datasets


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
    return Datasets(None, None, None)


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
    strategy = make_strategy(config, starting_problem(config), public_facts(config), held_out=held_out_users(config))
    return strategy.plan.guarantee.users_come_and_go


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


def held_out_users(config: RunConfig, datasets: Datasets | None = None) -> int:
    """Return the number of held-out users who evaluate models privately; 0 without ``privacy.evaluate``.

    BadInput if nobody is held out, or the number is not public, or who is follows from private data.
    """
    if not config.privacy.evaluate:
        return 0
    if getattr(config.data, "split_column", None) is not None:
        raise BadInput(
            "privacy.evaluate = true with data.split_column: who is held out would follow from people's own data, and "
            "replacing one could change both parts; use data.test_fraction"
        )
    loaded = None if datasets is None else datasets.test
    declared: int | None = config.data.declared_held_out
    if declared is None and loaded is not None:
        declared = loaded.users
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


def make_plan(config: RunConfig) -> Plan:
    """Compute all numbers of a run from the configuration; BadInput if facts are missing or users too few.

    If the run names an account that would refuse it as things stand, a warning says so.
    """
    strategy = make_strategy(config, starting_problem(config), public_facts(config), held_out=held_out_users(config))
    plan, asked = with_declarations(strategy.plan, config), config.privacy
    if asked.account is None:
        return plan
    refused = refusal(asked.accounts, asked.account, wanted(strategy, config.name))
    if refused is None:
        return plan
    return replace(plan, warnings=(*plan.warnings, f"this run would be refused: {refused}"))


def with_declarations(plan: Plan, config: RunConfig) -> Plan:
    """Add to a strategy's plan what a sample is, and the initial model."""
    file = config.problem.initial_model
    numbers = plan.numbers if file is None else {**plan.numbers, "initial_model": Path(file).name}
    return replace(plan, guarantee=with_assumptions(plan.guarantee, config), numbers=numbers)


# Advice: a plan of each strategy, ranked by its forecast ------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """The plan of a strategy; or None, and the ``reason`` why it refuses.

    ``configured`` is the file's own strategy, with the file's settings. ``trusting`` if users have to trust the server.
    """

    strategy: str
    configured: bool
    plan: Plan | None
    reason: str
    trusting: bool

    @property
    def predicted(self) -> float | None:
        """The excess risk that the plan predicts; None if there is no plan or no forecast."""
        forecast = None if self.plan is None else self.plan.forecast
        return None if forecast is None else forecast.excess

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and tables."""
        about, plan = STRATEGIES[self.strategy].about, self.plan
        forecast = None if plan is None else plan.forecast
        given = plan.guarantee if plan is not None and plan.guarantee.holds else None
        return {
            "strategy": self.strategy,
            "configured": self.configured,
            "predicted_excess": self.predicted,
            "start_excess": None if forecast is None else forecast.start,
            "model_noise": None if forecast is None else forecast.noise,
            **{name: getattr(plan, name, None) for name in ("rounds", "cohort", "users_needed")},
            "guarantee": None if plan is None else plan.guarantee.sentence(),
            "assumptions": [] if plan is None else list(plan.guarantee.assumptions),
            "relation": None if given is None else given.relation,
            "adversary": about.adversary if given is None else given.adversary,
            "cost": about.cost,
            "warnings": [] if plan is None else list(plan.warnings),
            "refused": self.reason or None,
        }


def advise(config: RunConfig, progress: Callable[[int, int, str], None] | None = None) -> list[Advice]:
    """Plan every strategy for the declared problem, users and budget, and sort by predicted excess risk.

    Strategies without a forecast come after those with one, and those that refuse last. The file's own strategy has the
    file's settings, all others have their defaults. ``progress`` is called before each plan, with the number
    made, the number of strategies, and the one to be planned.
    """
    problem, facts = starting_problem(config), public_facts(config)
    if isinstance(problem, SharesProblem):
        raise BadInput("a query trains nothing, so no strategies are ranked for it; userdp plan shows its guarantee")
    names = [name for name in STRATEGIES.loaded()[0] if name != REFERENCE]
    found = []
    for done, name in enumerate(names):
        if progress is not None:
            progress(done, len(names), name)
        found.append(_advice(config, problem, facts, name))
    return sorted(found, key=lambda one: (one.plan is None, one.predicted is None, one.predicted or 0.0))


def _advice(config: RunConfig, problem: Problem, facts: PublicFacts, name: str) -> Advice:
    own = name == config.strategy.kind
    trusting = STRATEGIES[name].about.server_trusted and config.privacy.trust == "server"
    try:
        if not own:
            other, plain = strategy_section(name).model_validate({"kind": name}), OutputSection.model_validate({})
            changed = {"strategy": other, "preparation": "where_useful", "output": plain}
            config = config.model_copy(update=changed)
        made = make_strategy(config, problem, facts)
    except UserdpError as error:
        return Advice(name, own, None, str(error), trusting)
    return Advice(name, own, with_declarations(made.plan, config), "", trusting)
