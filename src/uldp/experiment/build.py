"""From an experiment to the objects that run it: data, learner, method with its noise, plan, statement."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from uldp.data.federation import Federation, IntArray, Records, Task
from uldp.data.holdout import with_holdout
from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.learners.base import Learner
from uldp.limits import MAX_PAIRED_SILOS, MAX_UPDATES
from uldp.methods.base import Facts, Method, Observer
from uldp.privacy.accountants import Composition, Epsilon, account, account_replaced
from uldp.privacy.calibrate import calibrate
from uldp.privacy.events import Event, LocalReports
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.shuffle import shuffled_run
from uldp.privacy.statement import Exposure, Statement
from uldp.protocol.messages import AskKey, pack
from uldp.rng import Secrets, Streams
from uldp.sessions.holdout import LEAST_PEOPLE
from uldp.sessions.plan import Plan

if TYPE_CHECKING:
    from uldp.data.roster import UserIndex
    from uldp.data.schema import Schema
    from uldp.learners.torch import TorchLearner


GREETING_INPUTS: Final = 4
GREETING_OUTPUTS: Final = 256
"""Of a model with many classes so many of its first answers are compared."""
SHARED_PLACES = (
    "Ids are hashed, so two people may share a place. For them the larger numbers hold, those of replaced records."
)
SIMULATED_KEY = (
    "Ids were hashed with a key from the seed: whoever knows run.seed can tell which place is whose. Give data.id_key, "
    "a file that the silos share, before real parties take part."
)


def load_federation(experiment: Experiment) -> Federation:
    """The data of an experiment, with ``data.holdout`` of its people kept out of training."""
    streams = Streams.from_seed(experiment.run.seed)
    return with_holdout(_all_people(experiment), experiment.data.holdout, streams)


def _all_people(experiment: Experiment) -> Federation:
    data, streams = experiment.data, Streams.from_seed(experiment.run.seed)
    if data.dataset is not None:
        from uldp.data.builtin import load_builtin
        from uldp.data.store import expanded

        silos = data.silos if isinstance(data.silos, int) else None
        folder = None if data.data_dir is None else experiment.base / expanded(data.data_dir, "data.data_dir")
        return load_builtin(data.dataset, data.users, silos, data.allocation, streams, folder, data.options)
    from uldp.data.tables import load_tables

    assert isinstance(data.silos, tuple) and data.user is not None
    schema, index = schema_of(experiment), user_index(experiment)
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


def schema_of(experiment: Experiment) -> Schema:
    """How this experiment's tables become numbers."""
    from uldp.data.schema import Schema

    return Schema.from_dict(experiment.data.schema, label=experiment.data.label, user=experiment.data.user)


def user_index(experiment: Experiment) -> UserIndex:
    """How ids become users, for a party that holds the roster or the key."""
    from uldp.data.roster import HashedIds, Roster

    data = experiment.data
    if data.roster is not None:
        roster = Roster.from_file(experiment.base / data.roster, data.user)
        if data.users not in (None, roster.users):
            raise ConfigError(
                f"the roster has {roster.users} ids, not {data.users}; correct one of them",
                place="data.users",
                value=data.users,
            )
        return roster
    if data.id_key is not None:
        return HashedIds.with_key_file(data.users or 0, experiment.base / data.id_key)
    return HashedIds.simulated(data.users or 0, Secrets.simulated_from_seed(experiment.run.seed).child("ids"))


def build_learner(experiment: Experiment, feature_shape: tuple[int, ...], task: Task) -> TorchLearner:
    """The model of an experiment for data of this shape, ready to be trained or applied."""
    from uldp.learners.models import build_model
    from uldp.learners.torch import TorchLearner

    run = experiment.run
    model = build_model(experiment.model.name, feature_shape, task, experiment.model.options)
    return TorchLearner(model, task, dtype=run.dtype, device=run.device, memory_mb=run.memory_mb)


def planned_events(method: Method, facts: Facts) -> Composition:
    """The composition of a whole run in which every silo takes part in every round, but those compensated for."""
    return {method.event(facts, facts.silos - method.compensate): method.rounds}


