"""The problem, users, strategy and plan of a configuration. Only `load_datasets` reads data."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from simulations.config.run_config import RunConfig
from strategies.auto.preparation import LearnCoordinates
from strategies.core.base import UserLevelStrategy
from strategies.core.plan import Plan
from strategies.core.public_facts import PublicFacts
from strategies.registry import STRATEGIES
from userdp.accounting import Guarantee, Privacy
from userdp.data import Federation
from userdp.data.source import Datasets
from userdp.data.synthetic.source import SyntheticData
from userdp.errors import BadInput
from userdp.problems import Problem
from userdp.problems.devices import use_device
from userdp.problems.initial_model import public_model
from userdp.tracebacks import without_internals

log = logging.getLogger("userdp")
_PRIVATE = "Private: this follows from all cells of the table, and is for the holder of the data alone"


@without_internals
def build_problem(config: RunConfig) -> Problem:
    """Build the loss, with its dimension from the declared data; it reads no data. BadInput for a contradiction."""
    problem: Problem = config.problem.build(config.data.sample_shape, config.seed)
    use_device(problem, config.engine.device)
    return problem


def starting_problem(config: RunConfig) -> Problem:
    """Build the loss for training, at the configuration's public model if it names one, which has to fit."""
    problem, file = build_problem(config), config.problem.initial_model
    return problem if file is None else problem.starting_at(public_model(problem, Path(file)))


def build_privacy(config: RunConfig) -> Privacy:
    """Build the budget."""
    return Privacy(**config.privacy.model_dump(exclude={"evaluate", "choose_best"}))


@without_internals
def load_datasets(config: RunConfig) -> Datasets:
    """Read or describe the users; the same configuration gives the same users in the same order everywhere.

    Raises:
        BadInput: a file that cannot be used, a row without a user, or in a simulation a column without a usable cell.
        PopulationTooSmall: fewer training users than data.users declares.
    """
    datasets: Datasets = config.data.load(config.seed)
    if datasets.report is not None and datasets.report.nothing_usable:
        _refuse_unusable(config, datasets.report.nothing_usable)
    return datasets


def _refuse_unusable(config: RunConfig, columns: Sequence[str]) -> None:
    """Refuse to simulate a run without a usable sample.

    One person's cell can decide this, and everybody sees whether a run stops. So a run with secure noise, which
    protects real people, continues, and a warning in the log informs the holder of the data.
    """
    if config.privacy.noise == "secure":
        for sentence in columns:
            log.warning("%s. Every sample is set aside, and the model will be noise. %s", sentence, _PRIVATE)
        return
    raise BadInput(f"{'; '.join(columns)}. Every sample would be set aside, and nothing be learnt. {_PRIVATE}")


def server_datasets(config: RunConfig) -> Datasets:
    """Return the data that the server of a deployment may read: the recipe of synthetic users, nothing of a table.

    BadInput if it would need users' data, or noise does not protect real people.
    """
    data = config.data
    if config.output.reference:
        raise BadInput("output.reference = true: a deployment must not also train without privacy; leave it out")
    if isinstance(data, SyntheticData):
        return load_datasets(config)
    if data.holds_out:
        raise BadInput(f"{data.holds_out}: a deployment's server has no people to hold out; set data.test_fraction = 0")
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
            raise BadInput(f"the data give {train.users} training users where {users} are declared: correct data.users")
        users = train.users
    fewest, most = data.sample_limits
    return PublicFacts(users=users, min_samples=fewest, max_samples=most, samples=samples)


def held_out_users(config: RunConfig, datasets: Datasets | None = None) -> int:
    """Return the number of held-out users who evaluate models privately; 0 without ``privacy.evaluate``.

    BadInput if nobody is held out, or the number is not public, or who is follows from private data.
    """
    if not config.privacy.evaluate:
        return 0
    declared = config.data.declared_held_out
    if declared is None and (datasets is None or datasets.test is None):
        raise BadInput(
            "privacy.evaluate = true: the public number of held-out users is missing; declare data.all_users with "
            "data.test_fraction, or data.test_users"
        )
    if datasets is not None and datasets.test is not None:
        return datasets.test.users
    return int(declared or 0)


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
        simulated = replace(build_privacy(config), noise="seeded")
        recipe = STRATEGIES[name].parsed({})
        return UserLevelStrategy(recipe, problem, facts, simulated, seed=config.seed, held_out=held_out)
    make = partial(
        UserLevelStrategy,
        STRATEGIES[config.strategy.kind].parsed(config.strategy_options),
        problem,
        facts,
        build_privacy(config),
        seed=config.seed,
        compare_with_initial=config.output.compare_with_initial,
        held_out=held_out,
        choose_best=config.privacy.choose_best,
    )
    return prepared_if(config.preparation, make)


def prepared_if(wanted: str, make: Callable[..., UserLevelStrategy]) -> UserLevelStrategy:
    """Call ``make``, with a ``preparation`` or without, according to a file's ``preparation``."""
    if wanted == "learn":
        return make(preparation=LearnCoordinates)
    if wanted == "where_useful":
        try:
            prepared = make(preparation=LearnCoordinates)
        except BadInput:
            return make()
        if prepared.plan.forecast is None or not prepared.plan.forecast.hopeless:
            return prepared
    return make()


def with_assumptions(guarantee: Guarantee, config: RunConfig) -> Guarantee:
    """Add the assumptions about the data to a guarantee; unchanged if it does not hold."""
    if not guarantee.holds:
        return guarantee
    found = list(config.data.assumptions)
    if config.problem.initial_model is not None:
        found.append(
            f"the initial model is public: {Path(config.problem.initial_model).name} was made without these users' "
            "data, or what it cost them is counted on top"
        )
    if config.privacy.noise == "seeded":
        found.append("noise comes from a seeded generator: this is a simulation, whoever knows the seed can undo it")
    counted_by_sample = (guarantee.unit, guarantee.relation) == ("sample", "add_or_remove")
    if counted_by_sample and config.data.keeps_some_samples:
        # A further sample of a user above the limit can replace another one among those kept.
        found.append("a sample is one of those that data.max_samples keeps, and which are kept is public")
    if guarantee.unit == "sample" and config.data.sample_shape.sequence is not None:
        # A further row moves every later step, into other windows.
        found.append("a sample is a window of its user's steps, and where windows begin is public")
    return replace(guarantee, assumptions=(*guarantee.assumptions, *found))


def make_plan(config: RunConfig) -> Plan:
    """Compute all numbers of a run from the configuration; BadInput if facts are missing or users too few."""
    strategy = make_strategy(config, starting_problem(config), public_facts(config), held_out=held_out_users(config))
    return with_declarations(strategy.plan, config)


def with_declarations(plan: Plan, config: RunConfig) -> Plan:
    """Add to a strategy's plan the assumptions about the data, and the initial model."""
    file = config.problem.initial_model
    numbers = plan.numbers if file is None else {**plan.numbers, "initial_model": Path(file).name}
    return replace(plan, guarantee=with_assumptions(plan.guarantee, config), numbers=numbers)
