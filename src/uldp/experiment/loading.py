"""From an experiment to the data of one party: all silos of a simulation, none for a server, one for a silo.

Every party holds a :class:`~uldp.data.federation.Federation` of all silos; those whose records are not here are empty.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uldp.caveats import Caveat, Severity
from uldp.data.federation import Federation, LabelArray, Records, SiloData
from uldp.data.holdout import split_holdout, with_holdout
from uldp.errors import ConfigError, did_you_mean
from uldp.experiment.config import Experiment
from uldp.rng import Secrets, Streams

if TYPE_CHECKING:
    from uldp.data.roster import UserIndex
    from uldp.data.schema import Schema

SIMULATED_KEY = Caveat(
    "simulated-id-key",
    "Ids were hashed with a key from the seed: whoever knows run.seed can tell which bucket is whose. Give "
    "data.id_key, a file that the silos share, before real parties take part.",
    Severity.WEAKENS,
)


def load_federation(experiment: Experiment) -> Federation:
    """The data of all silos, with ``data.holdout`` of the people held out."""
    streams = Streams.from_seed(experiment.run.seed)
    return with_holdout(_all_people(experiment), experiment.data.holdout, streams)


def _all_people(experiment: Experiment) -> Federation:
    data, streams = experiment.data, Streams.from_seed(experiment.run.seed)
    if data.given is not None:
        reason = "the data were handed over in Python and are in no file; call uldp.train with them again"
        raise ConfigError(reason, location="data.given", value=data.given)
    if data.dataset is not None:
        if not experiment.trains_model:
            reason = "built-in data sets come as features; descriptions and coefficients need tables with a schema"
            raise ConfigError(reason, location="data.dataset", value=data.dataset)
        from uldp.data.builtin import load_builtin
        from uldp.data.store import expand_home

        silos = data.silos if isinstance(data.silos, int) else None
        folder = None if data.data_dir is None else experiment.base / expand_home(data.data_dir, "data.data_dir")
        return load_builtin(data.dataset, data.users, silos, data.allocation, streams, folder, data.options)
    from uldp.data.tables import load_tables

    assert isinstance(data.silos, tuple) and data.user is not None
    federation = load_tables(
        [experiment.base / file for file in data.silos],
        schema_of(experiment),
        user_index(experiment),
        streams.child("data"),
        user=data.user,
        test=None if data.test is None else experiment.base / data.test,
        test_fraction=data.test_fraction,
        name=experiment.name or "tables",
    )
    caveats = (*federation.caveats, *_key_caveats(experiment))
    return _without_test(experiment, replace(federation, caveats=caveats))


def _without_test(experiment: Experiment, federation: Federation) -> Federation:
    """Without test records, where no model is trained: nothing is released about people who are held out."""
    if experiment.trains_model:
        return federation
    return replace(federation, test=federation.test.take(np.zeros(0, dtype=np.int64)))


def _key_caveats(experiment: Experiment) -> tuple[Caveat, ...]:
    return (SIMULATED_KEY,) if experiment.data.roster is None and experiment.data.id_key is None else ()


def schema_of(experiment: Experiment) -> Schema:
    """How this experiment's tables become numbers."""
    from uldp.data.schema import Schema
    from uldp.data.tallies import tally_schema

    schema = Schema.from_dict(experiment.data.schema, label=experiment.data.label, user=experiment.data.user)
    return tally_schema(schema, experiment.described_bins) if experiment.described_bins else schema


def user_index(experiment: Experiment) -> UserIndex:
    """How ids become users, for a party that holds the roster or the key."""
    from uldp.data.roster import HashedIds, Roster

    data, rules = experiment.data, experiment.data.id_rules
    reader = partial(rules.reader, base=experiment.base)
    if data.roster is not None:
        rule = rules.apply if rules.links is None else str  # the persons of links are on the roster as they are
        roster = Roster.from_file(experiment.base / data.roster, data.user, rule, reader)
        if data.users not in (None, roster.users):
            reason = f"the roster has {roster.users} ids, not {data.users}; correct one of them"
            raise ConfigError(reason, location="data.users", value=data.users)
        return roster
    if data.id_key is not None:
        return HashedIds.with_key_file(data.users or 0, experiment.base / data.id_key, reader)
    return HashedIds.from_secrets(
        data.users or 0, Secrets.simulated_from_seed(experiment.run.seed).child("ids"), reader
    )


def server_federation(experiment: Experiment) -> Federation:
    """What the server holds: nobody's records, and a test set if there is one."""
    if experiment.data.dataset is not None:
        return without_records(load_federation(experiment))
    from uldp.data.tables import load_test

    known, test = _known_tables(experiment), experiment.data.test
    if not experiment.trains_model or test is None or not (experiment.base / test).exists():
        return known
    return replace(known, test=load_test(experiment.base / test, schema_of(experiment)))