def noised_method(experiment: Experiment, totals: IntArray, facts: Facts) -> Method:
    """The method with its noise: as given, or calibrated to the target epsilon."""
    privacy = experiment.privacy
    if experiment.method.local_noise and privacy.epsilon is not None:
        one_round = account({experiment.method.event(facts, facts.silos): 1}, privacy.delta).value
        if one_round > privacy.epsilon:
            raise ConfigError(
                f"one round costs epsilon {one_round:.4g} locally, the budget is {privacy.epsilon:g}; leave it out "
                "(--set privacy.epsilon=none), or lower method.epsilon_weight",
                place="privacy.epsilon",
                value=privacy.epsilon,
            )
    if experiment.method.unit is None or experiment.method.local_noise:
        return experiment.method
    if experiment.run.secrets == "os" and experiment.method.fitted(totals) != experiment.method:
        raise ConfigError(
            f"{getattr(experiment.method, experiment.method.fitted_by)!r} reads the data, which nothing hides, and "
            "run.secrets = 'os' is for models that leave the house; take another value",
            place=f"method.{experiment.method.fitted_by}",
            value=getattr(experiment.method, experiment.method.fitted_by),
        )
    if experiment.method.claims:
        assert privacy.epsilon is not None
        return experiment.method.claiming(privacy.epsilon, privacy.delta, facts).fitted(totals)

    def noised(noise_multiplier: float) -> Method:
        return experiment.with_noise(noise_multiplier).fitted(totals)

    if privacy.noise_multiplier is not None:
        return noised(privacy.noise_multiplier)
    assert privacy.epsilon is not None
    sigma = calibrate(lambda noise: planned_events(noised(noise), facts), privacy.epsilon, privacy.delta)
    try:
        noised(sigma).check(facts)
    except ConfigError as error:
        if error.place != "privacy.noise_multiplier":
            raise
        raise ConfigError(
            f"epsilon {privacy.epsilon:g} needs noise multiplier {sigma:g}, which cannot be drawn; take a "
            f"{'larger' if sigma > 1 else 'smaller'} epsilon or {'fewer' if sigma > 1 else 'more'} rounds",
            place="privacy.epsilon",
            value=privacy.epsilon,
        ) from error
    return noised(sigma)


class Described(Protocol):
    """What a statement and a run directory say about the data; nobody's records are needed for it."""

    @property
    def name(self) -> str: ...
    @property
    def feature_shape(self) -> tuple[int, ...]: ...
    @property
    def caveats(self) -> tuple[str, ...]: ...
    @property
    def void(self) -> str: ...
    @property
    def hashed(self) -> bool: ...
    @property
    def schema(self) -> Schema | None: ...


@dataclass(frozen=True)
class Prepared:
    """An experiment that is ready to run."""

    experiment: Experiment
    federation: Federation
    learner: TorchLearner
    plan: Plan

    @property
    def void(self) -> str:
        """Why there is no guarantee, because of the data or of the method; empty where there is one."""
        return void_of(self.plan.method, self.federation)

    @property
    def streams(self) -> Streams:
        return Streams.from_seed(self.experiment.run.seed)

    @property
    def about(self) -> Federation:
        return self.federation

    @property
    def test(self) -> Records:
        return self.federation.test

    def ledger(self, entries: tuple[Entry, ...] = ()) -> Ledger:
        """A ledger with the experiment's budget and what was released before."""
        return budgeted_ledger(self.experiment, self.plan, entries)


def budgeted_ledger(experiment: Experiment, plan: Plan, entries: tuple[Entry, ...]) -> Ledger:
    """A ledger with the experiment's budget and what was released before."""
    budget = experiment.privacy.epsilon if plan.method.unit is not None and not plan.method.void else None
    return Ledger(experiment.privacy.delta, budget, entries)


