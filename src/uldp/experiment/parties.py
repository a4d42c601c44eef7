"""From an experiment to what one party of a real federation holds: the server without data, or one silo with its own.

All of them come to the same plan, and so to the same digest, from the experiment file alone. A *rehearsal* draws all
secrets from the seed, like a simulation: it protects nobody, and ends with the simulation's model bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uldp.data.federation import Records, SiloData, Task
from uldp.data.holdout import parted
from uldp.errors import ConfigError, did_you_mean
from uldp.experiment.build import (
    SIMULATED_KEY,
    agreed_plan,
    budgeted_ledger,
    build_learner,
    load_federation,
    rounding,
    schema_of,
    training_notes,
    user_index,
    void_of,
)
from uldp.experiment.config import Experiment
from uldp.privacy.ledger import Entry, Ledger
from uldp.protocol.messages import AskKey
from uldp.rng import Secrets, Streams
from uldp.sessions.plan import Plan
from uldp.sessions.silo import signing_key

if TYPE_CHECKING:
    from uldp.data.schema import Schema
    from uldp.learners.torch import TorchLearner


@dataclass(frozen=True)
class KnownData:
    """What every party knows about all silos' data: it follows from the experiment file."""

    name: str
    silos: tuple[str, ...]
    users: int
    task: Task
    feature_shape: tuple[int, ...]
    caveats: tuple[str, ...] = ()
    void: str = ""
    hashed: bool = False
    schema: Schema | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedServer:
    """An experiment that is ready to be served. ``test`` is what the server itself may evaluate on, if anything."""

    experiment: Experiment
    about: KnownData
    learner: TorchLearner
    plan: Plan
    test: Records | None

    @property
    def void(self) -> str:
        """Why there is no guarantee; empty where there is one."""
        return void_of(self.plan.method, self.about)

    @property
    def streams(self) -> Streams:
        return Streams.from_seed(self.experiment.run.seed)

    def ledger(self, entries: tuple[Entry, ...] = ()) -> Ledger:
        """A ledger with the experiment's budget and what was released before."""
        return budgeted_ledger(self.experiment, self.plan, entries)


@dataclass(frozen=True)
class PreparedSilo:
    """One silo's part of an experiment. ``notes`` are for whoever holds the data and go nowhere else.

    ``holdout`` are records of people who take no part in training; None where nobody is held out.
    """

    experiment: Experiment
    about: KnownData
    learner: TorchLearner
    plan: Plan
    data: SiloData
    roster: str
    notes: tuple[str, ...] = ()
    holdout: SiloData | None = None

    @property
    def streams(self) -> Streams:
        return Streams.from_seed(self.experiment.run.seed)


def prepare_server(experiment: Experiment, *, rehearsal: bool = False) -> PreparedServer:
    """All that the server needs; no silo's data are read, unless they are a built-in data set of a rehearsal."""
    check_deployable(experiment, rehearsal=rehearsal)
    test: Records | None
    if experiment.data.dataset is not None:
        federation = load_federation(experiment)
        names = tuple(silo.name for silo in federation.silos)
        about = _known(experiment, names, federation.users, federation.task, federation.feature_shape)
        about = replace(about, name=federation.name, caveats=federation.caveats, schema=federation.schema)
        test = federation.test if len(federation.test) else None
    else:
        about, test = _tables(experiment), _test_file(experiment)
    learner = build_learner(experiment, about.feature_shape, about.task)
    slow = training_notes(learner, about.feature_shape)
    about = replace(about, caveats=(*about.caveats, *rounding(learner)), notes=(*about.notes, *slow))
    return PreparedServer(experiment, about, learner, _plan(experiment, about, learner), test)