def silo_federation(
    experiment: Experiment, silo: str, data_file: Path | str | None, holdout_file: Path | str | None
) -> Federation:
    """What one silo holds: its own table (``data_file``, or where the experiment says it lies) and no other.

    ``holdout_file`` is a table of people who take no part in training, instead of ``data.holdout``.
    """
    _check_holdout_file(experiment, holdout_file)
    own_tables = experiment.data.dataset is None
    if data_file is not None and not own_tables:
        reason = f"{experiment.data.dataset} is built in and dealt out by itself; leave the file out"
        raise ConfigError(reason, location="--data", value=str(data_file))
    federation = _known_tables(experiment) if own_tables else load_federation(experiment)
    names = [part.name for part in federation.silos]
    if silo not in names:
        reason = f"this experiment has no silo {silo!r}. Its silos: {', '.join(names)}{did_you_mean(silo, names)}"
        raise ConfigError(reason, location="--silo", value=silo)
    if own_tables:
        return _with_own_table(experiment, federation, silo, data_file, holdout_file)
    return without_records(federation, but=silo)


def without_records(federation: Federation, but: str = "") -> Federation:
    """The same silos, empty, except for the one called ``but``."""
    nothing = np.zeros(0, dtype=np.int64)
    silos = tuple(silo if silo.name == but else silo.take(nothing) for silo in federation.silos)
    holdout = tuple(part if part.name == but else part.take(nothing) for part in federation.holdout)
    return replace(federation, silos=silos, holdout=holdout, people=None)


def _known_tables(experiment: Experiment) -> Federation:
    """Of own tables: what follows from the schema and from |U|."""
    from uldp.data.schema import check_silos, feature_shape, why_no_guarantee
    from uldp.data.tables import silo_files

    data, schema = experiment.data, schema_of(experiment)
    assert isinstance(data.silos, tuple)
    check_silos(schema, silo_files(data.silos))
    features = np.zeros((0, *feature_shape(schema)), dtype=np.float32)
    labels: LabelArray = np.zeros(0, dtype=np.int64) if schema.label.task.classes else np.zeros(0, dtype=np.float32)
    nobody = np.zeros(0, dtype=np.int64)
    return Federation(
        name=experiment.name or "tables",
        silos=tuple(SiloData(name, features, labels, nobody) for name in silo_files(data.silos)),
        users=_number_of_users(experiment),
        task=schema.label.task,
        test=Records(features, labels),
        caveats=(*schema.caveats, *_key_caveats(experiment)),
        no_guarantee=why_no_guarantee(schema),
        hashed_ids=data.roster is None,
        schema=schema,
    )


def _with_own_table(
    experiment: Experiment, known: Federation, silo: str, file: Path | str | None, holdout_file: Path | str | None
) -> Federation:
    from uldp.data.tables import checked_fraction, load_silo, silo_files

    data, index, schema = experiment.data, user_index(experiment), known.schema
    assert isinstance(data.silos, tuple) and data.user is not None and schema is not None
    path = experiment.base / str(silo_files(data.silos)[silo]) if file is None else Path(file)
    streams = Streams.from_seed(experiment.run.seed).child("data")
    fraction, named = checked_fraction(data.test_fraction), "data.silos" if file is None else "--data"
    loaded = load_silo(silo, path, schema, index, streams, user=data.user, test_fraction=fraction, named=named)
    records, holdout = split_holdout(loaded.data, data.holdout, Streams.from_seed(experiment.run.seed))
    notes = loaded.notes
    if holdout_file is not None:
        held = load_silo(silo, Path(holdout_file), schema, index, streams, user=data.user, named="--holdout")
        holdout, strangers = _exclude_trained(held.data, records)
        notes = (*notes, *held.notes, *strangers)
    return replace(
        known,
        silos=tuple(records if part.name == silo else part for part in known.silos),
        holdout=() if holdout is None else tuple(holdout if part.name == silo else part for part in known.silos),
        notes=notes,
        roster=index.digest(),
    )


def _check_holdout_file(experiment: Experiment, file: Path | str | None) -> None:
    if file is None:
        return
    for wrong, why in (
        (experiment.data.dataset is not None, "the data set is built in; set data.holdout instead"),
        (experiment.data.holdout, "the experiment holds people out by itself (data.holdout); leave the file out"),
        (not experiment.run.evaluate_silos, "nobody asks for it: run.evaluate_silos is false; leave the file out"),
    ):
        if wrong:
            raise ConfigError(why, location="--holdout", value=str(file))


def _exclude_trained(held: SiloData, trained: SiloData) -> tuple[SiloData, tuple[str, ...]]:
    """The hold-out records of people of whom the table has none: nobody is measured on who is trained on here."""
    both = np.isin(held.users, trained.users)
    people = len(np.unique(held.users[both]))
    if not people:
        return held, ()
    return held.take(~both), (
        f"--holdout: {people} people (or buckets that ids are hashed to) have records in the table too and are left "
        "out of the hold-out",
    )


def _number_of_users(experiment: Experiment) -> int:
    data = experiment.data
    if data.users is not None:
        return data.users
    assert data.roster is not None
    if not (experiment.base / data.roster).exists():
        reason = "the roster is not here; put it there, or write its length into data.users besides"
        raise ConfigError(reason, location="data.roster", value=data.roster)
    return user_index(experiment).users