def prepare(experiment: Experiment) -> Prepared:
    """Load the data, build the model, calibrate the noise, check all ranges. Nothing is trained or written."""
    federation = load_federation(experiment)
    if not len(federation.test):
        raise ConfigError(
            "the test set has no records; give data.test or a larger data.test_fraction", place="data.test"
        )
    if experiment.run.evaluate_silos and not experiment.data.holdout:
        raise ConfigError(
            "nobody is held out, and in a simulation no silo brings a file of its own; set data.holdout, for instance "
            "to 0.2",
            place="run.evaluate_silos",
        )
    learner = build_learner(experiment, federation.feature_shape, federation.task)
    federation = replace(
        federation,
        caveats=(*federation.caveats, *rounding(learner)),
        notes=(*federation.notes, *training_notes(learner, federation.feature_shape)),
    )
    counts = federation.counts()
    silos = tuple(silo.name for silo in federation.silos)
    shape = federation.feature_shape
    plan = agreed_plan(experiment, learner, silos, federation.users, counts.sum(axis=0), shape)
    plan.method.check_counts(plan.facts, counts)
    capped = plan.aggregation.notes(plan.method, plan.facts, counts)
    federation = replace(federation, notes=(*federation.notes, *plan.method.notes(plan.facts, counts), *capped))
    return Prepared(experiment, federation, learner, plan)


def agreed_plan(
    experiment: Experiment,
    learner: TorchLearner,
    silos: tuple[str, ...],
    users: int,
    totals: IntArray,
    feature_shape: tuple[int, ...],
) -> Plan:
    """What all parties of an experiment agree on. ``totals`` matter to methods that read the data only."""
    aggregation = experiment.aggregation.build(experiment.run.threads)
    facts = Facts(users, len(silos), learner.dimension, aggregation.dither)
    _check_products(facts, paired=AskKey in aggregation.route(experiment.method).setup)
    method = noised_method(experiment, totals, facts).for_model(learner.layer_sizes)
    if experiment.run.evaluate_silos and not learner.measures:
        raise ConfigError(
            "the loss of survival times couples records, so sums of silos are no metric of all; leave it out",
            place="run.evaluate_silos",
        )
    return Plan(
        # The calibrated noise is part of what is agreed on: another version of an accountant may find another one. And
        # so are the model's tensors: somebody's own model may be another one elsewhere. And an aggregation's defaults.
        digest=hashlib.sha256(
            f"{experiment.digest()} {facts} {method!r} {aggregation!r} {learner.layer_sizes}".encode()
        ).hexdigest(),
        method=method,
        aggregation=aggregation,
        facts=facts,
        silos=silos,
        identities=_identities(experiment, silos),
        min_silos=experiment.aggregation.min_silos or 0,
        layers=learner.architecture,
        outputs=first_outputs(learner, feature_shape, Streams.from_seed(experiment.run.seed)),
        measures=learner.measures if experiment.run.evaluate_silos else (),
    )


def _check_products(facts: Facts, *, paired: bool) -> None:
    """Refuse more numbers than a server could take in a round, and more keys than silos could agree on."""
    if paired and facts.silos > MAX_PAIRED_SILOS:
        raise ConfigError(
            f"at most {MAX_PAIRED_SILOS:,} where every two silos agree on a key, not {facts.silos:,}; take "
            "aggregation.name = 'plain'",
            place="data.silos",
            value=facts.silos,
        )
    if facts.dimension * facts.silos > MAX_UPDATES:
        most = MAX_UPDATES // facts.silos
        raise ConfigError(
            f"at most {most:,} parameters with {facts.silos:,} silos, not {facts.dimension:,}",
            place="model",
            value=facts.dimension,
        )


def first_outputs(learner: Learner, feature_shape: tuple[int, ...], streams: Streams) -> bytes:
    """What the model answers to public inputs before any training: it tells x_0 and what the layers compute."""
    inputs = streams.child("greeting").generator().uniform(-1, 1, (GREETING_INPUTS, *feature_shape))
    answers = learner.predict(learner.initial(streams.child("model")), inputs.astype(np.float32))
    return pack(answers.astype(np.float64).ravel()[:GREETING_OUTPUTS])