def prepare_silo(
    experiment: Experiment,
    silo: str,
    data_file: Path | str | None = None,
    *,
    holdout_file: Path | str | None = None,
    rehearsal: bool = False,
) -> PreparedSilo:
    """All that one silo needs: its own table (``data_file``, or where the experiment says it lies) and no other.

    ``holdout_file`` is a table of people who take no part in training, instead of ``data.holdout``.
    """
    check_deployable(experiment, rehearsal=rehearsal)
    _check_holdout_file(experiment, holdout_file)
    if experiment.data.dataset is not None:
        return _built_in_silo(experiment, silo, data_file)
    from uldp.data.tables import checked_fraction, load_silo, silo_files

    data = experiment.data
    assert isinstance(data.silos, tuple) and data.user is not None
    about, index = _tables(experiment), user_index(experiment)
    _check_name(silo, about.silos)
    path = experiment.base / silo_files(data.silos)[silo] if data_file is None else Path(data_file)
    streams = Streams.from_seed(experiment.run.seed).child("data")
    fraction = checked_fraction(data.test_fraction)
    assert about.schema is not None
    named = "data.silos" if data_file is None else "--data"
    loaded = load_silo(silo, path, about.schema, index, streams, user=data.user, test_fraction=fraction, named=named)
    records, holdout = parted(loaded.data, data.holdout, Streams.from_seed(experiment.run.seed))
    notes = loaded.notes
    if holdout_file is not None:
        held = load_silo(silo, Path(holdout_file), about.schema, index, streams, user=data.user, named="--holdout")
        holdout, strangers = _untrained(held.data, records)
        notes = (*notes, *held.notes, *strangers)
    learner = build_learner(experiment, about.feature_shape, about.task)
    slow = training_notes(learner, about.feature_shape)
    plan = _plan(experiment, about, learner)
    notes = (*notes, *slow, *_cap_notes(plan, records))
    return PreparedSilo(experiment, about, learner, plan, records, index.digest(), notes, holdout)


def _check_holdout_file(experiment: Experiment, file: Path | str | None) -> None:
    if file is None:
        return
    for wrong, why in (
        (experiment.data.dataset is not None, "the data set is built in; set data.holdout instead"),
        (experiment.data.holdout, "the experiment holds people out by itself (data.holdout); leave the file out"),
        (not experiment.run.evaluate_silos, "nobody asks for it: run.evaluate_silos is false; leave the file out"),
    ):
        if wrong:
            raise ConfigError(why, place="--holdout", value=str(file))


def _untrained(held: SiloData, trained: SiloData) -> tuple[SiloData, tuple[str, ...]]:
    """The hold-out records of people of whom the table has none: nobody is measured on who is trained on here."""
    both = np.isin(held.users, trained.users)
    people = len(np.unique(held.users[both]))
    if not people:
        return held, ()
    return held.take(~both), (
        f"--holdout: {people} people (or places that ids are hashed to) have records in the table too and are left out "
        "of the hold-out",
    )


def _built_in_silo(experiment: Experiment, silo: str, data_file: Path | str | None) -> PreparedSilo:
    if data_file is not None:
        raise ConfigError(
            f"{experiment.data.dataset} is built in and dealt out by itself; leave the file out",
            place="--data",
            value=str(data_file),
        )
    federation = load_federation(experiment)
    names = tuple(part.name for part in federation.silos)
    _check_name(silo, names)
    about = _known(experiment, names, federation.users, federation.task, federation.feature_shape)
    learner = build_learner(experiment, about.feature_shape, about.task)
    slow = training_notes(learner, about.feature_shape)
    plan = _plan(experiment, about, learner)
    at = names.index(silo)
    holdout = federation.holdout[at] if federation.holdout else None
    records = federation.silos[at]
    notes = (*slow, *_cap_notes(plan, records))
    return PreparedSilo(experiment, about, learner, plan, records, federation.roster, notes, holdout)


def _cap_notes(plan: Plan, data: SiloData) -> tuple[str, ...]:
    """What the aggregation does to this silo's record counts."""
    return plan.aggregation.notes(plan.method, plan.facts, data.counts(plan.facts.users)[None])


