"""From an experiment to the objects that run it: data, learner, method with its noise, plan."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, get_args

import numpy as np

from uldp.aggregation import AGGREGATIONS
from uldp.aggregation.base import Aggregation
from uldp.aggregation.lattice import automatic, automatic_misfit
from uldp.caveats import Caveat, Severity
from uldp.data.federation import Federation, IntArray, Records, SiloData, Task
from uldp.data.schema import category_columns, code_columns, feature_norm
from uldp.errors import ConfigError, format_value
from uldp.experiment.config import AUTO, GIVEN, Experiment
from uldp.experiment.foreign import code_digests, qualified_name, third_party_names
from uldp.experiment.loading import load_federation
from uldp.experiment.noise import method_with_noise
from uldp.experiment.outlook import automatic_model
from uldp.learners.base import Learner, PlannedLearner
from uldp.learners.prior import Prior
from uldp.learners.tally import TallyLearner
from uldp.limits import MAX_PAIRED_SILOS, MAX_UPDATES
from uldp.methods.base import Method
from uldp.methods.newton import NewtonSteps
from uldp.methods.registry import is_builtin, rebuild_method
from uldp.plugins import is_one_of
from uldp.privacy.events import Event
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import BUILTIN_RELEASES, PublicFacts, rebuild_release
from uldp.privacy.statement import Background, Statement, compose
from uldp.protocol.messages import pack
from uldp.rng import Streams
from uldp.sessions.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from uldp.learners.torch import TorchLearner

    OwnModel = nn.Module | Callable[[tuple[int, ...], Task], nn.Module]
    """A module that is in memory, or a factory."""

HANDSHAKE_INPUTS: Final = 4
HANDSHAKE_OUTPUTS: Final = 256
"""Of a model with many classes only this many of its first outputs are compared."""


INITIAL_PARAMETERS: Final = Caveat(
    "initial-parameters",
    "Training began with the parameters that the model came with; the guarantee assumes that they do not depend on "
    "these people's records.",
    Severity.LIMITS,
)
STARTING_MODEL: Final = Caveat(
    "starting-model",
    "The steps begin at the parameters of a trained model. What these reveal is in the statement of that model's "
    "training, not in this one; `uldp total` adds both up.",
    Severity.LIMITS,
)


@dataclass(frozen=True)
class PreparedExperiment:
    """An experiment that is ready to run at one party: in a simulation with all silos' data, at a server with none.

    Args:
        experiment: The settings.
        federation: All silos; those whose records this party does not hold are empty.
        learner: The model, ready to be trained or applied.
        plan: What all parties agree on.
        silo: The name of the party, where it is a silo.

    Example:
        >>> experiment = Experiment.from_tree({
        ...     "data": {"dataset": "synthetic", "users": 20, "options": {"records": 200}},
        ...     "method": {"name": "uldp-avg", "rounds": 2}, "privacy": {"noise_multiplier": 5.0}})
        >>> prepared = prepare(experiment)
        >>> prepared.plan.facts.users, round(prepared.planned_statement().epsilon, 2)
        (20, 1.06)
    """

    experiment: Experiment
    federation: Federation
    learner: PlannedLearner
    plan: Plan
    silo: str = ""

    @property
    def no_guarantee(self) -> str:
        """Why the data allow no guarantee; empty where they do."""
        return self.federation.no_guarantee if self.plan.release.privacy_unit is not None else ""

    @property
    def streams(self) -> Streams:
        return Streams.from_seed(self.experiment.run.seed)

    @property
    def test(self) -> Records | None:
        """The test records of this party, if it has any."""
        return self.federation.test if len(self.federation.test) else None

    def data(self, silo: str) -> SiloData:
        """The records of one silo.

        Args:
            silo: Its name.
        """
        return self.federation.silos[self.plan.silos.index(silo)]

    def holdout(self, silo: str) -> SiloData | None:
        """A silo's records of held-out people; None where nobody is held out.

        Args:
            silo: Its name.
        """
        return self.federation.holdout[self.plan.silos.index(silo)] if self.federation.holdout else None

    def ledger(self, entries: tuple[Entry, ...] = ()) -> Ledger:
        """A ledger with the experiment's budget.

        Args:
            entries: What was released before.
        """
        budget = self.experiment.privacy.epsilon if self.plan.release.privacy_unit is not None else None
        return Ledger(self.experiment.privacy.delta, budget, entries)

    @property
    def background(self) -> Background:
        """What a statement says about data and method."""
        plan, federation = self.plan, self.federation
        return Background(
            caveats=(*federation.caveats, *plan.method.caveats(plan.facts)),
            corrections=plan.method.corrections() if is_builtin(plan.method) else (),
            no_guarantee=federation.no_guarantee,
            hashed_ids=federation.hashed_ids,
            asserted_by=asserted_by(self.experiment, plan, self.learner.training(federation.feature_shape).layers),
        )

    def planned_statement(self) -> Statement:
        """The statement that a complete run will have."""
        plan, simulated = self.plan, self.experiment.run.secrets == "simulated"
        event = plan.release.event(plan.facts.silos)
        turns = plan.release.participation
        rounds = range(1, plan.rounds + 1)
        entries = tuple(Entry(round_, event, "planned", group=turns.group(round_)) for round_ in rounds)
        ledger = Ledger(self.experiment.privacy.delta, None, entries)
        return compose(plan.release, plan.disclosure, ledger, self.background, simulated=simulated)


def asserted_by(experiment: Experiment, plan: Plan, layers: Sequence[type] = ()) -> tuple[str, ...]:
    """Third-party code on which an epsilon rests: a release type, a method that makes the rows, an aggregation
    that adds the noise, a data set that says whose a record is, layers that are run on records.

    A method on a built-in release cannot state more noise than it adds, but that row u depends on user u's records
    alone is its author's assertion; and a layer could carry information from one user's records into another's
    row. A model that kernels train is read, not run, and is not named. A method may turn into another one
    (``for_model``): the one that the experiment names counts too, under that name.
    """
    foreign: list[type] = [] if is_one_of(plan.release, BUILTIN_RELEASES) else [type(plan.release)]
    foreign += [] if is_builtin(plan.method) else [type(plan.method)]
    foreign += [] if is_one_of(plan.aggregation, AGGREGATIONS.values()) else [type(plan.aggregation)]
    names = [qualified_name(kind) for kind in (*foreign, *layers)]
    return tuple(dict.fromkeys([*names, *third_party_names([experiment])]))


def prepare(
    experiment: Experiment, federation: Federation | None = None, module: OwnModel | None = None
) -> PreparedExperiment:
    """Load the data, build the model, calibrate the noise, check all ranges. Nothing is trained or written.

    Args:
        experiment: The settings.
        federation: The data, where they are in memory (``data.given``).
        module: The model or its factory, where it is in memory (``model.name = "given"``).

    Returns:
        What training needs; its ``plan`` and ``planned_statement()`` say what will be released.

    Raises:
        InputError: Settings, data or model are wrong or do not fit together.

    Example:
        >>> prepare(Experiment.from_tree({"data": {"dataset": "synthetic", "users": 20}, "method": {"name": "fedavg"}}))
        PreparedExperiment(...)
    """
    if federation is None:
        federation = load_federation(experiment)
        if not len(federation.test) and experiment.trains_model:
            reason = "the test set has no records; give data.test or a larger data.test_fraction"
            raise ConfigError(reason, location="data.test")
    if experiment.run.evaluate_silos and not experiment.data.holdout:
        raise ConfigError(
            "nobody is held out, and in a simulation no silo brings a file of its own; set data.holdout, for instance "
            "to 0.2",
            location="run.evaluate_silos",
        )
    counts = federation.counts()
    prepared = prepare_party(experiment, federation, counts.sum(axis=0), module)
    plan = prepared.plan
    plan.release.check_counts(counts)
    notes = (*plan.method.notes(plan.facts, counts), *plan.aggregation.notes(plan.release, counts))
    return replace(prepared, federation=replace(prepared.federation, notes=(*prepared.federation.notes, *notes)))


def prepare_party(
    experiment: Experiment, federation: Federation, totals: IntArray, module: OwnModel | None = None
) -> PreparedExperiment:
    """The experiment for a party that holds this federation. ``totals`` matter to methods that read the data only."""
    learner: PlannedLearner
    if isinstance(experiment.method, NewtonSteps):
        experiment.method.check_data(federation.feature_shape, federation.task.classes)
        learner = TallyLearner(experiment.method.numbers, experiment.method.start)
    elif experiment.described_bins:
        learner = TallyLearner(int(np.prod(federation.feature_shape)))
    else:
        _check_codes(experiment, federation, module)
        learner = build_learner(experiment, federation.feature_shape, federation.task, module)
    slow = training_notes(learner, federation.feature_shape)
    caveats: tuple[Caveat, ...] = (Caveat("rounding", learner.caveat, Severity.WEAKENS),) if learner.caveat else ()
    if foreign := learner.training(federation.feature_shape).layers:
        text = (
            f"The model runs code of {', '.join(map(qualified_name, foreign))}. That it keeps nothing of one user's "
            "records for another's was tested (uldp.learners.checks), not proven."
        )
        caveats += (Caveat("foreign-model", text, Severity.LIMITS),)
    # A factory may read parameters from a file, and a module may have been trained before.
    own = module is not None or ":" in experiment.model.name
    caveats += (INITIAL_PARAMETERS,) if own and experiment.trains_model else ()
    caveats += (STARTING_MODEL,) if isinstance(experiment.method, NewtonSteps) else ()
    federation = replace(federation, caveats=(*federation.caveats, *caveats), notes=(*federation.notes, *slow))
    return PreparedExperiment(experiment, federation, learner, build_plan(experiment, learner, federation, totals))


def _check_codes(experiment: Experiment, federation: Federation, module: OwnModel | None) -> None:
    """Models by name take every feature for a size."""
    name, codes = experiment.model.name, () if federation.schema is None else code_columns(federation.schema)
    if codes and module is None and ":" not in name:
        reason = f"{name!r} would take the codes of {codes[0]!r} for sizes; take a model that begins with an Embedding"
        raise ConfigError(
            f"{reason}, or kind = 'category'", location=f"data.schema.columns.{codes[0]}.kind", value=name
        )


def build_learner(
    experiment: Experiment, feature_shape: tuple[int, ...], task: Task, module: OwnModel | None = None
) -> TorchLearner:
    """The model of an experiment for data of this shape, or ``module``, ready to be trained or applied."""
    from uldp.learners.models import build_model, copy_module
    from uldp.learners.torch import TorchLearner

    run = experiment.run
    if module is not None:
        model = copy_module(module, feature_shape, task)
    elif experiment.model.name == GIVEN:
        raise ConfigError("the model was handed over in Python; hand it over again", location="model.name", value=GIVEN)
    else:
        name = experiment.model.name
        name = automatic_model(experiment, feature_shape, task) if name == "auto" else name
        model = build_model(name, feature_shape, task, experiment.model.options)
    prior = _prior(experiment, task, keep_parameters=module is not None)
    return TorchLearner(model, task, dtype=run.dtype, device=run.device, memory_mb=run.memory_mb, prior=prior)


def _prior(experiment: Experiment, task: Task, *, keep_parameters: bool) -> Prior | None:
    """Where training starts: at the public base rates, or with a last layer of zeros if the method wants that."""
    prior = experiment.data.prior
    if prior is None:
        return Prior() if experiment.method.neutral_start and not keep_parameters else None
    prior.check(task)
    return prior


def training_notes(learner: PlannedLearner, feature_shape: tuple[int, ...]) -> tuple[str, ...]:
    """Why training is slow, if it is, as a note of the experiment instead of a Python warning."""
    from uldp.learners.torch import SlowTrainingWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowTrainingWarning)
        slow = learner.training(feature_shape).slow
    return (slow,) if slow else ()


def build_plan(experiment: Experiment, learner: PlannedLearner, federation: Federation, totals: IntArray) -> Plan:
    """What all parties of an experiment agree on."""
    threads, about = experiment.run.threads, (experiment, learner, federation, totals)
    given = experiment.aggregation.build(threads)
    if experiment.aggregation.name != AUTO:
        return _plan_under(given, *about)
    method = experiment.method
    if method.privacy_unit is not None and not method.local:
        method = experiment.with_noise(1.0)  # how much does not matter here
    facts = _public_facts(given, experiment, learner, federation)
    release = _fitted(method.for_data(totals), experiment, learner).for_facts(facts).release(facts)
    # Without lattice, what is shown is said in the same breath.
    by_records = release.user_weighting == "records"
    shown = "; so the server sees everybody's record counts, and the silos totals" if by_records else ""
    if why_not := automatic_misfit(release):
        return replace(_plan_under(given, *about), aggregation_reason=f"{why_not}{shown}")
    try:
        plan = _plan_under(automatic(release, threads), *about)
    except ConfigError as error:
        if release.user_sampling.private:
            raise
        return replace(_plan_under(given, *about), aggregation_reason=f"lattice does not fit: {error}{shown}")
    hidden = "weights depend on record counts, and lattice shows them to no single party"
    reason = hidden if by_records else "sampling in private"
    return replace(plan, aggregation_reason=reason)


def _fitted(method: Method, experiment: Experiment, learner: PlannedLearner) -> Method:
    """The method for this model, and for where its training begins."""
    streams = Streams.from_seed(experiment.run.seed).child("model")
    return method.for_model(learner.layer_sizes).for_start(lambda: learner.initial(streams))


def _public_facts(
    aggregation: Aggregation, experiment: Experiment, learner: PlannedLearner, federation: Federation
) -> PublicFacts:
    return PublicFacts(
        users=federation.users,
        silos=len(federation.silos),
        dimension=learner.dimension,
        rounding=aggregation.rounding,
        people=experiment.data.people or federation.users,
        task=federation.task.kind,
        linear_outputs=learner.linear_outputs,
        category_columns=0 if federation.schema is None else category_columns(federation.schema),
        feature_norm=math.inf if federation.schema is None else feature_norm(federation.schema),
        residual=aggregation.residual,
        silo_names=tuple(silo.name for silo in federation.silos),
    )


def _plan_under(
    aggregation: Aggregation, experiment: Experiment, learner: PlannedLearner, federation: Federation, totals: IntArray
) -> Plan:
    """The plan under this aggregation."""
    silos = tuple(silo.name for silo in federation.silos)
    facts = _public_facts(aggregation, experiment, learner, federation)
    # Copies of the facts: a method could write into them.
    method = _fitted(method_with_noise(experiment, totals, replace(facts)), experiment, learner)
    method = rebuild_method(method.for_facts(replace(facts)))
    release = rebuild_release(method.release(replace(facts)))
    if release.participation.groups > 1:
        release = replace(release, participation=replace(release.participation, key=_group_key(experiment)))
    if release.facts != facts:
        raise ConfigError(f"its release is made for {release.facts}, the experiment has {facts}", location="method")
    _check_products(facts, paired=aggregation.needs_key_agreement)
    if experiment.run.evaluate_silos and not learner.mean_metrics:
        reason = "the loss of survival times compares records, so the silos' sums do not add up; leave it out"
        raise ConfigError(reason, location="run.evaluate_silos")
    release.check()
    check_event(release.event(facts.silos), type(release))
    foreign = [
        name.partition(":")[0] for name in (*third_party_names([experiment]), experiment.model.name) if ":" in name
    ]
    foreign += [type(release).__module__, type(method).__module__]
    return Plan(
        # Parties must also agree on the calibrated noise (accountants of two versions may differ), on the model's
        # tensors (a factory may differ), on an aggregation's defaults and on the text of third-party code.
        digest=hashlib.sha256(
            f"{experiment.digest()} {method!r} {release!r} {aggregation!r} {learner.layer_sizes} "
            f"{code_digests(foreign)}".encode()
        ).hexdigest(),
        release=release,
        rounds=method.rounds,
        method=method,
        aggregation=aggregation,
        silos=silos,
        identities=_identities(experiment, silos),
        min_silos=experiment.aggregation.min_silos or 0,
        layers=learner.architecture,
        outputs=first_outputs(learner, federation.feature_shape, Streams.from_seed(experiment.run.seed)),
        mean_metrics=learner.mean_metrics if experiment.run.evaluate_silos else (),
    )


def _group_key(experiment: Experiment) -> str:
    """What decides who is together in a group: method and seed, which are the same under every aggregation.

    The release holds it, so all parties agree on it by the digest of the plan.
    """
    tree = experiment.to_tree()
    known = json.dumps([tree["method"], experiment.run.seed], sort_keys=True, default=str)
    return hashlib.sha256(known.encode()).hexdigest()


def check_event(event: object, kind: type) -> None:
    """Refuse an event that no accountant could interpret."""
    if not isinstance(event, Event):
        known = ", ".join(one.__name__ for one in get_args(Event))
        raise ConfigError(
            f"event of {qualified_name(kind)} is {format_value(event)}; return one of {known} (uldp.privacy.events)",
            location="method",
        )


def _check_products(facts: PublicFacts, *, paired: bool) -> None:
    """Refuse more numbers than a server can receive in a round, and more keys than silos can agree on."""
    if paired and facts.silos > MAX_PAIRED_SILOS:
        reason = (
            f"at most {MAX_PAIRED_SILOS:,} where every two silos agree on a key, not {facts.silos:,}; take "
            "aggregation.name = 'plain'"
        )
        raise ConfigError(reason, location="data.silos", value=facts.silos)
    if facts.dimension * facts.silos > MAX_UPDATES:
        most = MAX_UPDATES // facts.silos
        reason = f"at most {most:,} parameters with {facts.silos:,} silos, not {facts.dimension:,}"
        raise ConfigError(reason, location="model", value=facts.dimension)


def first_outputs(learner: Learner, feature_shape: tuple[int, ...], streams: Streams) -> bytes:
    """The model's outputs for public inputs before any training: they show x_0 and what the layers compute."""
    inputs = streams.child("greeting").generator().uniform(-1, 1, (HANDSHAKE_INPUTS, *feature_shape))
    outputs = learner.predict(learner.initial(streams.child("model")), inputs.astype(np.float32))
    return pack(outputs.astype(np.float64).ravel()[:HANDSHAKE_OUTPUTS])


def _identities(experiment: Experiment, silos: tuple[str, ...]) -> tuple[bytes, ...]:
    """The silos' public keys as the experiment lists them; none where a simulation makes them."""
    given = experiment.aggregation.identities
    if given and set(given) != set(silos):
        mismatch = sorted(set(given) ^ set(silos))[0]
        reason = f"one key for each silo ({', '.join(silos)}) and no other"
        raise ConfigError(reason, location=f"aggregation.identities.{mismatch}", value=mismatch)
    return tuple(bytes.fromhex(given[silo]) for silo in silos) if given else ()