def _identities(experiment: Experiment, silos: tuple[str, ...]) -> tuple[bytes, ...]:
    """The silos' public keys as they stand in the experiment; none where a simulation makes them."""
    given = experiment.aggregation.identities
    if given and set(given) != set(silos):
        odd = sorted(set(given) ^ set(silos))[0]
        raise ConfigError(
            f"one key for each silo ({', '.join(silos)}) and no other", place=f"aggregation.identities.{odd}", value=odd
        )
    return tuple(bytes.fromhex(given[silo]) for silo in silos) if given else ()


def rounding(learner: TorchLearner) -> tuple[str, ...]:
    """A caveat where a user's row may change in its last bits."""
    return (learner.caveat,) if learner.caveat else ()


def training_notes(learner: TorchLearner, feature_shape: tuple[int, ...]) -> tuple[str, ...]:
    """Why training is slow, if it is: a note of the experiment instead of a warning of Python's."""
    from uldp.learners.torch import SlowTrainingWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowTrainingWarning)
        slow = learner.slow_because(feature_shape)
    return (slow,) if slow else ()


def void_of(method: Method, federation: Described) -> str:
    """Why there is no guarantee; empty where there is one, and where nobody says so."""
    return (federation.void or method.void) if method.unit is not None else ""


def statement(
    plan: Plan,
    ledger: Ledger,
    federation: Described,
    *,
    simulated: bool,
    together: bool = True,
    heard: Sequence[int] = (),
) -> Statement:
    """The statement about what the ledger holds.

    ``together`` says that all parties ran in one place; ``heard`` how many silos took part in each round, all of them
    where it says nothing.
    """
    method, facts = plan.method, plan.facts
    void = void_of(method, federation)
    spent = Epsilon(math.inf, "none") if void else ledger.epsilon()
    rounds = Counter(entry.round for entry in ledger.entries)
    releases = list(rounds.values())
    missing = [facts.silos - heard[round_ - 1] if round_ <= len(heard) else 0 for round_ in rounds]
    shared: tuple[str, ...] = (SHARED_PLACES,) if federation.hashed and method.unit == "user" and not void else ()
    if method.unit == "user" and ledger.delta * facts.users >= 1:
        shared += (f"delta {ledger.delta:g} is not below 1/|U|: it allows to give away a whole person.",)
    shared += method.assumptions(facts) + measured_people(plan)
    groups = tuple(
        (size, account({event: sum(releases)}, ledger.delta).value) for size, event in method.per_person(facts).items()
    )
    exposures = exposures_of(plan, ledger, releases, missing) if method.unit is not None and not void else ()
    common = (*_parties(plan, missing, together=together), *_common_caveats(plan, simulated, together))
    return Statement(
        unit=method.unit,
        epsilon=spent.value,
        delta=ledger.delta,
        accountant=spent.accountant,
        rounds=len(releases),
        simulated=simulated,
        exposures=exposures,
        groups=() if void else groups,
        void=void,
        first=len(federation.caveats) + len(shared),
        caveats=(*federation.caveats, *shared, *method.caveats(facts), *common),
        corrections=method.corrections(),
    )


def measured_people(plan: Plan) -> tuple[str, ...]:
    """What must be said where silos measure the model on people whom they hold out."""
    if not plan.measures:
        return ()
    server = "each silo's sums" if plan.aggregation.server_sees_each_silo else "the totals over all silos (under masks)"
    return (
        "Metrics of hold-out people are outside the guarantee: sums of their losses and hits (or errors) and the "
        f"number of their records, without noise, at the last model. The server sees {server}, the world the means and "
        "the number of records, and a silo can take its own part off. They are asked for once in a run; a silo that "
        f"holds out fewer than {LEAST_PEOPLE} people counts none of them, and if one does not tell, none is counted. "
        "Hold-out people take no part in training (where a silo brings a file of its own: in that silo). Two runs "
        "whose hold-outs differ by one person show that person's loss.",
    )


