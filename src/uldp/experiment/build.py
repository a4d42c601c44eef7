"""From an experiment to the objects that run it: data, learner, method with its noise, plan, statement."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from uldp.aggregation import aggregation
from uldp.data.federation import Federation, Task
from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.methods.base import Facts, Method
from uldp.privacy.accountants import Composition, Epsilon, account
from uldp.privacy.calibrate import calibrate
from uldp.privacy.events import Event
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.statement import Exposure, Statement
from uldp.rng import Secrets, Streams
from uldp.sessions.plan import Plan

if TYPE_CHECKING:
    from uldp.learners.torch import TorchLearner


SHARED_PLACES = (
    "Ids are hashed, so two people may share a place. For them the larger numbers hold, those of replaced records."
)
SIMULATED_KEY = (
    "Ids were hashed with a key from the seed: whoever knows run.seed can tell which place is whose. Give data.id_key, "
    "a file that the silos share, before real parties take part."
)


def load_federation(experiment: Experiment) -> Federation:
    """The data of an experiment."""
    data, streams = experiment.data, Streams.from_seed(experiment.run.seed)
    if data.dataset is not None:
        from uldp.data.builtin import load_builtin

        silos = data.silos if isinstance(data.silos, int) else None
        folder = None if data.data_dir is None else experiment.base / Path(data.data_dir).expanduser()
        return load_builtin(data.dataset, data.users, silos, data.allocation, streams, data_dir=folder, **data.options)
    from uldp.data.roster import HashedIds, Roster
    from uldp.data.schema import Schema
    from uldp.data.tables import load_tables

    assert isinstance(data.silos, tuple) and data.user is not None
    schema = Schema.from_dict(data.schema, label=data.label, user=data.user)
    index: Roster | HashedIds
    if data.roster is not None:
        index = Roster.from_file(experiment.base / data.roster, data.user)
    elif data.id_key is not None:
        index = HashedIds.with_key_file(data.users or 0, experiment.base / data.id_key)
    else:
        index = HashedIds.simulated(data.users or 0, Secrets.simulated_from_seed(experiment.run.seed).child("ids"))
    federation = load_tables(
        [experiment.base / file for file in data.silos],
        schema,
        index,
        streams.child("data"),
        user=data.user,
        test=None if data.test is None else experiment.base / data.test,
        test_fraction=data.test_fraction,
        name=experiment.name or "tables",
    )
    if data.roster is None and data.id_key is None:
        return replace(federation, caveats=(*federation.caveats, SIMULATED_KEY))
    return federation


def build_learner(experiment: Experiment, feature_shape: tuple[int, ...], task: Task) -> TorchLearner:
    """The model of an experiment for data of this shape, ready to be trained or applied."""
    from uldp.learners.models import build_model
    from uldp.learners.torch import TorchLearner

    run = experiment.run
    model = build_model(experiment.model.name, feature_shape, task, experiment.model.options)
    return TorchLearner(model, task, dtype=run.dtype, device=run.device, memory_mb=run.memory_mb)


def planned_events(method: Method, facts: Facts) -> Composition:
    """The composition of a whole run in which every silo takes part in every round."""
    return {method.event(facts, facts.silos): method.rounds}


def noised_method(experiment: Experiment, facts: Facts) -> Method:
    """The method with its noise: as given, or calibrated to the target epsilon."""
    privacy = experiment.privacy
    if experiment.method.unit is None:
        return experiment.method
    if privacy.noise_multiplier is not None:
        return experiment.with_noise(privacy.noise_multiplier)
    assert privacy.epsilon is not None
    sigma = calibrate(lambda noise: planned_events(experiment.with_noise(noise), facts), privacy.epsilon, privacy.delta)
    return experiment.with_noise(sigma)


@dataclass(frozen=True)
class Prepared:
    """An experiment that is ready to run."""

    experiment: Experiment
    federation: Federation
    learner: TorchLearner
    plan: Plan

    @property
    def streams(self) -> Streams:
        return Streams.from_seed(self.experiment.run.seed)

    def ledger(self, entries: tuple[Entry, ...] = ()) -> Ledger:
        """A ledger with the experiment's budget and what was released before."""
        budget = self.experiment.privacy.epsilon if self.plan.method.unit is not None else None
        return Ledger(self.experiment.privacy.delta, budget, entries)


