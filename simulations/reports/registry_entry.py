"""An entry of the Differential Privacy Deployments Registry, as far as a run knows it.

The fields are those of github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml (July 2026); the
registry is described in Nanayakkara, Ghazi, Vadhan, arXiv 2509.13509. Whatever a run does not know stays open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strategies.core.about import About
from userdp.accounting.guarantee import Guarantee

OPEN = {
    "url_slug": "a name for the entry's address",
    "tier": "1, 2 or 3: how complete the entry is",
    "deployment.basic.data_curators": "who publishes the model",
    "deployment.basic.intended_use": "what the model is for",
    "deployment.basic.data_product_region": "the region of the people, or of the law",
    "deployment.basic.publication_date": "YYYY-MM-DD",
    "deployment.basic.data_product_sector": "such as Healthcare or Education",
    "deployment.deployment_model.release_type": "One release, or Many releases of models of the same people",
    "deployment.deployment_model.release_type_details": "plans for further releases, and what they will spend",
    "deployment.deployment_model.data_source_type": "Static, or Dynamic if data are added between runs",
    "deployment.deployment_model.data_source_type_details": "how data are added",
    "deployment.implementation.preprocessing_and_hyperparameter_tuning": "what was tried on the data before this run, "
    "and what it spent",
    "deployment.implementation.justification": "why this epsilon, this unit and this trust model",
    "deployment.administrative.sources": "papers, pages, the code of the deployment",
    "deployment.administrative.registry_authors": "who fills in the entry",
}
"""Fields that no run knows -> what the deploying organisation writes there."""
_NOISE = {
    "seeded": "simulated noise from a seeded generator, in floating point: no protection",
    "secure": "noise from the operating system's randomness, exact on a grid (OpenDP), its rounding paid for",
}


@dataclass(frozen=True)
class Entry:
    """The registry's fields that a run knows, nested as the registry nests them, and those ``open``, with a hint."""

    values: dict[str, Any]
    open: dict[str, str]


def registry_entry(value: Callable[[str], Any], guarantee: Guarantee, about: About | None, rho: float | None) -> Entry:
    """Return the entry of a run; an empty one without a guarantee, as such a run is no private deployment.

    Args:
        value: from "file: key.key" of the run directory to the value there, or None.
        guarantee: of the run.
        about: the declarations of its strategy; None if they are unknown.
        rho: for which the run is rho-zCDP; None if none follows.
    """
    if not guarantee.holds:
        return Entry({}, {})
    users, name, versions = (value(f"result.json: {key}") for key in ("users", "name", "versions"))
    strategy, noise = value("result.json: strategy"), value("config.toml: privacy.noise")
    model = _model(value("config.toml: privacy.trust"), about)
    replaced = "in the data of one" if guarantee.relation == "replace_one" else "by the presence of one"
    parameters = {"epsilon": guarantee.epsilon, "delta": guarantee.delta or None, "rho": rho}
    deployment = {
        "basic": {
            "name": name,
            "description": f"{value('result.json: problem')} model with {value('result.json: dimension')} parameters, "
            f"trained by {strategy} in {value('result.json: rounds')} rounds on {users} users",
            "data_product_type": "Machine learning model",
        },
        "dp_variant": {
            "variant_name": "Approximate DP" if guarantee.delta else "Pure DP",
            "data_domain": f"any data of {users} users, within the bounds that config.toml declares",
            "unprotected_quantities": "number of users; config.toml; times, sizes and failures of machines",
        },
        "privacy_loss": {
            "privacy_unit": guarantee.unit,
            "privacy_unit_details": f"data sets are adjacent if they differ {replaced} {guarantee.unit}",
            "privacy_parameters": {key: one for key, one in parameters.items() if one is not None},
            "privacy_parameters_details": guarantee.sentence(),
        },
        "deployment_model": {
            "model_name": model,
            "model_name_details": "federated: data stay with the nodes that hold them",
            "actors": guarantee.adversary,
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "the released models follow from noisy releases and public numbers alone",
            "composition": guarantee.accountant,
        },
        "implementation": {
            "mechanisms": f"{strategy}, {guarantee.accountant}; {_NOISE[noise]}; "
            f"{', '.join(f'{package} {version}' for package, version in versions.items())}",
        },
        "administrative": {"notes": f"assumptions: {'; '.join(guarantee.assumptions)}"},
    }
    missing = {} if model else {"deployment.deployment_model.model_name": "Local, Central, Shuffle or Federated"}
    if not model:
        del deployment["deployment_model"]["model_name"]
    return Entry({"status": "Draft", "deployment": deployment}, OPEN | missing)


def _model(trust: str, about: About | None) -> str | None:
    if trust == "sum":
        return "Federated"
    if about is None:
        return None
    return "Central" if about.server_trusted else "Local"