def exposures_of(
    plan: Plan, ledger: Ledger, releases: Sequence[int], missing: Sequence[int] = ()
) -> tuple[Exposure, ...]:
    """Who faces which epsilon after rounds with so many releases each, and so many silos missing."""
    method, facts, aggregation = plan.method, plan.facts, plan.aggregation
    if method.local_noise:
        return _local_exposures(plan, ledger, sum(releases))
    each = f"each silo's noised {'sum' if method.shared_noise else 'model'} (plain aggregation)"
    server_sees = each if aggregation.server_sees_each_silo else f"the noised total ({aggregation.name} aggregation)"
    silo_sees = "the model of every round" + (" and its own share of the noise" if method.shared_noise else "")
    several_see = "the same, and each other's shares"
    if any(missing) and not aggregation.server_sees_each_silo:
        server_sees += " and, of rounds that were repeated without a silo, at worst each silo's noised sum"
    if plan.server_samples:
        server_sees = f"{server_sees} and the sample"
    if plan.tells_sample:
        silo_sees = f"{silo_sees} and the sample"
    if plan.shows_counts:
        server_sees += f"; and, in the clear, {method.tells['server']}, which no epsilon covers"
        silo_sees += f"; and, in the clear, {method.tells['silo']}, which no epsilon covers"
    silos_view = Observer("silos", sample=not (aggregation.hides_sample and aggregation.secure))
    servers_view = Observer("server", sums=aggregation.server_sees_each_silo, sample=plan.server_samples)
    observers = [
        ("the outside world", "the model of every round", Observer()),
        ("the server", server_sees, servers_view),
        ("one silo", silo_sees, silos_view),
    ]
    if facts.silos > 2 and method.shared_noise:
        observers.append(("two silos together", several_see, replace(silos_view, colluding=2)))
    if facts.silos > 1 and method.shared_noise:
        one_silent = ("the outside world, one silo silent", "the model of every round", Observer(dropped=1))
        observers.append(one_silent)
    rows = []
    for who, sees, observer in observers:
        as_the_world = not any(missing) and method.seen_by(facts, observer) == method.event(facts, facts.silos)
        as_the_world = as_the_world or observer == Observer()
        seen = ledger.composition() if as_the_world else _seen(plan, observer, releases, missing)
        found = account(seen, ledger.delta).value
        replaced = found if method.covers_replacement else account_replaced(seen, ledger.delta).value
        rows.append(Exposure(who, sees, found, replaced, plan.shows_counts and observer.who != "world"))
    return tuple(rows)


def _seen(plan: Plan, observer: Observer, releases: Sequence[int], missing: Sequence[int]) -> Composition:
    """What an observer sees of rounds with so many releases each, and so many silos missing.

    The server may have got an answer of a first attempt that came too late. Both attempts together then tell it the
    noised sum of whoever was left out: no more than each silo's noised sum does.
    """
    seen: Counter[Event] = Counter()
    absent = [*missing, *[0] * (len(releases) - len(missing))]
    for number in sorted(set(absent)):
        view = replace(observer, dropped=observer.dropped + number)
        if number and observer.who == "server":
            view = replace(view, sums=True)
        part = [count for count, gone in zip(releases, absent, strict=True) if gone == number]
        seen.update(plan.method.seen_over(plan.facts, view, part))
    return seen


def _parties(plan: Plan, missing: Sequence[int], *, together: bool) -> list[str]:
    """What follows from silos that may leave a round, or did."""
    lines = []
    if any(missing):
        rounds = sum(number > 0 for number in missing)
        lines.append(
            f"Silos were missing in {rounds} of {len(missing)} rounds, and their noise with them; the numbers count it."
        )
    if not together and plan.may_repeat and not plan.aggregation.server_sees_each_silo:
        lines.append(
            "A round may be repeated without silos that do not answer. A server that lies about who is missing learns "
            f"single silos' noised sums, as under plain; that {plan.least_silos} of {plan.facts.silos} silos must stay "
            "(aggregation.min_silos) bounds whom it can leave out, no more."
        )
    return lines