def prepare(experiment: Experiment) -> Prepared:
    """Load the data, build the model, calibrate the noise, check all ranges. Nothing is trained or written."""
    federation = load_federation(experiment)
    if not len(federation.test):
        raise ConfigError(
            "the test set has no records; give data.test or a larger data.test_fraction", place="data.test"
        )
    learner = build_learner(experiment, federation.feature_shape, federation.task)
    federation = replace(federation, caveats=(*federation.caveats, *_rounding(learner, federation)))
    facts = Facts(federation.users, len(federation.silos), learner.dimension)
    method = noised_method(experiment, facts)
    plan = Plan(
        # The calibrated noise is part of what is agreed on: another version of an accountant may find another one.
        digest=hashlib.sha256(f"{experiment.digest()} {facts} {method.noise_multiplier!r}".encode()).hexdigest(),
        method=method,
        aggregation=aggregation(experiment.aggregation.name),
        facts=facts,
        silos=tuple(silo.name for silo in federation.silos),
    )
    return Prepared(experiment, federation, learner, plan)


def _rounding(learner: TorchLearner, federation: Federation) -> tuple[str, ...]:
    """A caveat where a user's row may change in its last bits with who else is there."""
    from uldp.learners.stable import rows_are_stable

    path = learner.path(federation.feature_shape)
    if path == "loop" or (path == "rules" and rows_are_stable()):
        return ()
    why = "the model has layers without batched rules" if path == "func" else "this machine's matrix kernels do so"
    return (
        f"Rows of users may round differently with who else is there ({why}), so the bound on the sum holds up to "
        "float rounding, not exactly.",
    )


def statement(plan: Plan, ledger: Ledger, federation: Federation, *, simulated: bool) -> Statement:
    """The statement about what the ledger holds."""
    method, facts = plan.method, plan.facts
    spent = Epsilon(math.inf, "none") if federation.void else ledger.epsilon()
    releases = len(ledger.entries)

    def faced(event: Event) -> float:
        return math.inf if federation.void else account({event: releases}, ledger.delta).value

    server_sees = "each silo's noised sum" if plan.aggregation.server_sees_each_silo else "the noised total"
    silo_sees = "the model of every round and its own share of the noise"
    if method.sample_rate < 1:
        server_sees, silo_sees = f"{server_sees} and the sample", f"{silo_sees} and the sample"
    if method.needs_counts:
        server_sees += " (and, in the clear, everybody's record counts: no epsilon covers those)"
        silo_sees += " (and, in the clear, everybody's record totals: no epsilon covers those)"
    shared: tuple[str, ...] = (
        (SHARED_PLACES,) if federation.hashed and method.unit is not None and not federation.void else ()
    )
    if method.unit is not None and ledger.delta * facts.users >= 1:
        shared += (f"delta {ledger.delta:g} is not below 1/|U|: it allows to give away a whole person.",)
    observers = (
        ("The outside world", "the model of every round", method.seen_by_world),
        ("The server", server_sees, method.seen_by_server),
        ("One silo", silo_sees, method.seen_by_silo),
    )
    rows = tuple(Exposure(who, sees, faced(seen(facts, 1.0)), faced(seen(facts, 2.0))) for who, sees, seen in observers)
    return Statement(
        unit=method.unit,
        epsilon=spent.value,
        delta=ledger.delta,
        accountant=spent.accountant,
        rounds=releases,
        simulated=simulated,
        exposures=rows if method.unit is not None else (),
        void=federation.void if method.unit is not None else "",
        first=len(federation.caveats) + len(shared),
        caveats=(*federation.caveats, *shared, *method.caveats(facts), *_common_caveats(plan, simulated)),
    )


def planned_statement(plan: Plan, delta: float, federation: Federation, *, simulated: bool) -> Statement:
    """The statement that a whole run will end with."""
    event = plan.method.event(plan.facts, plan.facts.silos)
    entries = tuple(Entry(round_, event, "planned") for round_ in range(1, plan.method.rounds + 1))
    return statement(plan, Ledger(delta, None, entries), federation, simulated=simulated)


def _common_caveats(plan: Plan, simulated: bool) -> tuple[str, ...]:
    if plan.method.unit is None:
        return ()
    lines = []
    if plan.method.noise_multiplier and simulated:
        lines.append(
            "The noise is simulated from the seed: whoever knows run.seed can take it off. "
            'Set run.secrets = "os" before a model of real data leaves the house.'
        )
    if plan.method.noise_multiplier and plan.aggregation.server_sees_each_silo and plan.facts.silos > 1:
        lines.append("Plain aggregation: the server sees each silo's noised sum, not only the total.")
    lines.append(
        "Assumed: the server and the silos follow the protocol, every silo adds its share of the noise, and they do "
        "not pool what they see."
    )
    lines.append(
        "Not covered: test metrics (computed on the test records without noise) and times, choices made after looking "
        "at them, a silo's refusal to start, and further runs on the same data, which add up."
    )
    return tuple(lines)