def check_deployable(experiment: Experiment, *, rehearsal: bool = False) -> None:
    """Refuse what needs all data in one place, or what would protect nobody."""
    method, data = experiment.method, experiment.data
    aggregation = experiment.aggregation.build(experiment.run.threads)
    if method.fitted(np.ones(2, dtype=np.int64)) != method:
        raise ConfigError(
            "such a setting reads all silos' data, which nobody holds; take another", place=f"method.{method.fitted_by}"
        )
    if aggregation.shuffles:
        raise ConfigError(
            "there is no party yet that shuffles between real silos; take 'plain' (the clients perturb by themselves)",
            place="aggregation.name",
            value=experiment.aggregation.name,
        )
    if data.dataset is None and schema_of(experiment).standardise == "silo":
        raise ConfigError(
            "statistics of all silos' data are needed, which nobody holds; take 'none'",
            place="data.schema.standardise",
            value="silo",
        )
    if rehearsal and experiment.run.secrets == "simulated":
        return
    if experiment.run.secrets == "simulated":
        raise ConfigError(
            'noise and keys from the seed protect nobody; set run.secrets = "os", or say that this is a rehearsal',
            place="run.secrets",
            value="simulated",
        )
    if not aggregation.secure and not rehearsal:
        raise ConfigError(
            "such a key can be broken, and with it everybody's record counts; leave key_bits out, or rehearse",
            place="aggregation.key_bits",
            value=experiment.aggregation.key_bits,
        )
    if data.dataset is None and data.roster is None and data.id_key is None:
        raise ConfigError(
            "the silos need a key for hashing ids, which the server never gets (`openssl rand -hex 32`), or a roster",
            place="data.id_key",
        )
    if AskKey in aggregation.route(method).setup and not experiment.aggregation.identities:
        raise ConfigError(
            f"{experiment.aggregation.name} needs every silo's public key; `uldp keys` makes them",
            place="aggregation.identities",
        )


def _known(
    experiment: Experiment, silos: tuple[str, ...], users: int, task: Task, feature_shape: tuple[int, ...]
) -> KnownData:
    return KnownData(experiment.name or "tables", silos, users, task, feature_shape)


def _tables(experiment: Experiment) -> KnownData:
    """Of own tables: what follows from the schema and from |U|."""
    from uldp.data.tables import silo_files

    data, schema = experiment.data, schema_of(experiment)
    assert isinstance(data.silos, tuple)
    silos, shape = tuple(silo_files(data.silos)), (len(schema.feature_names()),)
    about = _known(experiment, silos, _number_of_users(experiment), schema.task, shape)
    key = (SIMULATED_KEY,) if data.roster is None and data.id_key is None else ()
    return replace(about, caveats=(*schema.caveats, *key), hashed=data.roster is None, schema=schema)


def _number_of_users(experiment: Experiment) -> int:
    data = experiment.data
    if data.users is not None:
        return data.users
    assert data.roster is not None
    if not (experiment.base / data.roster).exists():
        raise ConfigError(
            "the roster is not here; put it there, or write its length into data.users besides",
            place="data.roster",
            value=data.roster,
        )
    return user_index(experiment).users


def _test_file(experiment: Experiment) -> Records | None:
    """The server's own test set, if it holds one."""
    from uldp.data.tables import load_test

    test = experiment.data.test
    if test is None or not (experiment.base / test).exists():
        return None
    return load_test(experiment.base / test, schema_of(experiment))


def _plan(experiment: Experiment, about: KnownData, learner: TorchLearner) -> Plan:
    # Methods that read the totals are refused, so anything will do.
    anything = np.ones(about.users, dtype=np.int64)
    plan = agreed_plan(experiment, learner, about.silos, about.users, anything, about.feature_shape)
    if experiment.run.secrets == "os" or experiment.aggregation.identities:
        return plan
    secrets = Secrets.simulated_from_seed(experiment.run.seed)
    return plan.with_identities([signing_key(secrets, index).public for index in range(len(about.silos))])


def _check_name(silo: str, known: tuple[str, ...]) -> None:
    if silo not in known:
        raise ConfigError(
            f"this experiment has no silo {silo!r}. Its silos: {', '.join(known)}{did_you_mean(silo, known)}",
            place="--silo",
            value=silo,
        )