def _local_exposures(plan: Plan, ledger: Ledger, releases: int) -> tuple[Exposure, ...]:
    """Whoever sees single values, and, behind a shuffler, the server."""
    found = ledger.epsilon().value
    rows = [Exposure("anybody, the server included", "every client's perturbed values", found, found)]
    if plan.aggregation.shuffles and releases:
        method, facts = plan.method, plan.facts
        event = method.event(facts, facts.silos)
        assert isinstance(event, LocalReports)
        mixed = shuffled_run(
            event.epsilon, method.silos_per_round(facts), event.count, releases, ledger.delta, extremal=method.extremal
        ).per_run
        rows = [
            Exposure("the shuffler", "every client's perturbed values", found, found),
            Exposure("the server", "the clients' perturbed values, mixed", mixed, mixed),
        ]
    return tuple(rows)


def planned_statement(plan: Plan, delta: float, federation: Described, *, simulated: bool) -> Statement:
    """The statement that a whole run will end with."""
    event = plan.method.event(plan.facts, plan.facts.silos)
    entries = tuple(Entry(round_, event, "planned") for round_ in range(1, plan.method.rounds + 1))
    return statement(plan, Ledger(delta, None, entries), federation, simulated=simulated)


def _sampling_and_counts(plan: Plan) -> list[str]:
    method, lines = plan.method, []
    if plan.shows_counts:
        lines.append(
            "Record counts are exchanged in the clear: towards the server and the silos this method keeps no "
            "user-level promise about presence."
            + (' aggregation.name = "paillier" hides them.' if method.user_weighting is not None else "")
        )
    if method.sample_rate < 1 and method.unit == "user":
        who = "The server and the silos know" if plan.tells_sample else "The server (but no silo) knows"
        if not plan.server_samples:
            chosen, slots = method.sampling_slots
            nor_silos = " nor a silo" if plan.aggregation.secure else ""
            lines.append(
                f"Users are sampled by oblivious transfer, with probability {chosen}/{slots}: "
                f"{'neither ' if nor_silos else 'not even '}the server{nor_silos} knows who was. Besides the totals "
                "they see how long things take, and whether somebody refuses. The server and a silo that pool know "
                "the sample."
            )
            return lines
        limit = (
            f"; but nobody takes part in more than {method.participation_limit} rounds (method.max_participations)"
            if method.participation_limit
            else " (method.max_participations would bound it)"
        )
        lines.append(f"{who} which users were sampled, so sub-sampling does not lower epsilon towards them{limit}.")
    return lines


def _common_caveats(plan: Plan, simulated: bool, together: bool) -> tuple[str, ...]:
    if plan.method.unit is None:
        return ()
    lines = []
    if (plan.method.noise_multiplier or plan.method.local_noise) and simulated:
        lines.append(
            "The noise is simulated from the seed: whoever knows run.seed can take it off. "
            'Set run.secrets = "os" before a model trained on real data is released.'
        )
    lines += _sampling_and_counts(plan)
    lines += plan.aggregation.caveats(plan.method, plan.facts)
    if together and (not plan.aggregation.server_sees_each_silo or plan.aggregation.shuffles):
        lines.append(
            "All parties ran in one place, which made the silos' keys"
            + (" from the seed" if simulated else "")
            + ": what is said of the server and of single silos holds where each of them runs on its own."
        )
    if plan.method.local_noise and plan.aggregation.shuffles:
        lines.append(
            "Assumed for the local numbers: the client itself perturbs as it should. The server's number also assumes "
            "that the shuffler mixes honestly, and that the other clients of the round perturb as they should and tell "
            "the server nothing: those who do not, do not count as clients."
        )
    elif plan.method.void:
        pass
    elif plan.method.local_noise:
        lines.append("Assumed: the client itself perturbs as it should. Nobody else need be trusted.")
    else:
        noise = "adds its share of the noise" if plan.method.shared_noise else "adds its noise"
        lines.append(
            f"Assumed: the server and the silos follow the protocol, every silo {noise}, and the server and silos do "
            "not pool what they see."
        )
    lines.append(
        "Not covered: test metrics (computed on the test records without noise) and times, choices made after looking "
        "at them, a silo's refusal to start, and further runs on the same data, which add up."
    )
    return tuple(lines)
