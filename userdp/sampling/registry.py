"""The samplers that ``strategy.sampling`` may name; each takes one line here."""

from userdp.errors import BadInput
from userdp.kinds import Kinds, below
from userdp.sampling.base import NamedSampler, Wanted
from userdp.sampling.contract import check_made, check_sampler

SAMPLERS: Kinds[type[NamedSampler]] = Kinds(
    {
        "disjoint": "userdp.sampling.disjoint:DisjointBatches",
        "cyclic": "userdp.sampling.disjoint:CyclicBatches",
        "poisson": "userdp.sampling.random_cohorts:PoissonBatches",
        "fixed_size": "userdp.sampling.random_cohorts:FixedSizeBatches",
        "allocation": "userdp.sampling.allocated:AllocatedBatches",
    },
    "userdp.samplers",
    files=True,
    check=below("userdp.sampling.base:NamedSampler", "a sampler draws the cohorts and prices them, see docs/extend.md"),
)


def sampler_of(name: str, wanted: Wanted) -> NamedSampler:
    """Make the sampler of that name.

    Raises `BadInput` (`PopulationTooSmall`): it cannot be made from the settings, or has no price for the relation; one
    that is not of this package: it also draws more than it prices (`userdp.sampling.contract`).
    """
    kind = SAMPLERS[name]
    for setting in ("cohort", "participations"):
        if setting != kind.sized_by and getattr(wanted, setting) is not None:
            raise BadInput(
                f"strategy.{setting} = {getattr(wanted, setting)} with sampling = {name!r}: its cohorts follow from "
                f"strategy.{kind.sized_by} and rounds; set that instead"
            )
    if name not in SAMPLERS.places:
        check_sampler(kind)
    sampler = kind.of(wanted)
    check_made(sampler, wanted)
    if wanted.relation not in (None, sampler.relation):
        priced = "replacing" if sampler.relation == "replace_one" else "adding or removing"
        raise BadInput(
            f"strategy.relation = {wanted.relation!r} with sampling = {name!r}: such cohorts are priced for "
            f"{priced} a user; leave it out, or set sampling = 'poisson' or 'allocation'"
        )
    return sampler
