"""What one party of a real federation holds: the server without data, or one silo with its own.

All of them come to the same plan, and so to the same digest, from the experiment file alone. A *rehearsal* draws all
secrets from the seed, like a simulation: it protects nobody, and ends with the simulation's model bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from uldp.data.federation import Federation
from uldp.errors import ConfigError
from uldp.experiment.build import PreparedExperiment, prepare_party
from uldp.experiment.config import Experiment
from uldp.experiment.loading import schema_of, server_federation, silo_federation
from uldp.rng import Secrets
from uldp.sessions.silo import signing_key


def prepare_server(experiment: Experiment, *, rehearsal: bool = False) -> PreparedExperiment:
    """All that the server needs; no silo's data are read, unless they are a built-in data set of a rehearsal."""
    check_deployable(experiment, rehearsal=rehearsal)
    return _prepare(experiment, server_federation(experiment))


def prepare_silo(
    experiment: Experiment,
    silo: str,
    data_file: Path | str | None = None,
    *,
    holdout_file: Path | str | None = None,
    rehearsal: bool = False,
) -> PreparedExperiment:
    """All that one silo needs; see :func:`~uldp.experiment.loading.silo_federation`."""
    check_deployable(experiment, rehearsal=rehearsal)
    prepared = _prepare(experiment, silo_federation(experiment, silo, data_file, holdout_file))
    plan = prepared.plan
    own = prepared.data(silo).counts(plan.facts.users)
    notes = (*prepared.federation.notes, *plan.aggregation.notes(plan.release, own[None]))
    return replace(prepared, silo=silo, federation=replace(prepared.federation, notes=notes))


def _prepare(experiment: Experiment, federation: Federation) -> PreparedExperiment:
    # Methods that read the totals are refused, so anything will do.
    prepared = prepare_party(experiment, federation, np.ones(federation.users, dtype=np.int64))
    if experiment.run.secrets == "os" or experiment.aggregation.identities:
        return prepared
    secrets = Secrets.simulated_from_seed(experiment.run.seed)
    keys = [signing_key(secrets, index).public for index in range(len(federation.silos))]
    return replace(prepared, plan=prepared.plan.with_identities(keys))


def check_deployable(experiment: Experiment, *, rehearsal: bool = False) -> None:
    """Refuse what needs all data in one place, or what would protect nobody."""
    method, data = experiment.method, experiment.data
    aggregation = experiment.aggregation.build(experiment.run.threads)
    if method.for_data(np.ones(2, dtype=np.int64)) != method:
        reason = "such a setting reads all silos' data, which nobody holds; take another"
        raise ConfigError(reason, location=f"method.{method.reads_data}")
    if aggregation.shuffles:
        reason = (
            "there is no party yet that shuffles between real silos; take 'plain' (the clients perturb by themselves)"
        )
        raise ConfigError(reason, location="aggregation.name", value=experiment.aggregation.name)
    if data.dataset is None and schema_of(experiment).standardise == "silo":
        reason = "statistics of all silos' data are needed, which nobody holds; take 'none'"
        raise ConfigError(reason, location="data.schema.standardise", value="silo")
    if rehearsal and experiment.run.secrets == "simulated":
        return
    if experiment.run.secrets == "simulated":
        reason = 'noise and keys from the seed protect nobody; set run.secrets = "os", or say that this is a rehearsal'
        raise ConfigError(reason, location="run.secrets", value="simulated")
    if not aggregation.secure and not rehearsal:
        reason = "such a key can be broken, and with it everybody's record counts; leave key_bits out, or rehearse"
        raise ConfigError(
            reason, location="aggregation.key_bits", value=experiment.aggregation.settings.get("key_bits")
        )
    if data.dataset is None and data.roster is None and data.id_key is None:
        raise ConfigError(
            "the silos need a key for hashing ids, which the server never gets (`openssl rand -hex 32`), or a roster",
            location="data.id_key",
        )
    if aggregation.needs_key_agreement and not experiment.aggregation.identities:
        reason = f"{experiment.aggregation.name} needs every silo's public key; `uldp keys` makes them"
        raise ConfigError(reason, location="aggregation.identities")
