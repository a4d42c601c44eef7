"""A draft for the registry of DP deployments, in the fields of its schema.

The registry is proposed in arXiv 2509.13509; its schema is ``schemas/deployments-schema.yaml`` of the public repository
``opendp/deployments-registry-data``, here as of commit 057e5d81. What uldp does not know (who publishes the model, for
what, where, when) is left out and named, never made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from uldp.errors import RunError
from uldp.privacy.sentences import ADD_REMOVE_USER, ADJACENCY, show_epsilon
from uldp.reports.view import RunView
from uldp.reports.words import metric_name, show_metric

UNKNOWN: Final = (
    "url_slug",
    "deployment.basic.name",
    "deployment.basic.data_curators",
    "deployment.basic.intended_use",
    "deployment.basic.data_product_region",
    "deployment.basic.publication_date",
    "deployment.administrative.registry_authors",
    "deployment.administrative.tier",
)
"""Required fields that only those who release the model can fill in."""
_UNITS: Final = {"user": "User-level", "record": "Record-level", "client": "Client-level (one silo)"}


@dataclass(frozen=True)
class RegistryRecord:
    """A record without the fields in ``missing``."""

    record: dict[str, Any]
    missing: tuple[str, ...] = UNKNOWN


def registry_record(view: RunView) -> RegistryRecord:
    """The draft for one run.

    Raises:
        RunError: The run has no guarantee: there is nothing to register.
    """
    statement = view.statement
    if not statement.holds or statement.simulated:
        reason = f"this run has no guarantee to be registered: {statement.headline()}"
        raise RunError(reason, location="--registry")
    deployment = {
        "basic": {
            "description": f"A model trained by {view.method} over {len(view.silos) or 'several'} silos with uldp "
            f"{view.versions.get('uldp', '')}.",
            "data_product_type": "Machine learning model",
        },
        "dp_variant": {"variant_name": "Approximate DP", "unprotected_quantities": _text(view, "not-covered")},
        "privacy_loss": _privacy_loss(view),
        "deployment_model": {
            "model_name": _model_name(view),
            "trust_assumptions": _text(view, "assumed", "lattice-assumptions", "one-place"),
            "actors": " ".join(
                f"{one.who[0].upper()}{one.who[1:]} sees {one.sees}: epsilon {show_epsilon(one.epsilon)}."
                for one in statement.exposures
            ),
            "access_type": "Non-interactive",
        },
        "implementation": _implementation(view),
        "administrative": {"status": "Draft"},
    }
    return RegistryRecord({"deployment": deployment})


def _privacy_loss(view: RunView) -> dict[str, Any]:
    statement = view.statement
    unit = str(statement.privacy_unit)
    found: dict[str, Any] = {
        "privacy_unit": _UNITS.get(unit, unit),
        "privacy_unit_details": f"{ADJACENCY.get(unit, ADD_REMOVE_USER)}.",
    }
    data = view.settings.get("data", {})
    hashed = data.get("dataset") is None and data.get("roster") is None
    people = data.get("people") or (None if hashed else view.users)
    if isinstance(people, int) and unit == "user":
        found["number_of_privacy_units"] = people
    parameters = {"epsilon": statement.epsilon, "delta": statement.delta}
    return {**found, "privacy_parameters": parameters, "privacy_parameters_details": statement.headline()}


def _implementation(view: RunView) -> dict[str, Any]:
    statement = view.statement
    versions = ", ".join(f"{name} {number}" for name, number in view.versions.items())
    constants = "Features follow from public constants (an agreed schema). " if view.schema else ""
    found = {
        "preprocessing_and_hyperparameter_tuning": f"{constants}No privacy loss is counted here for choices of "
        "settings, nor for other runs on the same data.",
        "mechanisms": f"Released: {'; '.join(view.releases())}. {versions}.",
        "composition": f"{statement.rounds} rounds, composed by {statement.accountant}.",
    }
    if view.metrics:
        shown = ", ".join(f"{metric_name(name)} {show_metric(name, value)}" for name, value in view.metrics.items())
        found["utility"] = f"On test records, without noise: {shown}."
    return found


def _model_name(view: RunView) -> str:
    """Whom people need not trust: nobody (local), a server behind a shuffler, or a server of silos."""
    if view.statement.privacy_unit != "client":
        return "Federated"
    return "Shuffle" if len(view.statement.exposures) > 1 else "Local"


def _text(view: RunView, *codes: str) -> str:
    """The caveats with these codes."""
    return " ".join(caveat.text for caveat in view.statement.caveats if caveat.code in codes)
